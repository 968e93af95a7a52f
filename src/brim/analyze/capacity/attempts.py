"""Attempts that may run out of memory, made in a child process that may be killed for it.

On a CPU, running out of memory means that the kernel kills some process. So the work is done in a child, a plain
interpreter at the other end of a socket (`brim.core.child`), which raises its own OOM score so that it is killed first.
The parent polls the child's resident memory every 20 ms and kills it at a limit, long before the machine itself runs
out. A child that dies is one failed attempt; if something else killed it, far below the limit, the attempt is retried
once. Any other error in the child is raised in the parent.

After a failure the next attempt gets a new child, because measurements of one that ran out of memory are not trusted.
A pitfall: memory that an allocator keeps from a larger attempt would count against a smaller one in the same child. It
does not happen in a search that never tries a size above a failure, because it asks one child for growing sizes only.
"""

import gc
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol

from brim.analyze.capacity.memory import is_out_of_memory, memory_available, peak_memory, resident_memory
from brim.analyze.capacity.search import Trial, Why, bytes_text, seconds_text
from brim.core import errors
from brim.core.child import Child, ChildEndedError
from brim.core.errors import BrimError, OptionError
from brim.data.pool import available_cores

SHARE = 0.9
"""Share of the available memory that an attempt may take by default."""
LOOK = 0.02
"""Seconds between two polls of the child's memory."""
GETTING_READY = 600.0
"""Upper limit, in seconds, of building the work in a new child: a large model takes long to load."""


class Work(Protocol):
    """The work that is attempted. It is built once in every child."""

    def prepare(self, size: int) -> Callable[[], object]:
        """Prepare steps of this size. Return a function that takes one step, and returns when the step is complete."""
        ...

    def peak(self) -> int | None:
        """Return the peak of a device's memory since `prepare`, in bytes; None if the process's own memory counts."""
        ...

    def facts(self) -> dict[str, Any]:
        """Describe what is measured, in values that JSON can represent."""
        ...


class Attempts:
    """`attempts(size)` tries a size in a child process and returns a `Trial`.

    Use it in a `with` block: at its end no process is left. A size is too slow if the median of its timed steps takes
    more than `max_seconds`, or if the whole attempt takes longer than `patience` seconds (default: 5 * `max_seconds` +
    5). The first step is a warm-up and not timed. At most `steps` are timed: once they have taken more than
    `max_seconds` in total, no further one begins.
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
        """Check the options; no process is started before the block begins.

        `make` is pickled and called in the child. `memory` is in bytes; by default 90% of what is available now.

        Raises:
            OptionError: A number is out of range.
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
        """The facts that the work reports, the number of cores, and the memory limit; empty until the block begins."""
        self._order = (make, steps, max_seconds)
        self._patience = 5 * max_seconds + 5 if patience is None else patience
        self._watched = self.memory
        self._child: _Child | None = None

    def __enter__(self) -> "Attempts":
        """Start the first child and build the work in it.

        Raises:
            OptionError: Building the work already exceeds the memory limit, or fails for lack of memory.
            BrimError: `make` failed, or the child died or was not ready in time.
        """
        self._ready_child()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def __call__(self, size: int) -> Trial:
        """Try a size in the child, and once more if the child died with less than half of the memory limit in use.

        Raises:
            BrimError: The work failed for another reason than a lack of memory or time.
        """
        trial = self._attempt(size)
        if trial.why == "killed" and (trial.peak or 0) < self._watched // 2:  # not by the memory limit
            trial = self._attempt(size)
        return trial

    def _attempt(self, size: int) -> Trial:
        try:
            child = self._ready_child()
            child.ask(size)
            answer = child.answer(self._watched, self._patience)
            trial = self._trial(size, answer, child.seen)
        except BaseException:  # Ctrl-C too: no process may be left
            self._stop()
            raise
        if not trial.fits:
            self._stop()
        return trial

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is no child."""
        return None if self._child is None else self._child.process.pid

    def _trial(self, size: int, answer: tuple[Any, ...], seen: int) -> Trial:
        if answer[0] == "failed":
            _, why, detail = answer
            return Trial(size=size, why=why, detail=detail, peak=seen or None)
        seconds, peak, resident = answer[1:]
        if resident > self._watched:  # too briefly for the parent's polls to see it
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
            # With a device, `memory` limits the device itself; the host must only be kept from running out.
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
    """The parent's side of a child whose memory and time are watched while the parent waits for an answer."""

    def __init__(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the child runs
        self.seen = 0
        super().__init__(serve, stderr=self.said, dies_with_parent=True)

    def ask(self, message: Any) -> None:
        """Send a message. If the child is dead, `answer` reports it."""
        self.seen = 0
        with suppress(ChildEndedError):
            self.send(message)

    def answer(self, memory: int, patience: float) -> tuple[Any, ...]:
        """Return what the child sends, or ("failed", why, detail) if it ended, or was killed for its memory or time.

        `memory` is the limit in bytes, `patience` in seconds.

        Raises:
            BrimError: The work raised an exception in the child.
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
    """Return an exception of the child: an error of `brim.core.errors` as that class, any other one as a BrimError with
    the child's traceback as a note.
    """
    ours = getattr(errors, kind, None)
    if isinstance(ours, type) and issubclass(ours, BrimError):
        return ours(message)
    error = BrimError(f"the work failed with {kind}: {' '.join(message.split())[:300]}")
    error.add_note(trace)
    return error


def serve(channel: "Connection[Any, Any]") -> None:
    """Run the child's side: receive the order and build the work, then try each size received and send the outcome."""
    with suppress(OSError):
        # When the kernel runs out of memory, it must kill this process first.
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
    except Exception as error:  # of any kind: it is sent to the parent
        if is_out_of_memory(error):
            return ("failed", "out of memory", str(error).strip().split("\n")[0][:200])
        return ("error", type(error).__name__, str(error), traceback.format_exc())


def _measured(work: Work, size: int, steps: int, max_seconds: float) -> tuple[Any, ...]:
    """Return ("done", median seconds of a step, peak bytes of the device or None, peak resident bytes)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    step = work.prepare(size)
    step()  # warm-up: what is done only once is not timed
    times: list[float] = []
    while len(times) < steps and sum(times) <= max_seconds:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return ("done", median(times), work.peak(), peak_memory())
