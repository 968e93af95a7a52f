"""The examples run as a newcomer runs them: each in its own process, from another directory, and print what they
show.

Where an example runs twice, the second process is forked, which saves it the imports.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.forked import run_command

pytestmark = pytest.mark.slow  # each example is a process of its own, two or three times

EXAMPLES = Path(__file__).parent.parent / "examples"
FOLDERS = ("advanced", "batching", "generate", "llm")

FACTS = {
    "batching/01_basic_batching.py": [
        "saved and loaded lengths.jsonl",
        "saved and loaded lengths.brim",
        "every sample is in exactly one of",
        "no batch holds more than 4096 tokens",
        "the same seed gives the same batches",
        "`for` and `async for` give the same batches",
        "fixed shapes, 8 chosen",
        "sorted windows are the fullest",
    ],
    "batching/02_sequence_packing.py": [
        "FIRST_FIT",
        "BEST_FIT",
        "GREEDY",
        "OPTIMAL",
        "every sample is in exactly one of",
        "segment_ids [1 1 1 1 2 2 2 3 3 0 0]",
        "positions   [0 1 2 3 0 1 2 0 1 0 0]",
        "cu_seqlens  [0 4 7 9]",
        "  ....##.....\n",
        "no token attends to another sample, to a later token or to padding",
        "equals attention over each of them alone",
        "fewer slots for the same tokens",
    ],
    "batching/03_batch_plan.py": [
        "saved and loaded: epoch-0000.brim, epoch-0001.brim, epoch-0002.brim, lengths.brim, plan.json",
        "the loaded plan holds the same microbatches in the same order",
        "see every sample exactly once per epoch",
        "from epoch 1, microbatch 30, the run resumes",
        "the batches are the same",
        "with another seed:",
        "verified: the plan on disk is the plan for these lengths and options",
        "1 added: new",
        "1 removed: s6",
        "1 longer: s5",
        "other token_budget (8192 -> 4096)",
        "refused: this position belongs to another plan",
        "damage is found: plan/epoch-0000.brim",
    ],
    "batching/04_distributed.py": [
        "torchrun: rank 3 of 8",
        "SLURM: rank 5 of 8",
        "no launcher: rank 0 of 1",
        "null microbatches, every sample exactly once",
        "dealt without regard to cost",
        "killed on 8 ranks after 10 steps, at microbatch 80 of epoch 0",
        "resumed on 6 ranks to the end of epoch 1: nothing repeated, nothing skipped",
        "in the order of the run on 8 ranks that was never killed",
        "rank_3 holds the share of rank 3",
        "the first half has half of every bucket",
    ],
    "batching/05_e2e_pipeline.py": [
        "row 0 is sample",
        "2. lengths: 300 samples",
        "batches in 2 epochs",
        "written again: 0, all",
        "loss, streaming",
        "both paths give the same loss at every step and the same weights",
        "killed after 10 streamed batches and resumed from files",
        "every sample exactly once in the epoch",
        "the files of rank 3 hold its 5 batches, 1 of them empty",
        "the first step over 4 ranks has loss",
    ],
    "batching/08_online_learning.py": [
        "mock gym: 200 episodes, 800 actions, 70% solved",
        "the buffer holds 600 of 800 actions, 200 were evicted, oldest first",
        "at most 12 microbatches each; 37 are in both",
        "the same snapshot and seed give the same window",
        "the next batch is the same, and so is the next draw",
        "the target rises from 0.30 to 0.60",
        "hint: 24 of 24 puzzles solved, 180 actions to learn from",
        "place 3 5 1",
    ],
    "batching/09_structural_bucketing.py": [
        "2000 samples with 4 structures: compression_depth=0, compression_depth=1, compression_depth=2, "
        "compression_depth=3",
        "ragged along compression_stages/0, compression_stages/1, compression_stages/2, context",
        "{'batch_size': 32}: 65 batches, ",
        "of all steps are in dummy stages",
        "Batch compression depth: 3",
        "Stage 0 shape: (",
        "resumed after 3 batches: the other 41 follow in the same order",
        "3 ranks: 15 batches each, every sample once over all of them",
        "refused: samples 'h6' and 'h0' have different structures",
        "a plan from the lengths holds the same batches",
    ],
    "batching/06_analyze.py": [
        "half of the samples have at most 298 tokens",
        "bucket ends at 2,048",
        "powers of two fill 69.3%",
        "minimize_waste: edges (213, 384, 628, 1027, 1795), fill 73.0%",
        "balance_buckets: edges",
        "minimize_memory: edges",
        "no three buckets are better, for any goal",
        "plans: 69.28% full before, 72.99% after",
        "packed rows of 4096",
        "Choose sorted windows (brim plan build -b 16384)",
        "written: report.html",
    ],
    "batching/07_streaming.py": [
        "stock-0000000: 499 tokens from offline data 'attempts'",
        "reward 0.0, difficulty 0.3, status failure",
        "400 samples, 115051 tokens",
        "success rate 75%, mean reward 0.75",
        "two epochs in two orders, every sample once in each",
        "left out: {'filter': 100, 'too long': 9}",
        "replayed: source replay, replay_count 1",
        "`for` and `async for` give the same samples in the same order",
        "stopped after 123 samples, resumed with the other 677: nothing repeated, nothing lost",
    ],
    "advanced/arc_quick_start.py": [
        "Batch shape: (16, 30, 30)",
        "Rewards: [-0.01 -0.01",
    ],
    "advanced/batch_processing_demo.py": [
        "32 environments, rewards from -0.010 to 0.000",
        "results depend on the key of an environment, and on nothing around it",
        "Average length: 30.0",
        "Completion rate: 100.0%",
        "all solved after 2 steps",
        "Trajectory shape: (10, 32)",
        "the random policy chooses one of 9000 actions",
        "colours of step 0: [0]\n",
        "40 environments stepped in padded batches, each as if it were alone",
        "5 episodes: mean reward -0.197",
        "Batch 256: 0.70 MB, 2.80 KB for each environment",
        "the smallest with 95% of the best throughput",
        "environment 0: {'step_count': 0, 'similarity': 0.15",
        "timed 4 operations, 2 first calls apart",
    ],
    "generate/policy_gradient.py": [
        "step  0: share of digits 0.0",
        "step  7: share of digits",
        "attention slots that held a token",
    ],
    "llm/batched_calls.py": [
        "500 prompts, 500 replies: in the order asked, none lost",
        "at most 16 requests were worked on at once",
        "measured: limit ",
        "as_ready and map_async give the same answers",
        "Rejected: the prompt is empty",
        'ModelMissing: the server does not have the model "multiplier". It has adder.',
        "2 queries stand for failures, and are listed",
        "2 prompts with 4 samples each are 8 requests; 8 equal calls at temperature 0 are 1",
    ],
}


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def without_measurements(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("measured:")]


NEEDS = {
    "advanced/arc_quick_start.py": pytest.mark.jax,
    "advanced/batch_processing_demo.py": pytest.mark.jax,
    "batching/05_e2e_pipeline.py": pytest.mark.torch,
    "batching/08_online_learning.py": pytest.mark.server,
    "batching/09_structural_bucketing.py": pytest.mark.torch,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in FACTS])
def test_an_example_runs_anywhere_and_prints_what_it_shows_the_same_every_time(name, tmp_path):
    """The second process has another hash seed, so sets and dicts of strings have another order there.

    Lines that say "measured:" hold times, or what depends on them.
    """
    done = run(name, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [fact for fact in FACTS[name] if fact not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []
    again = run_command([str(EXAMPLES / name)], tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert without_measurements(again.stdout) == without_measurements(done.stdout)


def test_every_example_is_run_here_and_listed_in_the_table():
    names = sorted(f"{folder}/{path.name}" for folder in FOLDERS for path in (EXAMPLES / folder).glob("*.py"))
    assert names == sorted(FACTS)
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"`{name}`" not in table] == []
    assert "`compressed_ad/train.py`" in table
    assert "`train_query_mutator.py`" in table  # its lines are run by tests/contract


@pytest.mark.torch
@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("grpo/arithmetic.py", ["warm start: loss ", "closeness-seed0: held-out reward ", "shuffled rewards: "]),
        ("grpo/puzzles.py", ["warm start: ", "before  ", "after   "]),
    ],
)
def test_the_examples_of_grpo_run_in_a_short_form(name, facts, tmp_path):
    done = run_command([str(EXAMPLES / name), "--quick"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [fact for fact in facts if fact not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []
    assert f"`{name}`" in (EXAMPLES / "README.md").read_text()


@pytest.mark.torch
def test_the_example_of_stable_baselines_runs_or_says_what_to_install(tmp_path):
    """Stable-Baselines3 is not among the packages that the tests install."""
    done = run_command([str(EXAMPLES / "arc/stable_baselines.py"), "--quick"], tmp_path)
    if find_spec("stable_baselines3") is None:
        assert done.returncode == 1
        assert done.stderr.startswith("this example needs stable_baselines3; run: pip install")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "observations (1375,), 225 actions, 4 tasks\nsteps 2048: solved " in done.stdout
    assert "`arc/stable_baselines.py`" in (EXAMPLES / "README.md").read_text()


@pytest.mark.torch
def test_the_example_of_training_on_arc_episodes_runs_in_a_short_form(tmp_path):
    name = "arc/train_on_episodes.py"
    done = run_command([str(EXAMPLES / name), "--quick"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    facts = ["80 samples of solved episodes", "before: loss 5.", "after:  loss ", "measured: 5 steps in "]
    assert [fact for fact in facts if fact not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []
    assert f"`{name}`" in (EXAMPLES / "README.md").read_text()


SHORT = """
algorithm: {episodes: 8, keep_every: 1, repeats: 2}
data: {samples: 600}
evaluation: {episodes: 3, lanes: 2}
"""


@pytest.mark.torch
def test_the_training_script_shows_its_buckets_trains_and_resumes(tmp_path):
    """The line of its docstring, with one more file and options that make it short."""
    (tmp_path / "short.yaml").write_text(SHORT)
    files = ["algorithm/ppo_base.yaml", "env/darkroom.yaml", "model/ad_compressed_dr.yaml"]
    line = [*(f"config/{file}" for file in files), str(tmp_path / "short.yaml"), "--seeds", "0", "--steps", "2"]
    folder = EXAMPLES / "compressed_ad"
    assert [file for file in files if not (folder / "config" / file).is_file()] == []
    words = ["train.py", *line, "-o", str(tmp_path / "out")]
    command = [sys.executable, "-W", "error", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for depth in range(4):
        assert f"bucket {depth}: " in done.stdout
        assert f"Batch compression depth: {depth}" in done.stdout
    assert "Stage 2 shape: (" in done.stdout
    assert "step 1/2: loss " in done.stdout
    assert "seed 0: return " in done.stdout
    again = run_command([*words, "--resume"], folder)
    assert (again.returncode, again.stderr) == (0, "")
    assert "step 1/2" not in again.stdout, "it was trained before"
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
