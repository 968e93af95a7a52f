"""`brim train distill` as it is typed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from support.forked import run_command

from brim.cli.train.distill import distill
from brim.core.fill import Fill
from brim.train.distill.evaluate import InContext, References
from brim.train.distill.run import DistillResult

TINY = """
env: {size: 4, horizon: 5}
algorithm: {episodes: 10, keep_every: 2, repeats: 2}
data: {window: 12, samples: 200}
model: {width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, latents: 2}
training: {steps: 10, token_budget: 300, save_every: 4}
evaluation: {episodes: 3, lanes: 2}
"""


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def brim(folder, line):
    return run_command(["brim", "train", "distill", *line.split()], folder)


def test_a_run_leaves_histories_checkpoints_results_and_a_picture(desk):
    done = brim(desk, "tiny.yaml --seeds 0,3 -o out --json")
    assert done.returncode in (0, 1), done.stderr  # ten steps need not be enough to learn
    told = json.loads(done.stdout)
    assert [seed["seed"] for seed in told["seeds"]] == [0, 3]
    improves = [seed["improvement"] > 2 * seed["standard_error"] for seed in told["seeds"]]
    assert [seed["improves"] for seed in told["seeds"]] == improves
    assert done.returncode == (0 if all(improves) else 1)
    assert all(len(seed["curve"]) == 3 for seed in told["seeds"])
    assert told["references"]["random"] < told["references"]["best"]
    assert "seed 3" in done.stderr
    assert {path.name for path in (desk / "out").iterdir()} == {
        ".lock", "run.json", "histories.h5", "seed-0", "seed-3", "results.json", "in_context.png",
    }  # fmt: skip
    assert (desk / "out" / "in_context.png").read_bytes().startswith(b"\x89PNG")
    again = brim(desk, "--resume -o out -q --no-plot --json")
    assert again.returncode == done.returncode
    assert again.stderr == ""
    assert json.loads(again.stdout)["seeds"] == told["seeds"]


def test_results_are_a_table_on_stdout_and_talk_goes_to_stderr(desk):
    done = brim(desk, "tiny.yaml --seeds 0 --steps 3 --no-plot -o out")
    assert done.returncode in (0, 1), done.stderr
    assert "return on held-out goals" in done.stdout
    assert "knows the goal" in done.stdout
    assert "step 3/3" in done.stderr
    assert not (desk / "out" / "in_context.png").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("none.yaml", "DataError: none.yaml does not exist"),
        ("bad.yaml", "OptionError: bad.yaml: unknown option 'stepps' in training. Did you mean \"steps\"?"),
        ("tiny.yaml --seeds 0,x", "'0,x' is not a list of whole numbers such as 0,1,2"),
        ("tiny.yaml --steps 0", "OptionError: steps must be at least 1, got 0"),
        ("--resume -o nowhere", "DataError: nowhere holds no run"),
        ("tiny.yaml -o tiny.yaml", "OptionError: cannot write tiny.yaml: a file is in the way"),
        (
            "tiny.yaml small.yaml",
            "OptionError: tiny.yaml, small.yaml: training.token_budget must be at least 48, the steps of the longest",
        ),
        (
            "tiny.yaml -o taken",
            "OptionError: taken/histories.h5 is not a file of `brim train distill`, and would be overwritten",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_status_2(desk, line, message):
    (desk / "bad.yaml").write_text("training: {stepps: 3}")
    (desk / "small.yaml").write_text("training: {token_budget: 47}")
    (desk / "taken").mkdir()
    (desk / "taken" / "histories.h5").write_bytes(b"of somebody")
    done = brim(desk, line)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (desk / "taken" / "histories.h5").read_bytes() == b"of somebody"


@pytest.mark.parametrize(
    ("gains", "status", "line"),
    [
        ([[0.3, 0.31, 0.29], [0.5, 0.4, 0.3]], 0, None),
        ([[0.3, 0.31, 0.29], [0.1, -0.1, 0.1]], 1, "no improvement above twice the standard error: seed 1"),
        ([[-0.3, -0.3, -0.3], [0.1, -0.1, 0.1]], 1, "no improvement above twice the standard error: seed 0, 1"),
        ([[0.001], [0.3]], 0, None),
        ([[0.001], [0.0]], 1, "no improvement above 0: seed 1"),
    ],
)
def test_the_exit_status_says_whether_every_seed_improves_and_a_line_says_which_do_not(
    desk, monkeypatch, gains, status, line
):
    def trained(config, **_):
        seeds = [
            InContext(seed, np.array([[[0.0, 0.0, gain]] for gain in goals], np.float32))
            for seed, goals in enumerate(gains)
        ]
        return DistillResult(
            config, tuple(seeds), References(0.1, 9.0, (0.2, 8.0)), weights=7, losses=(), fill=Fill(), seconds=1.0
        )

    monkeypatch.setattr("brim.train.distill.run.train_distill", trained)
    done = CliRunner().invoke(distill, [str(desk / "tiny.yaml"), "--no-plot", "-q", "-o", str(desk / "out")])
    assert done.exit_code == status, done.output
    assert [said for said in done.stdout.splitlines() if "no improvement" in said] == ([line] if line else [])


def test_other_options_and_damaged_files_are_refused_when_a_run_is_resumed(desk):
    brim(desk, "tiny.yaml --seeds 0 --steps 3 --no-plot -o out")
    done = brim(desk, "--resume --steps 4 --no-plot -o out")
    assert done.returncode == 2
    assert "training.steps (3 -> 4)" in done.stderr
    over = brim(desk, "tiny.yaml --seeds 0 --steps 3 --no-plot -o out")
    assert over.returncode == 2
    assert "holds a run already; continue it with --resume" in over.stderr
    (desk / "out" / "seed-0" / "log.jsonl").write_text("{\n")
    damaged = brim(desk, "--resume --no-plot -o out")
    assert damaged.returncode == 2
    assert "DamagedError: out/seed-0/log.jsonl:1 is damaged; remove that line" in damaged.stderr
    assert "Traceback" not in damaged.stderr
