"""Callbacks: functions of a program that are called during a run.

A callback is an object with any of the methods of `Callback`; subclass it and override what you need. Callbacks run on
the main rank, in the order they were given, between steps: the run waits for them. An error in a callback ends the run.

    class StopAtLoss(Callback):
        def on_step(self, run, report):
            if report.loss < 0.1:
                run.stop()

Nothing here imports torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from brim.train.report import StepReport


class Running(Protocol):
    """The part of a run that callbacks may use."""

    step: int
    steps: int
    output: Path
    model: Any

    def stop(self) -> None:
        """End the run after its next step, with a checkpoint, as SIGTERM does."""
        ...


class Callback:
    """Does nothing. Override the methods that you need."""

    def on_begin(self, run: Running) -> None:
        """Called before the first step of this process; `run.step` is above 0 if the run was resumed."""

    def on_step(self, run: Running, report: StepReport) -> None:
        """Called after every optimizer step, when it has been evaluated and logged."""

    def on_checkpoint(self, run: Running, path: Path) -> None:
        """Called when a checkpoint has been written."""

    def on_end(self, run: Running, *, stopped: bool) -> None:
        """Called after the last step and its checkpoint. `stopped`: the run was ended early and can be resumed."""


class OnStep(Callback):
    """Calls a function with every report."""

    def __init__(self, function: Callable[[StepReport], None]) -> None:
        self._function = function

    def on_step(self, run: Running, report: StepReport) -> None:
        self._function(report)
