"""Texts that share a request for embeddings.

Texts wait for each other for a few milliseconds, are sorted by length, and are sent in requests of at most `most`. Each
text is a call of its own: cached alone, joined with equal ones, and failed alone. When a server refuses a whole request
because of one text, the request is halved until the text is found, so the others are not lost.
"""

import asyncio
from collections.abc import Sequence

from brim.llm.call import Answer, Call, Reply
from brim.llm.engine.engine import Engine
from brim.llm.engine.job import Done, Job
from brim.llm.failures import BadReply, Failure, ModelMissing, Rejected, ServerFailed

OF_ONE_TEXT = (400, 413, 422)
"""HTTP statuses of a refusal that may be due to one text of several."""


class Coalescer:
    """Collects texts and asks for their embeddings together."""

    def __init__(self, engine: Engine, *, most: int, wait: float) -> None:
        """
        Args:
            most: Upper limit of the texts in one request.
            wait: Seconds that a text waits for others.
        """
        self.batches = 0
        """Number of requests that were made, halves included."""
        self._engine = engine
        self._most = most
        self._wait = wait
        self._waiting: dict[str, list[Job]] = {}
        self._timer: asyncio.Handle | None = None
        self._soon = False

    def submit(self, text: str, model: str, done: Done) -> Job:
        """Take a text. `done` is called with its reply or its failure exactly once."""
        job = self._engine.submit_part(Call(kind="embed", model=model, inputs=(text,)), done)
        if job.ended or job.leader is not None:
            return job
        waiting = self._waiting.setdefault(model, [])
        waiting.append(job)
        loop = asyncio.get_running_loop()
        if len(waiting) >= self._most and not self._soon:
            # At the end of this turn of the loop: all texts that are submitted together are sorted together.
            self._soon = True
            self._stop_timer()
            self._timer = loop.call_soon(self._flush)
        elif self._timer is None:
            self._timer = loop.call_later(self._wait, self._flush)
        return job

    def _flush(self) -> None:
        self._stop_timer()
        self._soon = False
        waiting, self._waiting = self._waiting, {}
        for jobs in waiting.values():
            jobs.sort(key=lambda job: len(job.call.inputs[0]))
            for at in range(0, len(jobs), self._most):
                self._ask(jobs[at : at + self._most])

    def _ask(self, jobs: Sequence[Job]) -> None:
        jobs = [job for job in jobs if not job.ended]
        if not jobs:
            return
        self.batches += 1
        inputs = tuple(job.call.inputs[0] for job in jobs)
        answers: list[Answer] = []

        def done(result: Reply | Failure) -> None:
            if isinstance(result, Reply):
                self._share(jobs, answers[0], result)
            else:
                self._fail(jobs, result)

        self._engine.submit_whole(Call(kind="embed", model=jobs[0].call.model, inputs=inputs), done, answers.append)

    def _share(self, jobs: Sequence[Job], answer: Answer, reply: Reply) -> None:
        vectors = answer.vectors
        if vectors is None or len(vectors) != len(jobs):
            found = 0 if vectors is None else len(vectors)
            self._fail(jobs, BadReply(f"{found} embeddings for {len(jobs)} texts", server=reply.server))
            return
        for at, job in enumerate(jobs):
            # A copy: a vector must not keep all others of its request in memory.
            self._engine.finish(job, Answer(vectors=vectors[at : at + 1].copy(), model=answer.model), reply)

    def _fail(self, jobs: Sequence[Job], failure: Failure) -> None:
        if len(jobs) > 1 and _may_be_one_text(failure):
            middle = len(jobs) // 2
            self._ask(jobs[:middle])
            self._ask(jobs[middle:])
            return
        for job in jobs:
            self._engine.fail(job, failure)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _may_be_one_text(failure: Failure) -> bool:
    if isinstance(failure, Rejected):
        return not isinstance(failure, ModelMissing) and failure.status in OF_ONE_TEXT
    return isinstance(failure, BadReply | ServerFailed)
