"""The end of a call: replies, failures, and the lines of a trace about them."""

import asyncio
from typing import Any

from brim.llm.call import Answer, Reply
from brim.llm.engine.job import Attempt, Job
from brim.llm.engine.server import ServerState
from brim.llm.failures import Failure, ServerFailed, TimedOut


def outcome_of(attempt: Attempt, task: "asyncio.Task[Answer]", now: float) -> Answer | Failure | None:
    """Return what a request ended with; None if it was cancelled because it is not needed any more."""
    if task.cancelled():
        return TimedOut(f"no answer after {now - attempt.began:.1f} s") if attempt.expired else None
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, Failure):
        return error
    # A mistake in an endpoint: it must not cost the call its end.
    failure = ServerFailed(f"the request ended in {type(error).__name__}, which an endpoint must not raise")
    failure.__cause__ = error
    return failure


def reply_of(
    job: Job,
    answer: Answer,
    now: float,
    *,
    server: ServerState | None = None,
    latency: float = 0.0,
    cached: bool = False,
) -> Reply:
    """Return the reply that an answer gives."""
    vector = answer.vectors[0] if answer.vectors is not None and len(answer.vectors) == 1 else None
    return Reply(
        text=answer.text,
        vector=vector,
        model=answer.model,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        logprobs=answer.logprobs,
        server="" if server is None else server.name,
        attempts=job.attempts,
        seconds=now - job.submitted,
        latency=latency,
        queue_seconds=answer.queue_seconds,
        cached=cached,
        hedged=job.hedged,
    )


def given_up(job: Job, failure: Failure, now: float) -> Failure:
    """Return a failure of the same type that belongs to this call alone."""
    mine = type(failure)(
        failure.message,
        server=failure.server,
        status=failure.status,
        retry_after=failure.retry_after,
        attempts=job.attempts,
        seconds=now - job.submitted,
    )
    mine.__cause__ = failure.__cause__
    return mine


def too_late(job: Job, now: float) -> Failure:
    """Return the failure of a call whose deadline has come."""
    if job.first_sent is None:
        return TimedOut("the deadline came before a server was free")
    message = f"no answer within {now - job.first_sent:.1f} s"
    if job.failure is None:
        server = job.running[-1].server.name if job.running else ""
        return TimedOut(message, server=server)
    return TimedOut(f"{message}; the last attempt: {job.failure.message}", server=job.failure.server)


def attempt_facts(attempt: Attempt, began: float, now: float, failure: Failure | None = None) -> dict[str, Any]:
    """Return the line of a trace about a request that has ended. Times count from `began`, the start of the engine."""
    job = attempt.job
    facts: dict[str, Any] = {
        "event": "answered" if failure is None else "failed",
        "at": round(now - began, 6),
        "call": job.number,
        "attempt": job.attempts,
        "server": attempt.server.name,
        "kind": job.call.kind,
        "model": job.call.model,
        "queued": round(attempt.began - job.submitted, 6),
        "seconds": round(now - attempt.began, 6),
        "in_flight": attempt.in_flight,
        "limit": attempt.server.limit.value,
    }
    if attempt.hedge:
        facts["hedge"] = True
    if failure is not None:
        facts |= {"type": type(failure).__name__, "reason": failure.message, "status": failure.status}
    return facts


def call_facts(job: Job, began: float, now: float, result: Reply | Failure) -> dict[str, Any]:
    """Return the line of a trace about a call that has ended."""
    facts: dict[str, Any] = {
        "event": "ended",
        "at": round(now - began, 6),
        "call": job.number,
        "result": type(result).__name__,
        "attempts": job.attempts,
        "seconds": round(result.seconds, 6),
    }
    if isinstance(result, Reply):
        facts |= {"cached": result.cached, "joined": result.joined}
    return facts
