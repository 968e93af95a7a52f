"""The life of a request in a simulated model server: it arrives, waits for a slot, is worked on, and ends.

It needs nothing but an asyncio event loop, so the same code runs in virtual time and behind a real HTTP server. It
knows no protocol: it decides on the reply (texts, vectors, a status, a fault), and other modules turn that into an
`Answer` or into HTTP. All methods but `next` must be called in the event loop's thread.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from brim.core.rng import uniform
from brim.llm.call import Call
from brim.llm.testing.behaviour import Behaviour, Fault, Refusal, check_fault
from brim.llm.testing.replies import Content, Replies

Ending = Literal["", "served", "rejected", "refused", "failed", "cancelled"]
ANY_MODEL = "test"
"""The model that is listed and used where no models are named."""


@dataclass
class Counts:
    """Numbers of requests so far. Every request that has ended is counted in exactly one of `served`, `rejected`,
    `refused`, `failed` and `cancelled`."""

    arrived: int = 0
    served: int = 0
    rejected: int = 0
    """Rejected because no slot was free, or by the fault "reject" (HTTP 429, 503)."""
    refused: int = 0
    """Requests that can never be answered (HTTP 400, 404 ...)."""
    failed: int = 0
    """Ended by a fault."""
    cancelled: int = 0
    """The client left before the end."""
    in_flight: int = 0
    """Requests that have arrived and have not ended: those that wait, and those that are worked on."""
    max_in_flight: int = 0
    in_service: int = 0
    """Requests that are worked on: each holds a slot."""
    max_in_service: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    """Faults by kind, counted when a request that has one arrives."""

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-like values."""
        return vars(self) | {"faults": dict(self.faults)}


class Durations(NamedTuple):
    """Seconds that a request spent in the server."""

    queue: float
    """Waiting for a slot."""
    prompt: float
    """Working, up to the first token."""
    answer: float
    """Working, from the first token on."""


class Request:
    """One request and its reply: `async with` waits for a slot, and gives it back at the end, however it ends."""

    __slots__ = (
        "_service",
        "arrived",
        "body",
        "call",
        "content",
        "ended",
        "ending",
        "fault",
        "headers",
        "luck",
        "message",
        "number",
        "path",
        "seconds",
        "started",
        "status",
    )

    def __init__(self, service: "Service", call: Call, number: int) -> None:
        self._service = service
        self.call = call
        self.number = number
        """0 for the first request of the server."""
        self.path = ""
        """Path of the URL, if it came over HTTP; the same holds for `headers` and `body`."""
        self.headers: Mapping[str, str] = {}
        self.body: dict[str, Any] = {}
        self.fault: Fault | None = None
        self.status = 200
        """HTTP status of the reply."""
        self.message = ""
        """Why it was turned away."""
        self.seconds = 0.0
        """Latency, without the time for each token."""
        self.luck = 0.0
        """A random number in [0, 1) for details of a fault."""
        self.arrived = asyncio.get_running_loop().time()
        self.started: float | None = None
        self.ended: float | None = None
        self.ending: Ending = ""
        self.content = Content()
        """Texts or vectors of the reply; empty until the work on the request starts."""

    async def __aenter__(self) -> Self:
        if self.status == 200:
            await self._service.take_slot(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self.end(kind)

    def end(self, raised: type[BaseException] | None = None) -> None:
        """Give the slot back and count the request, if that has not been done. A server does it before it sends the end
        of the reply, so that a client which has the reply finds the request counted."""
        if self.ending == "":
            self._service.end(self, raised)

    def durations(self) -> Durations:
        """Return how long it has waited and been worked on, until its end or until now."""
        ended = asyncio.get_running_loop().time() if self.ended is None else self.ended
        started = ended if self.started is None else self.started
        for_tokens = self._service.behaviour.seconds_per_token * self.tokens
        share = for_tokens / (self.seconds + for_tokens) if for_tokens > 0 else 0.0
        return Durations(started - self.arrived, (ended - started) * (1 - share), (ended - started) * share)

    async def work(self) -> None:
        """Wait until the whole answer is there."""
        await self.begin_answer(self._service.behaviour.seconds_per_token * self.tokens)

    async def begin_answer(self, more: float = 0.0) -> None:
        """Wait for the latency, and `more` seconds. A request that hangs waits longer."""
        seconds = self.seconds + more
        if self.fault == "hang":
            seconds += self._service.behaviour.hang_seconds
        if seconds == math.inf:
            # A timer at infinity would keep the clock of virtual time moving forever.
            await asyncio.get_running_loop().create_future()
        if seconds > 0:
            await asyncio.sleep(seconds)

    @property
    def tokens(self) -> int:
        """Tokens that take time: those that are generated, or those that are embedded."""
        return self.content.prompt_tokens if self.call.kind == "embed" else self.content.completion_tokens

    def refuse(self, message: str, status: int) -> None:
        """Answer with an error."""
        self.status = status
        self.message = message

    def __repr__(self) -> str:
        fault = f", fault={self.fault!r}" if self.fault else ""
        return f"Request(number={self.number}, status={self.status}, ending={self.ending!r}{fault})"


class Service:
    """The state of a simulated server: its free slots, its queue, what it has counted, and its script."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.counts = Counts()
        self.requests: deque[Request] = deque(maxlen=behaviour.record)
        self._waiting: OrderedDict[asyncio.Future[None], Request] = OrderedDict()
        self._scripted: deque[Fault | None] = deque()
        self._replies = Replies()
        self._draws: list[tuple[float, float, float]] = []
        """Random numbers for one block of requests."""
        self._drawn = (0, -1)
        """Seed and number of that block."""

    def change(self, behaviour: Behaviour) -> None:
        """Replace the options while the server runs. Requests that are worked on keep their slots and latencies."""
        self.behaviour = behaviour
        if behaviour.record != self.requests.maxlen:
            self.requests = deque(self.requests, behaviour.record)
        self._hand_out()

    def next(self, *faults: Fault | None) -> None:
        """Give these faults to the next requests, one each, in place of random ones. None is a request that succeeds.

        Raises:
            OptionError: There is no such fault.
        """
        self._scripted.extend([None if fault is None else check_fault(fault) for fault in faults])

    def request(self, call: Call) -> Request:
        """Let a request arrive: use it with `async with`. If its `status` is not 200, it has been turned away."""
        counts = self.counts
        request = Request(self, call, counts.arrived)
        counts.arrived += 1
        self.requests.append(request)
        at_latency, at_fault, request.luck = self._draw(request.number)
        latency = self.behaviour.latency
        request.seconds = latency if isinstance(latency, int | float) else latency.at(at_latency)
        if not self.has(call.model):
            self._turn_away(request, "refused", 404, f"model {call.model!r} not found")
        elif not self._has_room():
            status = self.behaviour.reject_status if self.behaviour.overflow == "reject" else 503
            self._turn_away(request, "rejected", status, "no slot is free")
        else:
            self._admit(request, at_fault)
        return request

    def has(self, model: str) -> bool:
        """True if the server has the model. As with Ollama, a name without a tag means ":latest"; no name at all means
        any model."""
        models = self.behaviour.models
        if models is None or model in models:
            return True
        if model == "":
            return len(models) > 0
        return f"{model}:latest" in models or model.removesuffix(":latest") in models

    def models(self) -> tuple[str, ...]:
        """Names of the models to list."""
        models = self.behaviour.models
        return (ANY_MODEL,) if models is None else models

    async def take_slot(self, request: Request) -> None:
        """Wait for the request's turn, and make its reply."""
        if self._waiting or not self._slot_is_free():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[turn] = request
            try:
                await turn
            except asyncio.CancelledError:
                self._waiting.pop(turn, None)
                if not turn.cancelled():  # it was given a slot, and cancelled before it could use it
                    request.started = None
                    self._free_slot()
                self._count_end(request, "cancelled")
                raise
        else:
            self._start(request)
        try:
            content = self._replies.make(request.call, self.behaviour)
        except Refusal as refusal:
            request.refuse(refusal.message, refusal.status)
        except BaseException as error:
            self.end(request, type(error))
            raise
        else:
            request.content = content

    def end(self, request: Request, raised: type[BaseException] | None) -> None:
        """Free the request's slot and count how it ended."""
        if request.started is not None:
            self._free_slot()
        self._count_end(request, _ending(request, raised))

    def _draw(self, number: int) -> tuple[float, float, float]:
        """Return the random numbers in [0, 1) of a request: for its latency, for its fault, and for details of it."""
        seed = self.behaviour.seed
        epoch, place = divmod(number, _BLOCK)
        if self._drawn != (seed, epoch):
            self._drawn = (seed, epoch)
            block = uniform(3 * _BLOCK, seed=seed, purpose="llm/testing", epoch=epoch)
            self._draws = list(zip(*[iter(block.tolist())] * 3, strict=True))
        return self._draws[place]

    def _turn_away(self, request: Request, ending: Ending, status: int, message: str) -> None:
        """End a request when it arrives."""
        self.counts.in_flight += 1
        request.refuse(message, status)
        self._count_end(request, ending)

    def _admit(self, request: Request, at_fault: float) -> None:
        """Let a request wait for a slot, unless the fault that it is given ends it at once."""
        counts = self.counts
        fault = self._scripted.popleft() if self._scripted else self.behaviour.faults.at(at_fault)
        if request.call.kind != "embed" and fault in ("short_embeddings", "shuffled_embeddings"):
            fault = None
        if fault is not None:
            request.fault = fault
            counts.faults[fault] += 1
        if fault == "reject":
            self._turn_away(request, "rejected", self.behaviour.reject_status, "the fault 'reject'")
        else:
            counts.in_flight += 1
            counts.max_in_flight = max(counts.max_in_flight, counts.in_flight)

    def _has_room(self) -> bool:
        """True if a request that arrives now may be worked on, or may wait."""
        if not self._waiting and self._slot_is_free():
            return True
        most = self.behaviour.max_queue
        return self.behaviour.overflow == "queue" and (most is None or len(self._waiting) < most)

    def _slot_is_free(self) -> bool:
        slots = self.behaviour.slots
        return slots is None or self.counts.in_service < slots

    def _free_slot(self) -> None:
        self.counts.in_service -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free slots to those who wait, in the order of their arrival."""
        while self._waiting and self._slot_is_free():
            turn, request = self._waiting.popitem(last=False)
            if not turn.done():
                self._start(request)
                turn.set_result(None)

    def _start(self, request: Request) -> None:
        """Count a slot as taken. The clock starts here, not when the request's task resumes: others may be first."""
        counts = self.counts
        counts.in_service += 1
        counts.max_in_service = max(counts.max_in_service, counts.in_service)
        request.started = asyncio.get_running_loop().time()

    def _count_end(self, request: Request, ending: Ending) -> None:
        counts = self.counts
        request.ending = ending
        request.ended = asyncio.get_running_loop().time()
        counts.in_flight -= 1
        setattr(counts, ending, getattr(counts, ending) + 1)


_BLOCK = 1024
"""Number of requests whose random numbers are drawn together."""


def _ending(request: Request, raised: type[BaseException] | None) -> Ending:
    if raised is not None:
        return "cancelled" if issubclass(raised, asyncio.CancelledError | ConnectionError) else "failed"
    if request.status in (429, 503):
        return "rejected"
    if request.status != 200:
        return "refused"
    return "served" if request.fault in (None, "hang", "shuffled_embeddings") else "failed"
