"""A trainer of one's own: an objective, where batches come from, what a checkpoint holds. `Run` does the rest."""

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.worlds import lines
from torch import nn

from brim.core.errors import BrimError
from brim.plan.distributed import DistributedConfig
from brim.train.callbacks import Callback
from brim.train.checkpoint import checkpoints, read_checkpoint
from brim.train.config import RunConfig
from brim.train.objective import Objective
from brim.train.optimizer import OPTIMIZER, load_moments, moments, restore_moments, save_moments
from brim.train.ranks import Ranks
from brim.train.run import Run


@dataclass(frozen=True)
class Points:
    """A microbatch: points of the line y = 3x + 1."""

    x: torch.Tensor
    epoch: int
    index: int
    is_null: bool = False

    @property
    def ids(self):
        return [f"x={x:.2f}" for x in self.x.tolist()]

    @property
    def num_loss_tokens(self):
        return len(self.x)

    num_tokens = slots = num_loss_tokens

    def to(self, device, *, non_blocking=False):
        return self


class SquaredError(Objective):
    def forward(self, batch: Points) -> torch.Tensor:
        self.error = self.model(batch.x[:, None])[:, 0] - (3 * batch.x + 1)
        return (self.error**2).sum()

    def metrics(self) -> dict[str, float]:
        return {"worst": float(self.error.detach().abs().max())}


class LineRun(Run[RunConfig]):
    """Fit a line: the smallest trainer there is."""

    format = "test.line/1"

    def __init__(self, config: RunConfig, callbacks=()):
        super().__init__(config, Ranks(DistributedConfig(), torch.device("cpu")), callbacks)
        found = checkpoints(self.output)
        with self.claimed(config.to_dict(), new=not found):
            torch.manual_seed(config.seed)
            self.model = nn.Linear(1, 1)
            self.attach(SquaredError(self.model))
            self.schedule(config.max_steps)
            if found:
                self.model.load_state_dict(load_file(found[-1] / "line.safetensors"))
                restore_moments(self.stepper.optimizer, self.stepper.weights, load_moments(found[-1] / OPTIMIZER))
                self.resumed_at(read_checkpoint(found[-1], format=self.format)["step"])

    def batches(self) -> Iterator[list[Points]]:
        for step in range(self.step, self.steps):
            x = torch.linspace(-1, 1, 8) + step / 100
            yield [Points(half, epoch=0, index=2 * step + number) for number, half in enumerate(x.chunk(2))]

    def facts(self):
        return {"step": self.step}

    def checkpoint_files(self):
        def write(directory):
            save_file(self.model.state_dict(), directory / "line.safetensors")
            save_moments(directory / OPTIMIZER, moments(self.stepper.optimizer, self.stepper.weights))

        return write


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        output=str(tmp_path / "line"), learning_rate=0.1, max_steps=60, save_every=25, log_every=20, tensorboard=False
    )


def train(config, callbacks=()):
    run = LineRun(config, callbacks)
    try:
        return run, run.take_steps(print)
    finally:
        run.close()


def curves(config):
    return lines(Path(config.output) / "log.jsonl")


def test_a_trainer_of_thirty_lines_learns_logs_its_metrics_and_saves(config):
    run, ends = train(config)
    assert run.model.weight.item() == pytest.approx(3, abs=0.2)
    assert ends.last < ends.first / 100
    assert [line["step"] for line in curves(config)] == [1, 20, 40, 60]
    assert all(line["worst"] > 0 for line in curves(config))
    assert [path.name for path in checkpoints(run.output)] == ["checkpoint-00000050", "checkpoint-00000060"]


def test_stopped_by_a_callback_and_resumed_it_ends_with_the_same_weights(config, tmp_path):
    whole, _ = train(replace(config, output=str(tmp_path / "whole")))

    class StopAt30(Callback):
        def on_step(self, run, report):
            if report.step == 30:
                run.stop()

    stopped, _ = train(config, [StopAt30()])
    assert stopped.is_stopping
    assert stopped.step == 31  # after the next step, as all ranks agree on it there
    resumed, ends = train(config)
    assert ends.count == 29
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert torch.equal(resumed.model.bias, whole.model.bias)


def test_a_signal_ends_a_run_with_a_checkpoint(config):
    class Kill(Callback):
        def on_step(self, run, report):
            if report.step == 10:
                os.kill(os.getpid(), signal.SIGTERM)

    run, _ = train(config, [Kill()])
    assert run.is_stopping
    assert checkpoints(run.output)[-1].name == "checkpoint-00000011"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_callbacks_are_called_in_order_and_told_of_every_checkpoint(config):
    seen = []

    class Watch(Callback):
        def on_begin(self, run):
            seen.append("begin")

        def on_step(self, run, report):
            assert report.metrics["worst"] >= 0
            seen.append(report.step)

        def on_checkpoint(self, run, path):
            seen.append(path.name)

        def on_end(self, run, *, stopped):
            seen.append(f"end {stopped}")

    train(replace(config, max_steps=3, save_every=2), [Watch()])
    assert seen == ["begin", 1, 2, "checkpoint-00000002", 3, "checkpoint-00000003", "end False"]


def test_a_loss_that_is_not_finite_names_the_step_and_the_samples(config, monkeypatch):
    monkeypatch.setattr(SquaredError, "forward", lambda self, batch: self.model(batch.x[:, None]).sum() * math.nan)
    with pytest.raises(
        BrimError, match=r"the loss is not finite in step 1; the samples are x=-1.00, .*; lower the learning rate"
    ):
        train(config)
