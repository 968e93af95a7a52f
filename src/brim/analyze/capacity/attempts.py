"""Attempts that may run out of memory, made by a process that may die of it.

On a CPU, running out of memory means that the kernel kills somebody. So the work is done in a child, a plain
interpreter at the other end of a socket (`brim.core.child`), which offers itself to the kernel first; and the parent
looks at the child's resident memory every 20 ms and ends it at a limit, long before the machine is in trouble. A dead
child is one failed attempt; one that somebody else ended, long before the limit, gets a second one. Something else
going wrong in the child is an error here.

After a failure the next attempt gets a new child, because one that ran out of memory is not trusted to measure. What
follows, and what a reader would get wrong: a search that never goes above a failure asks one child for growing sizes
only, so what an allocator kept of an earlier attempt does not count against a smaller one.
"""

import gc
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol

from brim.analyze.capacity.memory import memory_available, peak_memory, resident_memory
from brim.analyze.capacity.search import Trial, Why, bytes_text, seconds_text
from brim.core import errors
from brim.core.child import Child, ChildEndedError
from brim.core.errors import BrimError, OptionError
from brim.data.pool import available_cores

SHARE = 0.9
"""Of the memory that is available, how much an attempt may take unless told."""
LOOK = 0.02
"""Seconds between two looks at the child's memory."""
GETTING_READY = 600.0
"""Seconds until a child must have built what it works with: a large model takes its time."""
SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
"""In what a RuntimeError says when memory is what it lacks."""


class Work(Protocol):
    """What is attempted. It is made once in every child."""

    def prepare(self, size: int) -> Callable[[], object]:
        """Whatever steps of this size need; what comes back takes one step, and has taken it when it returns."""
        ...

    def peak(self) -> int | None:
        """The most bytes of a device's memory since `prepare`; None if the memory that counts is the process's own."""
        ...

    def facts(self) -> dict[str, Any]:
        """What will be measured, as values that JSON has."""
        ...


class Attempts:
    """`attempts(size)` tries a size in a child and says how it went. Use it in a `with` block: at its end no process is
    left.

    A size is too slow if the median of its steps takes more than `max_seconds`, or if all of an attempt takes longer
    than `patience`. The first step is not timed. Of `steps` timed ones those are left out that would begin after
    `max_seconds` of them.
    """

    def __init__(
        self,
        make: Callable[[], Work],
        *,
        memory: int | None = None,
        max_seconds: float = 10.0,
        steps: int = 3,
        patience: float | None = None,
    ) -> None:
        """`make` is pickled and called in the child. `memory` is in bytes; by default 90% of what is available now.

        Raises:
            OptionError: A number cannot work.
        """
        if memory is not None and memory < 1:
            raise OptionError(f"memory must be at least 1 byte, got {memory}")
        if not 0 < max_seconds < math.inf:
            raise OptionError(f"max_seconds must be above 0 and finite, got {max_seconds}")
        if steps < 1:
            raise OptionError(f"steps must be at least 1, got {steps}")
        self._host = int(SHARE * memory_available())
        self.memory = self._host if memory is None else memory
        self.facts: dict[str, Any] = {}
        """What the child says of its work, and the machine; empty until the block begins."""
        self._order = (make, steps, max_seconds)
        self._patience = 5 * max_seconds + 5 if patience is None else patience
        self._watched = self.memory
        self._child: _Child | None = None

    def __enter__(self) -> "Attempts":
        """
        Raises:
            OptionError: What is needed before the first attempt takes more memory than there may be.
            BrimError: What `make` raised, or that the child died.
        """
        self._ready_child()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def __call__(self, size: int) -> Trial:
        """
        Raises:
            BrimError: The work failed, and not for want of memory or time.
        """
        trial = self._attempt(size)
        if trial.why == "killed" and (trial.peak or 0) < self._watched // 2:  # for some reason that is not ours
            trial = self._attempt(size)
        return trial

    def _attempt(self, size: int) -> Trial:
        try:
            child = self._ready_child()
            child.ask(size)
            answer = child.answer(self._watched, self._patience)
            trial = self._trial(size, answer, child.seen)
        except BaseException:  # Ctrl-C too: no process is left, whoever called
            self._stop()
            raise
        if not trial.fits:
            self._stop()
        return trial

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return None if self._child is None else self._child.process.pid

    def _trial(self, size: int, answer: tuple[Any, ...], seen: int) -> Trial:
        if answer[0] == "failed":
            _, why, detail = answer
            return Trial(size=size, why=why, detail=detail, peak=seen or None)
        seconds, peak, resident = answer[1:]
        if resident > self._watched:  # for too short a moment for the parent to see
            return Trial(size=size, why="out of memory", detail=_above(self._watched), seconds=seconds, peak=resident)
        peak = resident if peak is None else peak
        if seconds > self._order[2]:
            return Trial(
                size=size, why="too slow", detail=f"{seconds_text(seconds)} s a step", seconds=seconds, peak=peak
            )
        return Trial(size=size, seconds=seconds, peak=peak)

    def _ready_child(self) -> "_Child":
        if self._child is not None:
            return self._child
        self._child = _Child()
        try:
            self._child.ask(self._order)
            answer = self._child.answer(max(self._host, self.memory), GETTING_READY)
            if answer[0] == "failed":
                raise self._never_ready(*answer[1:])
            _, facts, device, resident = answer
            # A device keeps to its own limit, and the host's memory is only kept from running out.
            self._watched = self._host if device else self.memory
            if resident > self._watched:
                raise self._never_ready("out of memory", f"{bytes_text(resident)} are in use by then")
        except BaseException:  # as above
            self._stop()
            raise
        self.facts = {"cores": available_cores(), "memory_limit": self.memory, **facts}
        return self._child

    def _never_ready(self, why: Why, detail: str) -> BrimError:
        if why == "out of memory":
            limit = bytes_text(self.memory)
            return OptionError(
                f"{limit} of memory are too little to get ready for the first attempt ({detail}); allow more"
            )
        said = self._child.last_words() if self._child is not None else ""
        return BrimError(f"the process that makes the attempts did not get ready: {why}, {detail}{said}")

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


class _Child(Child):
    """The parent's side: a child that is watched while it works."""

    def __init__(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the child
        self.seen = 0
        super().__init__(serve, stderr=self.said, dies_with_parent=True)

    def ask(self, message: Any) -> None:
        """Send a message. If the child is dead, the answer will say so."""
        self.seen = 0
        with suppress(ChildEndedError):
            self.send(message)

    def answer(self, memory: int, patience: float) -> tuple[Any, ...]:
        """What the child sends, or ("failed", why, detail) if it had to be ended or ended itself.

        Raises:
            BrimError: What went wrong in the child.
        """
        deadline = time.monotonic() + patience
        while not self.channel.poll(LOOK) and self.process.poll() is None:
            self.seen = max(self.seen, resident_memory(self.process.pid))
            if self.seen > memory:
                self.process.kill()
                return ("failed", "out of memory", _above(memory))
            if time.monotonic() > deadline:
                self.process.kill()
                return ("failed", "too slow", f"no answer after {patience:.0f} s")
        try:
            answer = self.receive()
        except ChildEndedError as error:
            return ("failed", "killed", str(error) if error.signal is None else f"by {error.signal}")
        if answer[0] == "error":
            raise _raised(*answer[1:])
        return answer

    def last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()[:300]})" if lines else ""

    def stop(self) -> None:
        super().stop()
        self.said.close()


def _above(memory: int) -> str:
    return f"above {bytes_text(memory)}"


def _raised(kind: str, message: str, trace: str) -> BrimError:
    """One of ours as it was; any other with where it came from, for whoever sees a traceback."""
    ours = getattr(errors, kind, None)
    if isinstance(ours, type) and issubclass(ours, BrimError):
        return ours(message)
    error = BrimError(f"the work failed with {kind}: {' '.join(message.split())[:300]}")
    error.add_note(trace)
    return error


def serve(channel: "Connection[Any, Any]") -> None:
    """Do the child's side: the order first, then sizes, each answered with how it went."""
    with suppress(OSError):
        # When the kernel needs memory, it is to end this process first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    make, steps, max_seconds = channel.recv()
    made: list[Work] = []

    def get_ready() -> tuple[Any, ...]:
        made.append(make())
        return ("ready", made[0].facts(), made[0].peak() is not None, peak_memory())

    channel.send(_answer(get_ready))
    while made:
        size = channel.recv()
        channel.send(_answer(partial(_measured, made[0], size, steps, max_seconds)))
        gc.collect()


def _answer(act: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    try:
        return act()
    except Exception as error:  # whatever it is, the parent is to hear of it
        if _is_memory(error):
            return ("failed", "out of memory", str(error).strip().split("\n")[0][:200])
        return ("error", type(error).__name__, str(error), traceback.format_exc())


def _is_memory(error: Exception) -> bool:
    """By name and text: torch is not imported for the sake of its exceptions."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or (isinstance(error, OSError) and error.errno == ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def _measured(work: Work, size: int, steps: int, max_seconds: float) -> tuple[Any, ...]:
    """("done", seconds of a step, the device's peak or None, the most that was resident)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    step = work.prepare(size)
    step()  # whatever is done once is done now
    times: list[float] = []
    while len(times) < steps and sum(times) <= max_seconds:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return ("done", median(times), work.peak(), peak_memory())
