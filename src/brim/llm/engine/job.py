"""A call under way, and one attempt to answer it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from brim.llm.call import Answer, Call, Reply
from brim.llm.failures import Failure

if TYPE_CHECKING:
    from brim.llm.engine.server import ServerState

Done = Callable[[Reply | Failure], None]
Queue = tuple[str, str]
"""Kind of a call and name of the model: calls that are alike in both wait in one queue."""


class Job:
    """A call from its submission to its end, which comes exactly once."""

    __slots__ = (
        "attempts",
        "call",
        "deadline",
        "done",
        "ended",
        "failure",
        "first_sent",
        "followers",
        "hedged",
        "key",
        "last",
        "leader",
        "max_tokens",
        "number",
        "queue",
        "rank",
        "refusals",
        "running",
        "submitted",
        "take",
        "timeouts",
    )

    def __init__(self, call: Call, done: Done, *, number: int, now: float) -> None:
        self.call = call
        self.done = done
        self.number = number
        self.submitted = now
        self.deadline: float | None = None
        """Time at which the call ends, whatever happens."""
        self.key: bytes | None = None
        """The call's key, where the cache or equal calls need it."""
        self.queue: Queue = (call.kind, call.model)
        self.max_tokens = call.sampling.max_tokens
        self.rank = 0
        """If several calls wait, those with a lower rank are sent first."""
        self.first_sent: float | None = None
        self.attempts = 0
        """Requests that were sent."""
        self.refusals = 0
        """Requests that a busy server refused, or that found a server away which was known to be so: they do not count
        against the limit of attempts."""
        self.timeouts = 0
        """Requests that were given up because they took too long."""
        self.running: list[Attempt] = []
        self.last: ServerState | None = None
        """The server that failed last, which is avoided if another one is free."""
        self.failure: Failure | None = None
        self.hedged = False
        self.followers: list[Job] = []
        """Equal calls that wait for this one's answer."""
        self.leader: Job | None = None
        self.take: Callable[[Answer], None] | None = None
        """Takes the answer of a call that was made for several others."""
        self.ended = False


class Attempt:
    """One request: to one server, in one task."""

    __slots__ = ("began", "expired", "hedge", "in_flight", "job", "round", "server", "task", "tokens")

    def __init__(self, job: Job, server: "ServerState", *, began: float, hedge: bool) -> None:
        self.job = job
        self.server = server
        self.began = began
        self.hedge = hedge
        self.round = server.limit.round
        self.in_flight = 0
        """Requests in flight at this server when it was sent, itself included."""
        self.tokens = 0.0
        """Tokens that were taken from the server's rate beforehand."""
        self.expired = False
        """True if it was cancelled because it took too long."""
        self.task: asyncio.Task[Answer] | None = None
