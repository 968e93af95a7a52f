"""A model server without sockets, for schedulers in virtual time.

It is an `Endpoint`: `ask` returns an `Answer` or raises the failure that a real connection to such a server would have
led to. A call waits for nothing but the event loop's own timers, so a day of requests takes as long as their code.
"""

from dataclasses import replace
from typing import Any

from brim.core.errors import OptionError
from brim.llm.call import Answer, Call
from brim.llm.failures import BadReply, Failure, ModelMissing, Overloaded, Rejected, ServerFailed, ServerLost
from brim.llm.testing.behaviour import SOCKET_FAULTS, Behaviour, Fault, check_fault
from brim.llm.testing.replies import token_logprobs
from brim.llm.testing.service import Counts, Request, Service


class VirtualServer:
    """A simulated server in the event loop of its caller.

    Example:
        >>> import asyncio
        >>> from brim.core.wait.virtual_time import run
        >>> from brim.llm.call import Call, chat
        >>> async def ask_four():
        ...     server = VirtualServer(Behaviour(slots=2, latency=10.0))
        ...     calls = [Call(messages=chat(f"question {number}")) for number in range(4)]
        ...     await asyncio.gather(*(server.ask(call) for call in calls))
        ...     return asyncio.get_running_loop().time(), server.counts.max_in_service
        >>> run(ask_four())
        (20.0, 2)
    """

    def __init__(self, behaviour: Behaviour | None = None, *, name: str = "virtual", **options: Any) -> None:
        """Give a `Behaviour`, or its options.

        Raises:
            OptionError: It has faults that only a real connection can have.
        """
        if behaviour is not None and options:
            raise OptionError(f"give a Behaviour or its options, not both; got both with {', '.join(options)}")
        self._service = Service(_checked(behaviour or Behaviour(**options)))
        self._name = name
        self.down = False
        """While it is true, the server cannot be reached: requests fail at once, and nothing counts them."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def behaviour(self) -> Behaviour:
        return self._service.behaviour

    @property
    def slots(self) -> int | None:
        """Number of requests that it works on at once; can be set while it runs."""
        return self._service.behaviour.slots

    @slots.setter
    def slots(self, slots: int | None) -> None:
        self.change(slots=slots)

    @property
    def counts(self) -> Counts:
        return self._service.counts

    @property
    def requests(self) -> list[Request]:
        """The newest requests, in the order of their arrival."""
        return list(self._service.requests)

    def change(self, **options: Any) -> None:
        """Replace options of the behaviour while the server runs.

        Raises:
            OptionError: A value cannot work.
        """
        self._service.change(_checked(replace(self._service.behaviour, **options)))

    def next(self, *faults: Fault | None) -> None:
        """Give these faults to the next requests, one each, in place of random ones. None is a request that succeeds.

        Raises:
            OptionError: There is no such fault, or it needs a socket.
        """
        for fault in faults:
            if fault is not None and check_fault(fault) in SOCKET_FAULTS:
                raise OptionError(f"the fault {fault!r} needs a socket; use ModelServer")
        self._service.next(*faults)

    async def ask(self, call: Call) -> Answer:
        """Answer a call after the time that the behaviour says.

        Raises:
            Failure: The call is turned away, or a fault strikes it.
        """
        if self.down:
            raise self._unreached()
        async with self._service.request(call) as request:
            if request.status == 200:
                await request.work()
        if failure := self._failure(request):
            raise failure
        return self._answer(request)

    async def models(self) -> list[str]:
        """Return the names of its models, at once."""
        if self.down:
            raise self._unreached()
        return list(self._service.models())

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _unreached(self) -> ServerLost:
        failure = ServerLost("the server cannot be reached", server=self._name)
        failure.connected = False
        return failure

    def _failure(self, request: Request) -> Failure | None:
        """Return the failure that a client of a real server would raise for such a reply."""
        status = request.status
        name = self._name
        fault = request.fault
        if status == 404 and request.started is None:
            return ModelMissing(request.message, server=name, status=404)
        if status in (429, 503):
            after = self.behaviour.retry_after
            return Overloaded(f"the server is busy (HTTP {status})", server=name, status=status, retry_after=after)
        if status != 200:
            kind = Rejected if status < 500 else ServerFailed
            return kind(request.message, server=name, status=status)
        if fault == "error":
            status = self.behaviour.error_status
            return ServerFailed(f"the server failed (HTTP {status})", server=name, status=status)
        if fault == "ndjson_error":
            return ServerFailed("the server failed in the middle of its answer", server=name, status=200)
        if fault == "drop":
            return ServerLost("the server closed the connection", server=name)
        if fault in ("garbage", "empty", "short_embeddings"):
            return BadReply(f"the reply cannot be understood (fault {fault!r})", server=name, status=200)
        return None

    def _answer(self, request: Request) -> Answer:
        reports = self.behaviour.reports_durations
        queue, prompt, answer = request.durations()
        content = request.content
        embeds = request.call.kind == "embed"
        tells = request.call.sampling.logprobs and self.behaviour.reports_logprobs and not embeds
        return Answer(
            text=content.texts[0] if content.texts else "",
            vectors=content.vectors,
            model=request.call.model or self._service.models()[0],
            finish_reason=None if embeds else content.reasons[0],
            prompt_tokens=content.prompt_tokens,
            completion_tokens=None if embeds else content.completion_tokens,
            logprobs=token_logprobs(content.texts[0]) if tells else None,
            service_seconds=prompt + answer if reports else None,
            queue_seconds=queue if reports else None,
        )


def _checked(behaviour: Behaviour) -> Behaviour:
    for fault, probability in behaviour.faults.items():
        if probability > 0 and fault in SOCKET_FAULTS:
            raise OptionError(f"the fault {fault!r} needs a socket; use ModelServer")
    return behaviour
