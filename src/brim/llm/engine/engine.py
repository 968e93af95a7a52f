"""Calls wait in one queue and are bound to a server when it has a free slot.

A call that is bound late goes to a server that can work on it at once; bound early, it would wait behind a slow server
while a fast one is idle. Every call ends exactly once: with a reply, or with a typed failure. What belongs to one
server (slots, pauses, circuit breaker) is in `server`; this module decides what is sent when, and what happens when an
attempt has ended. One timer serves all deadlines and delays, so an idle engine does nothing at all.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from brim.core.errors import BrimError
from brim.llm.call import Answer, Call, Reply
from brim.llm.config import PoolConfig
from brim.llm.engine.deadlines import Deadlines
from brim.llm.engine.job import Attempt, Done, Job, Queue
from brim.llm.engine.joined import Joined
from brim.llm.engine.results import attempt_facts, call_facts, given_up, outcome_of, reply_of, too_late
from brim.llm.engine.routing import NEVER, Outage, choose, retry_at
from brim.llm.engine.server import ServerState, is_away
from brim.llm.engine.stats import Counters, PoolStats, pool_stats
from brim.llm.engine.timer import Timer
from brim.llm.engine.waiting import CallQueue, RetryBudget, Waiting
from brim.llm.engine.watch import Watch
from brim.llm.failures import (
    CacheFailed,
    Cancelled,
    Failure,
    ModelMissing,
    NotCached,
    Overloaded,
    Rejected,
    ServerLost,
    TimedOut,
)

if TYPE_CHECKING:
    from brim.llm.cache import Cache


class Engine:
    """Answers calls over several servers. Belongs to the event loop in which it is made.

    Example:
        async with Engine([ServerState(endpoint)]) as engine:
            reply = await engine.ask(Call(model="m", messages=chat("Why is the sky blue?")))
    """

    def __init__(
        self,
        servers: Sequence[ServerState],
        config: PoolConfig | None = None,
        *,
        cache: "Cache | None" = None,
        trace: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.servers = list(servers)
        self.config = config or PoolConfig()
        self._cache = cache if cache is not None and cache.mode != "off" else None
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._numbers = 0
        self._open: dict[Job, None] = {}
        """Calls that have not ended."""
        self._attempts: dict[Attempt, None] = {}
        """Requests in flight, in the order in which they were sent."""
        self._waiting = Waiting()
        self._joined = Joined()
        self._deadlines = Deadlines()
        self._budget = RetryBudget(self.config.retry_budget, now=self._began)
        self._watch = Watch(self.config, self.servers)
        self._counters = Counters()
        self._outage = Outage(self.config, self.servers)
        self._timer = Timer(self._loop, self._dispatch_soon)
        self._dispatching = False
        """True if `_dispatch` is about to run."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def ask(self, call: Call, *, deadline: float | None = None, rank: int = 0) -> Reply:
        """Return the reply to a call.

        Args:
            deadline: Seconds from now after which the call ends, even if it was never sent.
            rank: Of the calls that wait, those with a lower rank are sent first.

        Raises:
            Failure: There is none.
        """
        future: asyncio.Future[Reply | Failure] = self._loop.create_future()

        def done(result: Reply | Failure) -> None:
            if not future.done():
                future.set_result(result)

        job = self.submit(call, done, deadline=deadline, rank=rank)
        try:
            result = await future
        except asyncio.CancelledError:
            self.cancel(job)
            raise
        if isinstance(result, Failure):
            raise result
        return result

    def submit(self, call: Call, done: Done, *, deadline: float | None = None, rank: int = 0) -> Job:
        """Take a call. `done` is called with its result exactly once, maybe before this returns."""
        job = self._take(call, done)
        job.rank = rank
        if deadline is not None:
            self._deadlines.add(job, job.submitted + deadline, open_calls=len(self._open))
        if not job.ended and not self._answer_without_asking(job):
            self._waiting.add(job)
        self._dispatch_soon()
        return job

    def submit_whole(self, call: Call, done: Done, take: Callable[[Answer], None]) -> Job:
        """Take a call that was made for several parts. It is not counted, not cached and not joined.

        `take` gets the whole answer before `done` is called.
        """
        job = self._take(call, done, take)
        if not job.ended:
            self._waiting.add(job)
            self._dispatch_soon()
        return job

    def submit_part(self, call: Call, done: Done) -> Job:
        """Take a call that `finish` or `fail` will end, unless the cache has its answer or an equal call is under way;
        then it ends without them."""
        job = self._take(call, done)
        if not job.ended:
            self._answer_without_asking(job)
        return job

    def finish(self, job: Job, answer: Answer, reply: Reply) -> None:
        """End a part with its own share of the answer to the whole; `reply` is that to the whole."""
        if job.ended:
            return
        self._keep(job, answer)
        vector = None if answer.vectors is None else answer.vectors[0]
        seconds = self._loop.time() - job.submitted
        self._end(job, replace(reply, text=answer.text, vector=vector, prompt_tokens=None, seconds=seconds))

    def fail(self, job: Job, failure: Failure) -> None:
        """End a part with the failure of the whole."""
        job.attempts = max(job.attempts, failure.attempts)
        self._give_up(job, failure)

    def cancel(self, job: Job) -> None:
        """End a call with `Cancelled`, because its result is not needed any more."""
        self._give_up(job, Cancelled("the call was cancelled"))
        self._dispatch_soon()

    def stats(self) -> PoolStats:
        """Return the figures up to now."""
        now = self._loop.time()
        return pool_stats(self._counters, self.servers, open_calls=len(self._open), now=now, since=self._began)

    async def close(self) -> None:
        """End every open call with `Cancelled`, and close all connections."""
        self._closed = True
        for job in list(self._open):
            self._give_up(job, Cancelled("the pool was closed"))
        self._timer.cancel()
        tasks = [attempt.task for attempt in self._attempts if attempt.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.endpoint.close() for server in self.servers))

    def _take(self, call: Call, done: Done, take: Callable[[Answer], None] | None = None) -> Job:
        now = self._loop.time()
        self._numbers += 1
        job = Job(call, done, number=self._numbers, now=now)
        job.take = take
        if take is None:
            self._counters.calls += 1
        if not self._open:
            for server in self.servers:
                server.count_time(now, busy=False)
        self._open[job] = None
        if self._closed:
            self._give_up(job, Cancelled("the pool is closed"))
        return job

    def _answer_without_asking(self, job: Job) -> bool:
        """Whether the call needs no request: the cache has its answer or should have had it, or an equal call is under
        way."""
        cache = self._cache
        if cache is None and not job.call.joinable:
            return False
        job.key = job.call.key()
        if cache is not None:
            try:
                answer = cache.get(job.key)
            except BrimError as error:
                self._give_up(job, CacheFailed(str(error)))
                return True
            if answer is not None:
                self._counters.cached += 1
                self._end(job, reply_of(job, answer, self._loop.time(), cached=True))
                return True
            if cache.mode == "replay":
                missing = NotCached("the cache does not have this answer, and cache_mode replay asks no server")
                self._give_up(job, missing)
                return True
        return job.call.joinable and self._joined.join(job)

    def _dispatch_soon(self) -> None:
        if not self._dispatching and not self._closed:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send what can be sent, and set the timer for what cannot."""
        self._dispatching = False
        if self._closed:
            return
        now = self._timer.now
        for job in self._deadlines.expired(now):
            self._give_up(job, too_late(job, now))
        for attempt, server in self._watch.look(self._attempts, now, hedging=not self._waiting.is_due):
            self._counters.hedges += 1
            attempt.job.hedged = True
            self._send(attempt.job, server, now, hedge=True)
        self._waiting.collect_due(now)
        wake = self._send_retries(now)
        wake = min(wake, self._send_all(self._waiting.new, now))
        wake = min(wake, self._check_reachable(now), self._deadlines.next, self._waiting.next_due)
        if self._attempts:
            wake = min(wake, self._watch.next_look)
        self._timer.set(wake)

    def _send_retries(self, now: float) -> float:
        """Send retries as far as the budget allows. Returns the time at which more can be sent."""
        if not self._waiting.retries:
            return NEVER
        if (wait := self._budget.wait(now)) > 0:
            return now + wait
        return self._send_all(self._waiting.retries, now, self._budget)

    def _send_all(self, queues: dict[Queue, CallQueue], now: float, budget: RetryBudget | None = None) -> float:
        """Send the calls of some queues to the servers that have free slots. Returns the time at which more can be
        sent."""
        wake = NEVER
        for kind in list(queues):
            queue = queues[kind]
            while queue:
                job = queue.first
                if job.ended:
                    queue.pop()
                    continue
                choice = choose(self.servers, job, now)
                if choice.lacking is not None:
                    self._give_up(job, choice.lacking)
                elif choice.server is None:
                    wake = min(wake, choice.at)
                    break
                elif budget is None or budget.take():
                    queue.pop()
                    self._counters.retries += budget is not None
                    self._send(job, choice.server, now)
                else:
                    return min(wake, now + budget.wait(now))
            if not queue:
                del queues[kind]
        return wake

    def _send(self, job: Job, server: ServerState, now: float, *, hedge: bool = False) -> None:
        attempt = Attempt(job, server, began=now, hedge=hedge)
        if job.first_sent is None:
            job.first_sent = now
            self._deadlines.add(job, now + self.config.timeout, open_calls=len(self._open))
        job.attempts += 1
        job.running.append(attempt)
        self._attempts[attempt] = None
        self._counters.requests += 1
        server.sent(attempt, now, busy=True)
        task = self._loop.create_task(_ask(server, job.call))
        attempt.task = task
        task.add_done_callback(lambda task: self._attempt_ended(attempt, task))

    def _attempt_ended(self, attempt: Attempt, task: "asyncio.Task[Answer]") -> None:
        now = self._loop.time()
        job, server = attempt.job, attempt.server
        del self._attempts[attempt]
        job.running.remove(attempt)
        server.left(attempt, now, busy=bool(self._open))
        outcome = outcome_of(attempt, task, now)
        if isinstance(outcome, Failure):
            self._attempt_failed(attempt, outcome, now)
        elif outcome is not None:
            self._attempt_answered(attempt, outcome, now)
        self._dispatch_soon()

    def _attempt_answered(self, attempt: Attempt, answer: Answer, now: float) -> None:
        job, server = attempt.job, attempt.server
        latency = server.answered(attempt, answer, now)
        self._budget.answered()
        if self._trace is not None:
            self._trace(attempt_facts(attempt, self._began, now))
        if job.ended:
            return
        self._counters.prompt_tokens += answer.prompt_tokens or 0
        self._counters.completion_tokens += answer.completion_tokens or 0
        if job.take is not None:
            job.take(answer)
        else:
            self._keep(job, answer)
        self._end(job, reply_of(job, answer, now, server=server, latency=latency))

    def _attempt_failed(self, attempt: Attempt, failure: Failure, now: float) -> None:
        job, server = attempt.job, attempt.server
        failure.server = server.name
        server.failed(attempt, failure, now)
        if self._trace is not None:
            self._trace(attempt_facts(attempt, self._began, now, failure))
        if job.ended or job.running:  # another attempt of the same call may still succeed
            return
        job.last, job.failure = server, failure
        if isinstance(failure, ModelMissing):
            server.model_missing(job.call.model, failure, now)
            self._waiting.add(job)  # where it fails, unless another server has the model
            return
        # A server that refuses, or is known to be away, pauses by itself. Such an attempt does not count (`patience`
        # limits the wait for a server that is away), and the call is sent as soon as the pause is over.
        pauses = isinstance(failure, Overloaded) or (server.is_down and is_away(failure))
        job.refusals += pauses
        job.timeouts += isinstance(failure, TimedOut)
        if not failure.transient or job.attempts - job.refusals >= self.config.attempts:
            self._give_up(job, failure)
        else:
            due = None if pauses else retry_at(self.servers, job, now, seed=self.config.seed)
            self._waiting.add_retry(job, due)

    def _check_reachable(self, now: float) -> float:
        """Fail the calls that wait if no server has been reachable for too long. Returns the time to look again."""
        ends_at = self._outage.ends_at(now)
        if now < ends_at:
            return ends_at if self._waiting else NEVER
        last = self._outage.failure or ServerLost("no server can be reached")
        for job in self._waiting.remove_all():
            self._give_up(job, job.failure or last)
        return NEVER

    def _keep(self, job: Job, answer: Answer) -> None:
        if self._cache is not None and self._cache.mode == "write" and job.key is not None:
            self._cache.put(job.key, answer)

    def _give_up(self, job: Job, failure: Failure) -> None:
        """End a call with a failure of its own."""
        if not job.ended:
            self._end(job, given_up(job, failure, self._loop.time()))

    def _end(self, job: Job, result: Reply | Failure) -> None:
        job.ended = True
        del self._open[job]
        if job.take is None:
            if isinstance(result, Failure):
                self._counters.failures[type(result).__name__] += 1
            else:
                self._counters.replies += 1
            if self._trace is not None:
                self._trace(call_facts(job, self._began, self._loop.time(), result))
        for attempt in job.running:
            if attempt.task is not None:
                attempt.task.cancel()
        followers = self._joined.leave(job)
        if followers:
            self._release(followers, result)
        job.done(result)

    def _release(self, followers: Sequence[Job], result: Reply | Failure) -> None:
        """Answer the calls that followed one that has ended, or let the next of them lead."""
        now = self._loop.time()
        if isinstance(result, Reply):
            self._counters.joined += len(followers)
            for follower in followers:
                self._end(follower, replace(result, joined=True, attempts=0, seconds=now - follower.submitted))
        elif isinstance(result, Rejected | CacheFailed) or self._closed:
            for follower in followers:
                self._give_up(follower, result)
        else:
            for follower in followers:
                if not self._joined.join(follower):
                    self._waiting.add(follower)
            self._dispatch_soon()


async def _ask(server: ServerState, call: Call) -> Answer:
    return await server.endpoint.ask(call)
