"""Calls wait in one queue and are bound to a server when it has a free slot.

A call that is bound late goes to a server that can work on it at once; bound early, it would wait behind a slow server
while a fast one is idle. Every call ends exactly once: with a reply, or with a typed failure. What belongs to one
server (slots, pauses, circuit breaker) is in `server`; this module decides which call goes where and when, and what
happens when an attempt has ended.

One timer serves all deadlines and delays. It is set to the next moment at which something can change, so an idle engine
does nothing at all.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from brim.core.fill import Fill
from brim.core.rng import share
from brim.llm.call import Answer, Call, Reply
from brim.llm.config import CacheMode, PoolConfig
from brim.llm.engine.job import Attempt, Done, Job
from brim.llm.engine.server import ServerState
from brim.llm.engine.stats import PoolStats, server_stats
from brim.llm.failures import (
    Cancelled,
    Failure,
    ModelMissing,
    NotCached,
    Overloaded,
    Rejected,
    ServerFailed,
    ServerLost,
    TimedOut,
)

RETRY_FIRST, RETRY_LONGEST = 0.1, 10.0
"""Upper limits in seconds of the delay before a retry: the first one, and any."""
RETRIES_AT_ONCE = 20.0
"""Retries that the budget allows before anything was answered."""
RETRIES_KEPT = 200.0
"""Retries that the budget can save up."""
RETRIES_A_SECOND = 2.0
"""Retries that are always allowed, so that the last calls of a run do not wait forever."""
LOOK_SHORTEST, LOOK_LONGEST = 0.02, 1.0
"""Seconds between two looks at requests that may have taken too long."""


class AnswerCache(Protocol):
    """The part of `brim.llm.cache.Cache` that the engine uses."""

    @property
    def mode(self) -> CacheMode: ...
    def get(self, key: bytes) -> Answer | None: ...
    def put(self, key: bytes, answer: Answer) -> None: ...


class Engine:
    """Answers calls over several servers. Belongs to the event loop in which it is first used.

    Example:
        async with Engine([ServerState(endpoint)], PoolConfig()) as engine:
            reply = await engine.ask(Call(model="m", messages=chat("Why is the sky blue?")))
    """

    def __init__(
        self,
        servers: Sequence[ServerState],
        config: PoolConfig | None = None,
        *,
        cache: AnswerCache | None = None,
        trace: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.servers = list(servers)
        self.config = config or PoolConfig()
        self._cache = cache if cache is not None and cache.mode != "off" else None
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._queues: dict[tuple[str, str], deque[Job]] = {}
        """Calls that wait for a free slot, by kind and model."""
        self._retries: dict[tuple[str, str], deque[Job]] = {}
        """Calls that failed and are due again; they go first."""
        self._delayed: list[tuple[float, int, Job]] = []
        """(due, number, call) of retries that are not due yet, as a heap."""
        self._deadlines: list[tuple[float, int, Job]] = []
        """(deadline, number, call), as a heap."""
        self._attempts: dict[Attempt, None] = {}
        """Requests in flight, in the order in which they were sent."""
        self._leaders: dict[bytes, Job] = {}
        """Calls that equal ones can join, by key."""
        self._open: dict[Job, None] = {}
        """Calls that have not ended."""
        self._numbers = 0
        self._look_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._dispatching = False
        self._down_since: float | None = None
        """Time since which no server could be reached."""
        self._budget = RETRIES_AT_ONCE
        self._budget_at = self._opened_at
        self._closed = False
        self._calls = self._replies = self._requests = self._retried = self._hedges = 0
        self._cached = self._joined = self._prompt_tokens = self._completion_tokens = 0
        self._failures: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def ask(self, call: Call, *, deadline: float | None = None) -> Reply:
        """Return the reply to a call.

        Args:
            deadline: Seconds from now after which the call ends, even if it was never sent.

        Raises:
            Failure: There is none.
        """
        future: asyncio.Future[Reply | Failure] = self._loop.create_future()

        def done(result: Reply | Failure) -> None:
            if not future.done():
                future.set_result(result)

        job = self.submit(call, done, deadline=deadline)
        try:
            result = await future
        except asyncio.CancelledError:
            self.cancel(job)
            raise
        if isinstance(result, Failure):
            raise result
        return result

    def submit(self, call: Call, done: Done, *, deadline: float | None = None) -> Job:
        """Take a call. `done` is called with its result exactly once, maybe before this returns."""
        job = self._new_job(call, done, deadline)
        if self._closed:
            self._end(job, Cancelled("the pool is closed"))
        elif not self._answer_without_asking(job):
            self._wait(self._queues, job)
            self._dispatch_soon()
        return job

    def submit_whole(self, call: Call, done: Done, take: Callable[[Answer], None]) -> Job:
        """Take a call that was made for several parts. It is not counted, not cached and not joined.

        `take` gets the whole answer before `done` is called.
        """
        job = self._new_job(call, done, None)
        job.take = take
        self._calls -= 1
        if self._closed:
            self._end(job, Cancelled("the pool is closed"))
        else:
            self._wait(self._queues, job)
            self._dispatch_soon()
        return job

    def submit_part(self, call: Call, done: Done) -> Job:
        """Take a call that `finish` or `fail` will end, unless the cache has its answer or an equal call has been taken
        before; then it ends without them."""
        job = self._new_job(call, done, None)
        if self._closed:
            self._end(job, Cancelled("the pool is closed"))
        else:
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
        """End a call that nobody waits for any more."""
        self._give_up(job, Cancelled("the call was cancelled"))
        self._dispatch_soon()

    def stats(self) -> PoolStats:
        """Return the figures up to now."""
        now = self._loop.time()
        for server in self.servers:
            server.count_time(now, busy=bool(self._open))
        servers = tuple(server_stats(server, now) for server in self.servers)
        return PoolStats(
            calls=self._calls,
            open=len(self._open),
            replies=self._replies,
            failures=dict(sorted(self._failures.items())),
            requests=self._requests,
            retries=self._retried,
            hedges=self._hedges,
            cached=self._cached,
            joined=self._joined,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            seconds=now - self._opened_at,
            fill=sum((server.fill for server in servers), Fill()),
            servers=servers,
        )

    async def close(self) -> None:
        """End every open call with `Cancelled`, and close all connections."""
        self._closed = True
        for job in list(self._open):
            self._end(job, Cancelled("the pool was closed", attempts=job.attempts))
        if self._timer is not None:
            self._timer.cancel()
        tasks = [attempt.task for attempt in self._attempts if attempt.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.endpoint.close() for server in self.servers))

    # Taking calls.

    def _new_job(self, call: Call, done: Done, deadline: float | None) -> Job:
        now = self._loop.time()
        self._numbers += 1
        self._calls += 1
        job = Job(call, done, number=self._numbers, now=now, deadline=None if deadline is None else now + deadline)
        if not self._open:
            for server in self.servers:
                server.count_time(now, busy=False)
        self._open[job] = None
        if job.deadline is not None:
            heapq.heappush(self._deadlines, (job.deadline, job.number, job))
        return job

    def _answer_without_asking(self, job: Job) -> bool:
        """Whether the cache has the answer, or an equal call is under way; also whether the cache should have had it."""
        cache = self._cache
        if cache is None and not job.call.joinable:
            return False
        job.key = job.call.key()
        if cache is not None:
            answer = cache.get(job.key)
            if answer is not None:
                self._cached += 1
                self._end(job, _reply(job, answer, self._loop.time(), cached=True))
                return True
            if cache.mode == "replay":
                self._end(job, NotCached("the cache does not have this answer, and it is replayed: no server is asked"))
                return True
        if not job.call.joinable:
            return False
        leader = self._leaders.setdefault(job.key, job)
        if leader is job:
            return False
        leader.followers.append(job)
        job.leader = leader
        return True

    def _wait(self, queues: dict[tuple[str, str], deque[Job]], job: Job) -> None:
        queue = queues.get(job.queue)
        if queue is None:
            queue = queues[job.queue] = deque()
        queue.append(job)

    # Sending.

    def _dispatch_soon(self) -> None:
        if not self._dispatching and not self._closed:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send what can be sent, and set the timer for what cannot."""
        self._dispatching = False
        if self._closed:
            return
        now = self._loop.time()
        self._expire(now)
        while self._delayed and self._delayed[0][0] <= now:
            self._wait(self._retries, heapq.heappop(self._delayed)[2])
        self._fill_budget(now)
        wake = self._send(self._retries, now, retry=True)
        wake = min(wake, self._send(self._queues, now, retry=False))
        self._check_reachable(now)
        self._set_timer(now, wake)

    def _send(self, queues: dict[tuple[str, str], deque[Job]], now: float, *, retry: bool) -> float:
        """Send the calls that wait in some queues. Returns the time at which more can be sent."""
        wake = float("inf")
        for kind, queue in list(queues.items()):
            while queue:
                job = queue[0]
                if job.ended:
                    queue.popleft()
                    continue
                if retry and self._budget < 1.0:
                    wake = min(wake, now + (1.0 - self._budget) / RETRIES_A_SECOND)
                    break
                server, at = self._choose(job, now)
                if server is None:
                    if at is None:  # none of them has the model
                        queue.popleft()
                        continue
                    wake = min(wake, at)
                    break
                queue.popleft()
                if retry:
                    self._budget -= 1.0
                    self._retried += 1
                self._start(job, server, now)
            if not queue:
                del queues[kind]
        return wake

    def _choose(self, job: Job, now: float) -> tuple[ServerState | None, float | None]:
        """Return the fastest server with a free slot, or else the time at which one may have one (infinite if that
        depends on a request that is in flight)."""
        best: ServerState | None = None
        wake = float("inf")
        lacking: Failure | None = None
        model = job.call.model
        useful = 0
        for server in self.servers:
            missing = server.lacks(model, now)
            if missing is not None:
                lacking = missing
                continue
            useful += 1
            at = server.ready_at(now)
            if at is None:
                continue
            if at > now:
                wake = min(wake, at)
            elif best is None or self._rank(server, job) < self._rank(best, job):
                best = server
        if not useful and lacking is not None:
            self._give_up(job, lacking)
            return None, None
        return best, wake

    @staticmethod
    def _rank(server: ServerState, job: Job) -> tuple[bool, bool, float, int]:
        """The order of preference: not the one that failed last, not one that is suspect, the fastest, the emptiest."""
        return (server is job.last, server.is_down, server.latency, server.in_flight)

    def _start(self, job: Job, server: ServerState, now: float, *, hedge: bool = False) -> None:
        attempt = Attempt(job, server, began=now, hedge=hedge)
        if job.first_sent is None:
            job.first_sent = now
            end = now + self.config.timeout
            if job.deadline is None or end < job.deadline:
                job.deadline = end
                heapq.heappush(self._deadlines, (end, job.number, job))
        job.attempts += 1
        job.running.append(attempt)
        self._attempts[attempt] = None
        self._requests += 1
        server.sent(attempt, now, busy=True)
        task = self._loop.create_task(_ask(server, job.call))
        attempt.task = task
        task.add_done_callback(lambda task: self._attempt_ended(attempt, task))

    # After an attempt.

    def _attempt_ended(self, attempt: Attempt, task: "asyncio.Task[Answer]") -> None:
        now = self._loop.time()
        job, server = attempt.job, attempt.server
        del self._attempts[attempt]
        job.running.remove(attempt)
        server.left(attempt, now, busy=bool(self._open))
        if task.cancelled():
            if attempt.expired:
                self._attempt_failed(attempt, TimedOut(f"no answer after {now - attempt.began:.1f} s"), now)
        elif (error := task.exception()) is None:
            self._attempt_answered(attempt, task.result(), now)
        elif isinstance(error, Failure):
            self._attempt_failed(attempt, error, now)
        else:  # a mistake in an endpoint: it must not cost the call its end
            failure = ServerFailed(f"the request ended in {type(error).__name__}, which an endpoint must not raise")
            failure.__cause__ = error
            self._attempt_failed(attempt, failure, now)
        self._dispatch_soon()

    def _attempt_answered(self, attempt: Attempt, answer: Answer, now: float) -> None:
        job, server = attempt.job, attempt.server
        latency = server.answered(attempt, answer, now)
        self._down_since = None
        self._budget = min(self._budget + self.config.retry_budget, RETRIES_KEPT)
        self._note(attempt, now, "answered")
        if job.ended:
            return
        self._prompt_tokens += answer.prompt_tokens or 0
        self._completion_tokens += answer.completion_tokens or 0
        if job.take is not None:
            job.take(answer)
        else:
            self._keep(job, answer)
        self._end(job, _reply(job, answer, now, server=server, latency=latency))

    def _attempt_failed(self, attempt: Attempt, failure: Failure, now: float) -> None:
        job, server = attempt.job, attempt.server
        failure.server = server.name
        server.failed(attempt, failure, now)
        if server.reached:
            self._down_since = self._down_since if server.is_down else None
        self._note(attempt, now, type(failure).__name__, reason=failure.message, status=failure.status)
        if job.ended or job.running:  # another attempt of the same call may still succeed
            return
        job.last, job.failure = server, failure
        if isinstance(failure, ModelMissing):
            server.model_missing(job.call.model, failure, now)
            self._wait(self._queues, job)  # where it fails, unless another server has the model
            return
        if isinstance(failure, Overloaded):
            job.refusals += 1
        if isinstance(failure, TimedOut):
            job.timeouts += 1
        if not failure.transient or job.attempts - job.refusals >= self.config.attempts:
            self._give_up(job, failure)
        else:
            self._delay(job, failure, now)

    def _delay(self, job: Job, failure: Failure, now: float) -> None:
        """Let a call wait before its next attempt, with full jitter; not if another server can take it, and not after a
        refusal, because then it is the server that pauses."""
        elsewhere = any(
            server is not job.last and not server.is_down and (server.ready_at(now) or now) <= now
            for server in self.servers
        )
        if elsewhere or isinstance(failure, Overloaded):
            self._wait(self._retries, job)
            return
        longest = min(RETRY_FIRST * 2 ** min(job.attempts - 1, 30), RETRY_LONGEST)
        jitter = share(seed=self.config.seed, purpose="llm/retry", epoch=job.number, index=min(job.attempts, 64))
        heapq.heappush(self._delayed, (now + longest * jitter, job.number, job))

    def _fill_budget(self, now: float) -> None:
        if self._budget < RETRIES_AT_ONCE:
            self._budget = min(self._budget + (now - self._budget_at) * RETRIES_A_SECOND, RETRIES_AT_ONCE)
        self._budget_at = now

    # Time.

    def _expire(self, now: float) -> None:
        """End the calls whose time is up, and give up requests that take too long."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, job = heapq.heappop(self._deadlines)
            if not job.ended and job.deadline is not None and job.deadline <= now:
                self._give_up(job, self._too_late(job, now))
        if now < self._look_at:
            return
        wait = LOOK_LONGEST
        for attempt in list(self._attempts):
            if not attempt.job.ended and not attempt.expired:
                wait = min(wait, self._look(attempt, now))
        self._look_at = now + max(wait, LOOK_SHORTEST)

    def _look(self, attempt: Attempt, now: float) -> float:
        """Give up a request that takes too long, or send it a second time. Returns the seconds until it has to be
        looked at again."""
        job, server, age = attempt.job, attempt.server, now - attempt.began
        durations = server.durations(job)
        longest = self.config.attempt_timeout
        if longest == "auto":
            # The last attempt has all the time that is left.
            last = job.attempts - job.refusals >= self.config.attempts
            longest = None if last else durations.give_up_after(job.max_tokens, job.timeouts)
        if longest is not None and age >= longest:
            attempt.expired = True
            if attempt.task is not None:
                attempt.task.cancel()
            return LOOK_LONGEST
        wait = LOOK_LONGEST if longest is None else longest - age
        if self.config.hedge and not job.hedged:
            after = durations.hedge_after()
            if after is not None and age >= after:
                self._hedge(job, server, now)
            elif after is not None:
                wait = min(wait, after - age)
        return wait

    def _hedge(self, job: Job, server: ServerState, now: float) -> None:
        """Send a call a second time, if the budget allows it and a slot is free that no other call waits for."""
        if self._hedges + 1 > self.config.hedge_budget * self._requests or self._queues or self._retries:
            return
        free = [
            other
            for other in self.servers
            if not other.is_down and other.lacks(job.call.model, now) is None and _is_free(other, now)
        ]
        if not free:
            return
        job.hedged = True
        self._hedges += 1
        self._start(job, min(free, key=lambda other: (other is server, other.latency)), now, hedge=True)

    def _too_late(self, job: Job, now: float) -> Failure:
        if job.first_sent is None:
            return TimedOut("the deadline came before a server was free")
        message = f"no answer within {now - job.first_sent:.1f} s"
        if job.failure is not None:
            message += f"; the last attempt: {job.failure.message}"
        return TimedOut(message)

    def _check_reachable(self, now: float) -> None:
        """Fail the calls that wait if no server has been reachable for too long."""
        if not all(server.is_down for server in self.servers):
            self._down_since = None
            return
        if self._down_since is None:
            self._down_since = now
        patience = self.config.patience if any(server.reached for server in self.servers) else 0.0
        if now - self._down_since < patience:
            return
        last = next((server.failure for server in self.servers if server.failure is not None), None)
        for queues in (self._retries, self._queues):
            for queue in list(queues.values()):
                for job in queue:
                    self._give_up(job, job.failure or last or ServerLost("no server can be reached"))
            queues.clear()
        for _, _, job in self._delayed:
            self._give_up(job, job.failure or last or ServerLost("no server can be reached"))
        self._delayed.clear()

    def _set_timer(self, now: float, wake: float) -> None:
        while self._deadlines and self._deadlines[0][2].ended:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            wake = min(wake, self._deadlines[0][0])
        if self._delayed:
            wake = min(wake, self._delayed[0][0])
        if self._attempts:
            wake = min(wake, self._look_at)
        if self._down_since is not None and (self._queues or self._retries or self._delayed):
            wake = min(wake, self._down_since + self.config.patience)
        if self._timer is not None:
            if self._timer_at <= wake and self._timer_at > now:
                return  # it comes early enough, and sets the next one
            self._timer.cancel()
            self._timer = None
        if wake < float("inf"):
            self._timer_at = wake
            self._timer = self._loop.call_at(wake, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._dispatch_soon()

    # The end of a call.

    def _keep(self, job: Job, answer: Answer) -> None:
        if self._cache is not None and self._cache.mode == "write" and job.key is not None:
            self._cache.put(job.key, answer)

    def _give_up(self, job: Job, failure: Failure) -> None:
        """End a call with a failure of its own, which says how often and how long it was tried."""
        if job.ended:
            return
        mine = type(failure)(
            failure.message,
            server=failure.server,
            status=failure.status,
            retry_after=failure.retry_after,
            attempts=job.attempts,
            seconds=self._loop.time() - job.submitted,
        )
        mine.__cause__ = failure.__cause__
        self._end(job, mine)

    def _end(self, job: Job, result: Reply | Failure) -> None:
        if job.ended:
            return
        job.ended = True
        del self._open[job]
        if job.take is None and isinstance(result, Failure):
            self._failures[type(result).__name__] += 1
        elif job.take is None:
            self._replies += 1
        for attempt in job.running:
            if attempt.task is not None:
                attempt.task.cancel()
        if job.leader is not None:
            job.leader.followers.remove(job)
            job.leader = None
        self._release_followers(job, result)
        job.done(result)

    def _release_followers(self, job: Job, result: Reply | Failure) -> None:
        if job.key is None or self._leaders.get(job.key) is not job:
            return
        del self._leaders[job.key]
        followers, job.followers = job.followers, []
        now = self._loop.time()
        for follower in followers:
            follower.leader = None
        if isinstance(result, Reply):
            self._joined += len(followers)
            for follower in followers:
                seconds = now - follower.submitted
                self._end(follower, replace(result, joined=True, attempts=0, seconds=seconds))
        elif isinstance(result, Rejected | NotCached) or self._closed:
            for follower in followers:
                self._give_up(follower, result)
        elif followers:
            # The failure was the leader's own, such as its deadline: the next one asks for the others.
            leader, *rest = followers
            self._leaders[job.key] = leader
            leader.followers = rest
            for follower in rest:
                follower.leader = leader
            self._wait(self._queues, leader)
            self._dispatch_soon()

    def _note(self, attempt: Attempt, now: float, event: str, **more: Any) -> None:
        if self._trace is None:
            return
        job = attempt.job
        self._trace(
            {
                "call": job.number,
                "attempt": job.attempts,
                "server": attempt.server.name,
                "kind": job.call.kind,
                "model": job.call.model,
                "event": event,
                "at": round(now - self._opened_at, 6),
                "queued": round(attempt.began - job.submitted, 6),
                "seconds": round(now - attempt.began, 6),
                "in_flight": attempt.in_flight,
                "limit": attempt.server.limit.value,
                **({"hedge": True} if attempt.hedge else {}),
                **{name: value for name, value in more.items() if value is not None},
            }
        )


async def _ask(server: ServerState, call: Call) -> Answer:
    return await server.endpoint.ask(call)


def _is_free(server: ServerState, now: float) -> bool:
    at = server.ready_at(now)
    return at is not None and at <= now


def _reply(
    job: Job,
    answer: Answer,
    now: float,
    *,
    server: ServerState | None = None,
    latency: float = 0.0,
    cached: bool = False,
) -> Reply:
    vector = answer.vectors[0] if answer.vectors is not None and len(answer.vectors) == 1 else None
    return Reply(
        text=answer.text,
        vector=vector,
        model=answer.model,
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        server="" if server is None else server.name,
        attempts=job.attempts,
        seconds=now - job.submitted,
        latency=latency,
        queue_seconds=answer.queue_seconds,
        cached=cached,
        hedged=job.hedged,
    )
