"""Ctrl-C held back while a library must not see it."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Let Ctrl-C take effect when the block ends.

    This is for libraries that lose an interrupt, or that it leaves in a state in which they cannot be closed.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if came:
        previous(*came[0])
