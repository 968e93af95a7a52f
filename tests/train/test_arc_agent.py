"""An agent is trained on a small family of ARC tasks, killed, resumed, evaluated and loaded again.

The runs are commands in processes of their own. They share a cache of compiled programs, and compile with few
optimizations: compilation takes longer than all else here.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DamagedError, DataError, MismatchError
from brim.core.npz import NpzArchive
from brim.envs.arc import read_episodes
from brim.train.arc import ArcPpoConfig, load_agent, read_evaluation, train_arc
from brim.train.arc.checkpoint import as_loaded, load_tree, named_arrays, read_saved, save_learning
from brim.train.arc.network import View, init_params, look
from brim.train.arc.ppo import DECAY_1, DECAY_2, EPSILON, adam, advantages
from brim.train.checkpoint import checkpoint_path

SMALL = ArcPpoConfig(
    kinds=("recolour",),
    envs=128,
    minibatches=4,
    width=16,
    tasks=256,
    held_out=100,
    learning_rate=0.004,
    updates=20,
    save_every=4,
    keep=10,
    eval_every=10,
)
FLAGS = (
    "--kinds recolour --envs 128 --minibatches 4 --width 16 --tasks 256 --held-out 100 --lr 0.004 --updates 20 "
    "--save-every 4 --keep 10 --eval-every 10 --no-plot"
)
COMMAND = "import sys; sys.modules['torch'] = None; from brim.cli import main; main()"
"""The command without torch: whatever imports it fails."""
PATIENCE = 300
EXAMPLE = Path(__file__).parents[2] / "examples" / "arc" / "train_agent.py"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return tmp_path_factory.mktemp("arc")


@pytest.fixture(scope="module")
def start(desk):
    """A function that starts `brim train arc` in the desk."""
    variables = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(desk / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    }

    def start(line, program=COMMAND):
        words = [sys.executable, "-W", "error", "-c", program, "train", "arc", *line.split()]
        return subprocess.Popen(
            words, cwd=desk, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.fixture(scope="module")
def trained(desk, start):
    """The output of a whole run."""
    run = start(f"{FLAGS} -o whole")
    out, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, err
    assert "held out" in err
    assert "random" in out
    return desk / "whole"


def wait_for(path, run):
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def test_it_solves_tasks_with_rules_it_was_not_trained_on_where_random_actions_do_not(trained):
    found = read_evaluation(trained / "evaluation.json")
    assert found.total("sampled").solved_share >= 0.8
    assert found.total("greedy").solved_share >= 0.8
    assert found.total("random").solved_share < 0.05
    assert found.total("sampled").invalid == 0
    assert found.kinds == ("recolour",)


def test_the_log_has_a_line_for_every_update_and_the_curve_of_held_out_tasks_rises(trained):
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["step"] for line in lines if line["held_out"] is not None] == [1, 10, 20]
    assert lines[0]["held_out"] < 0.1 < 0.8 <= lines[-1]["held_out"]
    assert lines[-1]["held_out"] == read_evaluation(trained / "evaluation.json").total("sampled").solved_share


def test_the_episodes_that_are_kept_replay_and_the_pages_show_them(trained):
    episodes = read_episodes(trained / "episodes.json")
    assert {episode.solved for episode in episodes} >= {True}
    assert all(len(episode.frames) == episode.steps + 1 and episode.kind == "test" for episode in episodes)
    assert episodes[0].task.id in (trained / "episodes.html").read_text()
    assert "tasks with rules it was not trained on" in (trained / "report.html").read_text()


def test_killed_with_9_resumed_and_stopped_by_sigterm_it_has_the_same_weights_to_the_bit(desk, start, trained):
    killed = start(f"{FLAGS} -o killed -q")
    wait_for(desk / "killed" / "checkpoint-00000004", killed)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    resumed = start("--resume killed --no-plot")
    wait_for(desk / "killed" / "checkpoint-00000008", resumed)
    resumed.send_signal(signal.SIGTERM)
    _, err = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 1, err
    assert "SIGTERM: stopping soon, with a checkpoint" in err
    assert "stopped with a checkpoint; continue with: " in err
    for name in ("checkpoint-00000004", "checkpoint-00000008"):
        same = [(desk / run / name / "learning.npz").read_bytes() for run in ("killed", "whole")]
        assert same[0] == same[1]
    with NpzArchive(desk / "killed" / "checkpoint-00000008" / "learning.npz") as arrays:
        assert {name.split("/")[0] for name in arrays} == {"params", "moments", "count", "envs", "key"}
    steps = [json.loads(line)["step"] for line in (desk / "killed" / "log.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert "The run is not finished" in (desk / "killed" / "report.html").read_text()


def test_another_family_or_another_option_cannot_be_resumed(trained):
    last = checkpoint_path(trained, 20)
    for option, value in {"kinds": ("flip",), "size": 6, "seed": 1, "learning_rate": 0.1, "updates": 30}.items():
        with pytest.raises(MismatchError, match=rf"cannot change when a run is resumed: {option} \("):
            SMALL.resumed(**{option: value})
        with pytest.raises(MismatchError, match=rf"cannot change when a run is resumed: {option} \("):
            train_arc(ArcPpoConfig(**{**SMALL.to_dict(), option: value}), output=trained, resume=last)
    assert SMALL.resumed(save_every=1).save_every == 1
    assert read_saved(last).config == SMALL


LOADED = """
import json
import sys
import numpy as np
from brim.cli import main
from brim.envs.arc import batch_policy_rollout, batch_reset, record_episodes, split_key
from brim.train.arc import load_agent

agent = load_agent("whole")
tasks, config, policy = agent.held_out_tasks(100), agent.environment(), agent.policy(greedy=True)
episodes = record_episodes(policy, tasks, config, envs=100, steps=6, seed=3)
states, _ = batch_reset(split_key(3, 100), config, tasks)
played = batch_policy_rollout(policy, states, config, num_steps=6)["actions"]
for episode in episodes:
    for theirs, part in zip(episode.actions, played, strict=True):
        assert theirs.tolist() == np.asarray(part)[: episode.steps, episode.env].tolist()
print(agent.update, sum(episode.solved for episode in episodes))
main()
"""


def test_a_loaded_agent_solves_tasks_acts_the_same_on_numpy_and_on_jax_and_has_the_same_scores(start, trained):
    run = start("--evaluate whole --json", program=LOADED)
    out, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, err) == (0, "")
    first, _, scores = out.partition("\n")
    update, solved = map(int, first.split())
    assert update == 20
    assert solved >= 80
    assert json.loads(scores)["scores"] == asdict(read_evaluation(trained / "evaluation.json"))["scores"]


def test_the_example_resumes_its_agent_and_asserts_what_it_prints(start, desk, trained):
    """It has the options of the run above, and finds that run finished."""
    shutil.copytree(trained, desk / "arc-agent")
    program = f"import runpy, sys; sys.argv[1:] = ['--quick']; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    run = start("", program=program)
    out, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, err
    assert re.search(r"recolour +\d+% +0%", out)
    assert re.search(r"solved again after loading: \d+ of 100", out)
    assert "`arc/train_agent.py`" in (EXAMPLE.parents[1] / "README.md").read_text()


estimated = jax.jit(partial(advantages, discount=0.9, trace=0.8))


@given(st.sampled_from([1, 2, 6]), st.integers(0, 2**32 - 1))
def test_advantages_are_discounted_sums_of_surprises_up_to_the_end_of_the_episode(steps, seed):
    drawn = np.random.default_rng(seed)
    value, reward = drawn.normal(size=(2, steps, 3)).astype(np.float32)
    last, done = drawn.normal(size=3).astype(np.float32), drawn.random((steps, 3)) < 0.3
    following = np.where(done, 0, np.concatenate([value[1:], last[None]]))
    surprise = reward + 0.9 * following - value
    expected = np.zeros((steps, 3))
    for step, env in np.ndindex(steps, 3):
        for later in range(step, steps):
            expected[step, env] += (0.9 * 0.8) ** (later - step) * surprise[later, env]
            if done[later, env]:
                break
    np.testing.assert_allclose(estimated(value, last, reward, done), expected, atol=1e-5)


def test_adam_takes_the_steps_of_its_paper_with_the_norm_of_the_gradient_limited():
    start, target = np.linspace(-1, 1, 5, dtype=np.float32), np.float32([3, -2, 0.5, 0, 1])
    weights, first, second = start.astype(np.float64), np.zeros(5), np.zeros(5)
    step = jax.jit(partial(adam, max_norm=2.0))
    params, moments = {"w": start}, ({"w": jnp.zeros(5)}, {"w": jnp.zeros(5)})
    for count in range(1, 8):
        gradient = weights - target
        gradient *= min(1, 2 / np.linalg.norm(gradient))
        first = DECAY_1 * first + (1 - DECAY_1) * gradient
        second = DECAY_2 * second + (1 - DECAY_2) * gradient**2
        means = first / (1 - DECAY_1**count), second / (1 - DECAY_2**count)
        weights = weights - 0.1 * means[0] / (np.sqrt(means[1]) + EPSILON)
        params, moments = step(params, {"w": params["w"] - target}, moments, jnp.float32(count), rate=jnp.float32(0.1))
        np.testing.assert_allclose(params["w"], weights, atol=1e-4)


def test_the_value_depends_on_the_steps_that_are_left_and_actions_do_not():
    params = jax.jit(partial(init_params, size=5, width=8, others=0))(jax.random.PRNGKey(0))
    see = jax.jit(partial(look, painting=10))
    grids = np.random.default_rng(0).integers(0, 10, (6, 5, 5), np.uint8)
    view = View(grids[None, 0], grids[None, 1], grids[None, 2:], jnp.array([1.0]))
    early, late = (see(params, view._replace(left=jnp.array([left]))) for left in (1.0, 0.2))
    assert early.value != late.value
    assert all(np.array_equal(*both) for both in zip(early[:3], late[:3], strict=True))


def test_a_directory_without_a_checkpoint_is_no_agent(tmp_path):
    with pytest.raises(DataError, match="holds no checkpoint, so there is no agent to load; train one first"):
        load_agent(tmp_path)
    with pytest.raises(DataError, match="does not exist, so there is no agent to load"):
        load_agent(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file and not the directory of a run, so there is no agent to load"):
        load_agent(tmp_path / "file")


def test_a_tree_comes_back_from_a_checkpoint_to_the_bit_and_another_is_refused(tmp_path):
    tree = {
        "params": {"b": jnp.float32([0.1, -0.0]), "a": (jnp.arange(3), jnp.uint32(7))},
        "key": jnp.uint32([1, 2]),
        "empty": jnp.zeros((2, 0)),
    }
    path = checkpoint_path(tmp_path, 3)
    save_learning(path, tree, SMALL, 3)
    assert read_saved(path) == (path, SMALL, 3)
    for loaded in (load_tree(path, as_loaded(tree)), as_loaded(tree)):
        for name, array in named_arrays(loaded).items():
            expected = named_arrays(tree)[name]
            assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert load_tree(path, tree["params"], below="params/")["a"][1] == 7
    with pytest.raises(DamagedError, match="params/a/1 is not in both"):
        load_tree(path, {**tree, "params": {"b": tree["params"]["b"], "a": (jnp.arange(3),)}})
    with pytest.raises(DamagedError, match=r"key is uint32 of \(2,\), expected int32 of \(2,\)"):
        load_tree(path, {**tree, "key": jnp.int32([1, 2])})
    (path / "learning.npz").write_bytes((path / "learning.npz").read_bytes()[:-40])
    with pytest.raises(DamagedError, match="is damaged"):
        read_saved(path)
