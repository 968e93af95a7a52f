"""Calls that wait to be sent: new ones, retries that are due, and retries that are not.

Each kind of call and each model has a queue of its own, so that calls for a model which only a busy server has do not
hold up the others. Retries go first: their callers have waited longest. Within a queue, calls with a lower rank go
first, and those of one rank in the order of their submission.
"""

import heapq
from collections.abc import Iterator

from brim.llm.engine.job import Job, Queue

RETRIES_AT_ONCE = 20.0
"""Retries that are allowed before anything was answered."""
RETRIES_KEPT = 200.0
"""Retries that can be saved up."""
RETRIES_A_SECOND = 2.0
"""Retries that are always allowed, so that the last calls of a run do not wait forever."""
WHOLE = 1.0 - 1e-6
"""From this on, a share counts as one retry: sums of shares are rounded."""


class CallQueue:
    """Calls of one kind and model, by rank and then by number."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Job]:
        return (job for _, _, job in self._heap)

    @property
    def first(self) -> Job:
        return self._heap[0][2]

    def add(self, job: Job) -> None:
        heapq.heappush(self._heap, (job.rank, job.number, job))

    def pop(self) -> Job:
        """Remove the first call and return it."""
        return heapq.heappop(self._heap)[2]


class Waiting:
    """The calls of an engine that are not in flight."""

    def __init__(self) -> None:
        self.new: dict[Queue, CallQueue] = {}
        self.retries: dict[Queue, CallQueue] = {}
        self._delayed: list[tuple[float, int, Job]] = []
        """(due, number, call), as a heap."""

    def __bool__(self) -> bool:
        return bool(self.new or self.retries or self._delayed)

    @property
    def is_due(self) -> bool:
        """True if a call could be sent at once."""
        return bool(self.new or self.retries)

    def add(self, job: Job) -> None:
        """Add a call that was not sent yet."""
        _append(self.new, job)

    def add_retry(self, job: Job, due: float | None = None) -> None:
        """Add a call that was sent and failed; it is not sent before `due`."""
        if due is None:
            _append(self.retries, job)
        else:
            heapq.heappush(self._delayed, (due, job.number, job))

    def collect_due(self, now: float) -> None:
        """Move the retries that are due to those that can be sent."""
        while self._delayed and self._delayed[0][0] <= now:
            _append(self.retries, heapq.heappop(self._delayed)[2])

    @property
    def next_due(self) -> float:
        """Time at which the next retry is due."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def remove_all(self) -> Iterator[Job]:
        """Empty all queues."""
        jobs = [job for queues in (self.retries, self.new) for queue in queues.values() for job in queue]
        jobs += [job for _, _, job in self._delayed]
        self.new.clear()
        self.retries.clear()
        self._delayed.clear()
        return iter(jobs)


def _append(queues: dict[Queue, CallQueue], job: Job) -> None:
    queue = queues.get(job.queue)
    if queue is None:
        queue = queues[job.queue] = CallQueue()
    queue.add(job)


class RetryBudget:
    """An upper limit of the retries, as a share of the answers: servers in trouble are not asked ever more.

    Example:
        >>> budget = RetryBudget(0.2, now=0.0)
        >>> taken = [budget.take() for _ in range(21)]
        >>> taken.count(True), budget.wait(now=0.0), budget.wait(now=0.5)
        (20, 0.5, 0.0)
    """

    def __init__(self, share: float, *, now: float) -> None:
        self._share = share
        self._left = RETRIES_AT_ONCE
        self._at = now

    def answered(self) -> None:
        """Note an answer, which allows a share of a retry."""
        self._left = min(self._left + self._share, RETRIES_KEPT)

    def wait(self, now: float) -> float:
        """Return the seconds until a retry is allowed; 0 if it is allowed now."""
        if self._left < RETRIES_AT_ONCE:
            self._left = min(self._left + (now - self._at) * RETRIES_A_SECOND, RETRIES_AT_ONCE)
        self._at = now
        return 0.0 if self._left >= WHOLE else (1.0 - self._left) / RETRIES_A_SECOND

    def take(self) -> bool:
        """Take one retry, if one is allowed."""
        if self._left < WHOLE:
            return False
        self._left -= 1.0
        return True
