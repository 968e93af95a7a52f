"""Runs that learn with PPO, on a contextual bandit: rollouts, updates, checkpoints between them, resuming."""

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.worlds import lines

from brim.core.errors import BrimError, DamagedError, DataError, MismatchError, OptionError
from brim.core.rng import share
from brim.train.callbacks import Callback
from brim.train.checkpoint import checkpoints, read_checkpoint
from brim.train.log import History
from brim.train.ppo import Experience, PpoConfig, PpoRun, PpoRunConfig
from brim.train.ppo import update as update_module

CONTEXTS, ACTIONS = 8, 4
RIGHT = np.array([2, 0, 3, 1, 1, 2, 0, 3])
"""The action that is rewarded in each context."""


class Bandit(PpoRun[PpoRunConfig]):
    """Contexts as one-hot observations, reward 1 for the right action. Episodes have two steps; with a context of its
    own for each, the action has no influence on what follows.
    """

    format = "test.bandit/1"

    def __init__(self, config, *, envs=16, updates=20, invalid=0.0, callbacks=(), size=CONTEXTS):
        super().__init__(config, callbacks)
        self.envs, self.invalid, self.size = envs, invalid, size
        self.numbers = [0] * envs
        """Steps that each environment has taken."""
        self.rewards = []
        self.reports = []
        found = checkpoints(self.output)
        with self.claimed(config.to_dict(), new=not found):
            self.make_policy(observation_size=size, num_actions=ACTIONS, num_envs=envs, updates=updates)
            if found:
                self.restore(found[-1])

    def collect(self, policy):
        steps = [self._step(policy) for _ in range(self.config.ppo.num_steps)]
        if None in steps:
            return None
        taken = Experience(**{name: np.stack([step[name] for step in steps]) for name in steps[0]})
        if taken.valid_count:
            self.rewards.append(float(taken.rewards[taken.valid].mean()))
        return taken

    def _step(self, policy):
        if self.stop_requested:
            return None
        numbers = np.array(self.numbers)
        contexts, after = self._contexts(numbers), self._contexts(numbers + 1)
        seen, ids = np.eye(self.size, dtype=np.float32)[contexts], np.arange(self.envs)
        actions, extras = policy.act(seen, ids, numbers)
        draws = [share(seed=0, purpose=f"invalid/{id}", epoch=int(number)) for id, number in enumerate(numbers)]
        valid = np.array(draws) >= self.invalid
        ended = numbers % 2 == 1
        self.numbers = [number + 1 for number in self.numbers]
        return {
            "observations": seen,
            "actions": actions,
            **extras,
            "next_observations": np.eye(self.size, dtype=np.float32)[after],
            "rewards": np.where(valid, RIGHT[contexts] == actions, np.nan),
            "terminated": ended & valid,
            "truncated": ~valid,
            "valid": valid,
        }

    def _contexts(self, numbers):
        return (np.arange(self.envs) * 3 + numbers * 5) % CONTEXTS

    def updated(self, metrics):
        self.reports.append({"update": self.update, "step": self.step, **metrics})

    def further_state(self):
        return {"numbers": list(self.numbers)}

    def restore_more(self, state, directory):
        self.numbers = state["numbers"]


@pytest.fixture
def config(tmp_path):
    """A small run: 4 environments, 6 steps, 2 x 3 optimizer steps in an update, checkpoints after 2, 4 and 5 of 5."""
    ppo = PpoConfig(num_steps=6, ppo_epoch=2, num_mini_batch=3, hidden=(8,))
    return PpoRunConfig(
        output=str(tmp_path / "run"), learning_rate=0.02, ppo=ppo, save_every=2, keep=9, tensorboard=False
    )


def train(config, kind=Bandit, *, say=print, **options):
    run = kind(config, **{"envs": 4, "updates": 5, "invalid": 0.2, **options})
    try:
        return run, run.take_steps(say)
    finally:
        run.close()


def weights(run):
    return {name: weight.numpy().tobytes() for name, weight in run.model.state_dict().items()}


def files(run):
    """The files of the last checkpoint, as bytes. state.json has the checksums of all others."""
    found = checkpoints(run.output)[-1]
    return {path.name: path.read_bytes() for path in found.iterdir() if path.name != "state.json"}


def learning(tmp_path, seed):
    ppo = PpoConfig(num_steps=16, ppo_epoch=4, num_mini_batch=2, entropy_coef=0.003)
    return PpoRunConfig(
        output=str(tmp_path / "bandit"), learning_rate=0.01, ppo=ppo, seed=seed, save_every=None, tensorboard=False
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_which_action_suits_which_context(tmp_path, seed):
    run, _ = train(learning(tmp_path, seed), envs=16, updates=14, invalid=0.05)
    assert run.rewards[0] < 0.5
    assert run.rewards[-1] >= 0.95
    assert (run.policy.greedy(np.eye(CONTEXTS, dtype=np.float32)) == RIGHT).all()
    assert run.reports[-1]["entropy"] < run.reports[0]["entropy"]


def test_with_the_sign_of_the_advantages_flipped_it_learns_to_avoid_the_right_action(tmp_path, monkeypatch):
    estimate = update_module.advantages
    monkeypatch.setattr(update_module, "advantages", lambda *given, **options: -estimate(*given, **options))
    run, _ = train(learning(tmp_path, 0), envs=16, updates=14, invalid=0.05)
    assert run.rewards[-1] < 0.1


def test_values_learn_to_predict_the_returns(tmp_path):
    class Paid(Bandit):
        """The reward depends on the context alone."""

        def _step(self, policy):
            step = super()._step(policy)
            return {**step, "rewards": step["observations"].argmax(axis=1) / CONTEXTS}

    config = learning(tmp_path, 0)
    run, _ = train(replace(config, ppo=replace(config.ppo, discount=0.0)), Paid, envs=16, updates=8, invalid=0.0)
    assert run.reports[0]["explained_variance"] < 0.2
    assert run.reports[-1]["explained_variance"] > 0.95


class Killed(BaseException):
    """The process is killed: nothing of brim handles it."""


class KillAt(Callback):
    def __init__(self, step):
        self.at = step

    def on_step(self, run, report):
        if report.step == self.at:
            raise Killed


class KilledInRollout(Bandit):
    kill_after = 0

    def collect(self, policy):
        if self.update == self.kill_after:
            self._step(policy)  # the environments have moved
            raise Killed
        return super().collect(policy)


@pytest.mark.parametrize("step", [1, 6, 13, 16, 25])
def test_killed_after_any_step_and_resumed_it_ends_with_the_same_weights(config, tmp_path, step):
    config = replace(config, ppo=replace(config.ppo, target_kl=None))
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))
    assert whole.step == 30
    with pytest.raises(Killed):
        train(config, callbacks=[KillAt(step)])
    resumed, _ = train(config)
    assert_equal_ends(resumed, whole)


@pytest.mark.parametrize("update", [0, 2, 3])
def test_killed_in_a_rollout_and_resumed_it_ends_with_the_same_weights(config, tmp_path, monkeypatch, update):
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))
    monkeypatch.setattr(KilledInRollout, "kill_after", update)
    with pytest.raises(Killed):
        train(config, KilledInRollout)
    resumed, _ = train(config)
    assert_equal_ends(resumed, whole)


def assert_equal_ends(resumed, whole):
    assert weights(resumed) == weights(whole)
    assert files(resumed) == files(whole)  # the moments of the optimizer too
    assert resumed.numbers == whole.numbers
    assert lines(resumed.output / "log.jsonl") == lines(whole.output / "log.jsonl")
    assert resumed.reports == whole.reports[-len(resumed.reports) :]


@pytest.mark.parametrize("step", [1, 6, 8, 11])
def test_asked_to_stop_it_ends_after_its_update_with_a_checkpoint_and_can_be_resumed(config, tmp_path, step):
    config = replace(config, save_every=None, ppo=replace(config.ppo, target_kl=None))
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))

    class Stop(Callback):
        def on_step(self, run, report):
            if report.step == step:
                run.stop()

    stopped, _ = train(config, callbacks=[Stop()])
    assert stopped.is_stopping
    assert (stopped.step, stopped.update) == (6, 1) if step <= 6 else (12, 2)
    assert [path.name for path in checkpoints(stopped.output)] == [f"checkpoint-{stopped.step:08d}"]
    resumed, _ = train(config)
    assert_equal_ends(resumed, whole)


@pytest.mark.parametrize("update", [0, 3])
def test_a_signal_in_a_rollout_discards_the_rollout_and_keeps_the_updates_before(config, tmp_path, update):
    config = replace(config, save_every=None)
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))
    begun = []

    class Signalled(Bandit):
        def collect(self, policy):
            begun.append(list(self.numbers))
            if self.update == update:
                self._step(policy)
                os.kill(os.getpid(), signal.SIGTERM)
            return super().collect(policy)

    run, _ = train(config, Signalled)
    assert run.is_stopping
    assert run.update == update
    state = read_checkpoint(checkpoints(run.output)[-1], format=run.format)
    assert state["update"] == update
    assert state["state"]["numbers"] == begun[-1] != run.numbers
    resumed, _ = train(config)
    assert_equal_ends(resumed, whole)


def test_an_error_in_a_rollout_keeps_the_updates_before_it(config, tmp_path):
    config = replace(config, save_every=None)
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))

    class Unreachable(Bandit):
        def collect(self, policy):
            if self.update == 3:
                self._step(policy)
                raise BrimError("no server answers")
            return super().collect(policy)

    with pytest.raises(BrimError, match="no server answers"):
        train(config, Unreachable)
    assert [path.name for path in checkpoints(Path(config.output))] == ["checkpoint-00000018"]
    resumed, _ = train(config)
    assert_equal_ends(resumed, whole)


def test_updated_is_called_after_the_last_step_and_before_its_point_and_its_checkpoint(config):
    seen = []

    class Watched(Bandit):
        def updated(self, metrics):
            seen.append(f"updated {self.update}")
            assert self.can_pause

        def logged(self, report):
            if self.can_pause:
                seen.append("logged")
            return super().logged(report)

    class Watch(Callback):
        def on_step(self, run, report):
            seen.append(report.step)

        def on_checkpoint(self, run, path):
            seen.append(path.name)

    config = replace(config, ppo=replace(config.ppo, ppo_epoch=1, num_mini_batch=2))
    train(config, Watched, updates=3, callbacks=[Watch()])
    assert seen == [
        *[1, "updated 1", "logged", 2],
        *[3, "updated 2", "logged", 4, "checkpoint-00000004"],
        *[5, "updated 3", "logged", 6, "checkpoint-00000006"],
    ]


def test_points_and_checkpoints_are_due_by_updates_and_the_learning_rate_too(config):
    config = replace(config, log_every=2, schedule="linear", warmup_steps=2, ppo=replace(config.ppo, target_kl=None))
    run, _ = train(config, updates=5)
    points = lines(run.output / "log.jsonl")
    assert [(point["step"], point["update"]) for point in points] == [(1, 0), (12, 2), (24, 4), (30, 5)]
    assert [path.name for path in checkpoints(run.output)] == [f"checkpoint-{step:08d}" for step in (12, 24, 30)]
    rates = [report["learning_rate"] for report in run.reports]
    assert rates == pytest.approx([0.01, 0.02, 0.02, 0.011, 0.002])
    assert points[1]["learning_rate"] == rates[1]
    assert {"policy_loss", "value_loss", "entropy", "kl", "clip_fraction"} <= points[0].keys()
    assert "passes" not in points[0]
    assert {"explained_variance", "passes", "policy_loss", "grad_norm", "loss"} <= points[1].keys()


def test_the_figures_of_an_update_are_means_over_its_steps(config):
    taken = []

    class Watch(Callback):
        def on_step(self, run, report):
            taken.append(report)

    run, _ = train(replace(config, ppo=replace(config.ppo, target_kl=None)), updates=2, callbacks=[Watch()])
    for number, report in enumerate(run.reports):
        steps = taken[6 * number : 6 * number + 6]
        for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction"):
            assert report[name] == pytest.approx(np.mean([step.metrics[name] for step in steps]))
        assert report["grad_norm"] == pytest.approx(np.mean([step.grad_norm for step in steps]))
        assert report["passes"] == 2.0


def test_an_update_ends_with_the_first_minibatch_whose_kl_divergence_is_too_large(config, tmp_path):
    far = replace(config, learning_rate=0.3, schedule="constant", warmup_steps=0)
    divergences = {}

    class Watch(Callback):
        def on_step(self, run, report):
            divergences.setdefault(report.epoch, []).append(report.metrics["kl"])

    run, _ = train(far, callbacks=[Watch()])
    assert any(len(found) < 6 for found in divergences.values())
    for found, report in zip(divergences.values(), run.reports, strict=True):
        assert all(kl <= 1.5 * 0.03 for kl in found[:-1])
        assert found[-1] > 1.5 * 0.03 or len(found) == 6
        assert report["passes"] == pytest.approx(len(found) / 3)
    without = replace(far, output=str(tmp_path / "without"), ppo=replace(far.ppo, target_kl=None))
    run, _ = train(without)
    assert [report["passes"] for report in run.reports] == [2.0] * 5


def test_an_update_without_a_valid_step_takes_none_and_counts(config):
    class Failing(Bandit):
        """Every step of the second and third rollout is invalid."""

        def collect(self, policy):
            self.invalid = 2.0 if self.update in (1, 2) else 0.0
            return super().collect(policy)

    config = replace(config, save_every=1, ppo=replace(config.ppo, target_kl=None))
    run, _ = train(config, Failing, updates=4)
    assert [(report["update"], report["step"], report["passes"]) for report in run.reports] == [
        *[(1, 6, 2.0), (2, 6, 0.0), (3, 6, 0.0), (4, 12, 2.0)]
    ]
    assert run.reports[1].keys() == {"update", "step", "passes", "learning_rate"}
    found = checkpoints(run.output)
    assert [path.name for path in found] == ["checkpoint-00000006", "checkpoint-00000012"]
    assert read_checkpoint(found[0], format=run.format)["update"] == 3


def test_a_run_in_which_nothing_was_valid_ends_with_its_first_weights(config):
    run, ends = train(config, invalid=2.0)
    assert (run.update, run.step, ends.count) == (5, 0, 0)
    again, _ = train(config, invalid=2.0)
    assert again.update == 5
    assert weights(again) == weights(run)


def test_fewer_samples_than_mini_batches_take_one_step_each(config):
    run, _ = train(replace(config, ppo=replace(config.ppo, target_kl=None)), invalid=0.92, updates=5)
    assert any(0 < report["step"] - before < 6 for report, before in after_each(run.reports))


def after_each(reports):
    return zip(reports, [0, *(report["step"] for report in reports)], strict=False)


def test_a_run_ends_with_the_update_that_reaches_max_steps(config):
    run, _ = train(replace(config, max_steps=8, ppo=replace(config.ppo, target_kl=None)))
    assert (run.step, run.update, run.is_stopping) == (12, 2, False)


def test_a_run_uses_one_thread_and_leaves_threads_and_torchs_generator_as_they_were(config):
    torch.set_num_threads(2)
    before, seen = torch.get_rng_state(), []

    class Watched(Bandit):
        def collect(self, policy):
            seen.append(torch.get_num_threads())
            return super().collect(policy)

    train(config, Watched, updates=2)
    assert (seen, torch.get_num_threads()) == ([1, 1], 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_num_threads(1)


def test_other_environments_than_those_of_the_checkpoint_are_refused_with_both_sizes(config):
    train(config)
    with pytest.raises(MismatchError, match=r"observation_size \(8 -> 9\)"):
        train(config, size=9)
    with pytest.raises(MismatchError, match=r"num_envs \(4 -> 5\)"):
        train(config, envs=5)
    with pytest.raises(MismatchError, match=r"hidden \(\[8\] -> \[8, 8\]\)"):
        train(replace(config, ppo=replace(config.ppo, hidden=(8, 8))))


def test_more_mini_batches_than_samples_leave_the_output_free(config):
    with pytest.raises(OptionError, match="num_mini_batch must be at most 24"):
        train(replace(config, ppo=replace(config.ppo, num_mini_batch=25)))
    assert not Path(config.output).exists()


def test_a_rollout_of_other_environments_is_refused(config):
    class Wrong(Bandit):
        def collect(self, policy):
            whole = super().collect(policy)
            return Experience(**{name: getattr(whole, name)[:, 1:] for name in Experience.__dataclass_fields__})

    with pytest.raises(DataError, match=r"shape \(steps, 4, 8\), got \(6, 3, 8\)"):
        train(config, Wrong)


def test_resumed_from_an_earlier_checkpoint_later_ones_are_renamed(config):
    whole, _ = train(config)
    first = checkpoints(whole.output)[0]

    class Earlier(Bandit):
        def restore(self, checkpoint):
            super().restore(first)

    said = []
    run, _ = train(config, Earlier, say=said.append)
    assert weights(run) == weights(whole)
    assert [message.split(" to ")[0] for message in said] == ["renamed a newer checkpoint"] * 2


@dataclass(frozen=True)
class Report:
    update: int
    reward: float
    chosen: dict[str, tuple[int, float]]


def read(values):
    return Report(**{**values, "chosen": {name: tuple(pair) for name, pair in values["chosen"].items()}})


def test_a_history_keeps_the_reports_before_a_checkpoint_and_cuts_off_the_others(tmp_path):
    path = tmp_path / "updates.jsonl"
    reports = [Report(number, number / 2, {"shorten": (number, 0.5)}) for number in range(4)]
    history = History(path, 0, read=read)
    for report in reports:
        history.add(report)
    path.write_bytes(path.read_bytes()[:-9])  # a kill cut the last line
    assert History(path, 3, read=read).reports == reports[:3]
    resumed = History(path, 2, read=read)
    assert [json.loads(line)["update"] for line in path.read_bytes().splitlines()] == [0, 1]
    resumed.add(reports[3])
    assert resumed.reports == History(path, 9, read=read).reports == [*reports[:2], reports[3]]
    path.write_bytes(b'{"update": 0}\n')
    with pytest.raises(DamagedError, match=r"updates.jsonl:1 is damaged; restore that line, or remove the file"):
        History(path, 1, read=read)
    assert History(path, 0, read=read).reports == []
