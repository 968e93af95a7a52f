"""Ending a run early: SIGTERM, the first Ctrl-C, or a callback ask for it, and the run stops after its next step.

Nothing here imports torch.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """A flag that is set when a signal or a caller asks the run to stop."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    @contextmanager
    def on_signals(self, say: Callable[[str], None]) -> Generator[None, None, None]:
        """Inside, SIGTERM and Ctrl-C set the request. A second Ctrl-C interrupts at once, as Python does."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.is_set:
                signal.default_int_handler(number, frame)
            self.set()
            say(f"{signal.Signals(number).name}: stopping soon, with a checkpoint")

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:  # not the main thread, which alone can handle signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
