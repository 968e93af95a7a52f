"""Deadlines of calls: a heap that does not grow with the calls that have ended."""

import heapq
from collections.abc import Iterator

from brim.llm.engine.job import Job

SLACK = 1024
"""Ended calls that may stay in the heap."""


class Deadlines:
    """The calls that have a deadline, ordered by it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []

    def add(self, job: Job, deadline: float, *, open_calls: int) -> None:
        """Set the deadline of a call, unless it has an earlier one.

        Most calls end long before their deadline. When more than half of the heap are calls that have ended, it is made
        anew without them.
        """
        if job.deadline is not None and job.deadline <= deadline:
            return
        job.deadline = deadline
        heapq.heappush(self._heap, (deadline, job.number, job))
        if len(self._heap) > 2 * open_calls + SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].ended and entry[0] == entry[2].deadline]
            heapq.heapify(self._heap)

    def expired(self, now: float) -> Iterator[Job]:
        """Remove and yield the calls whose deadline has come."""
        while self._heap and self._heap[0][0] <= now:
            deadline, _, job = heapq.heappop(self._heap)
            if not job.ended and job.deadline == deadline:
                yield job

    @property
    def next(self) -> float:
        """The next deadline of an open call."""
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")
