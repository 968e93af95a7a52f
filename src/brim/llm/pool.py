"""`LLMPool`: many calls to language models at once, for code with and without an event loop.

The engine runs on one event loop in a thread of its own. Functions that are not async wait for it there; those that are
async wait in the caller's own loop, so both work in a notebook and inside a running loop. A pool can be used by several
threads at once, but not by a process that was forked from the one that made it.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Self

from brim.core.errors import BrimError, OptionError
from brim.core.options import check_counts, one_of
from brim.core.wait.loop import LoopThread
from brim.llm.asker import Asker
from brim.llm.call import Call, Kind, Reply, Sampling, chat
from brim.llm.config import CACHE_MODES, LOCAL, CacheMode, PoolConfig, Server
from brim.llm.endpoint import Endpoint
from brim.llm.engine.coalesce import Coalescer
from brim.llm.engine.engine import Engine
from brim.llm.engine.job import Done, Job
from brim.llm.engine.server import ServerState
from brim.llm.engine.stats import PoolStats
from brim.llm.failures import Failure, Rejected, TimedOut
from brim.llm.pending import Pending
from brim.llm.prompt_calls import Prompt, PromptCalls
from brim.llm.ready import Ready

if TYPE_CHECKING:
    from brim.llm.cache import Cache

AnyServer = str | Server | Endpoint
AHEAD = 4096


class LLMPool:
    """Calls to one or several model servers, whose capacity is found out while the calls run.

    Example:
        with LLMPool("http://127.0.0.1:11434", model="llama3.2") as pool:
            for result in pool.map(["Why is the sky blue?", "Why is grass green?"]):
                print(result.text if isinstance(result, Reply) else result)
    """

    def __init__(
        self,
        servers: AnyServer | Sequence[AnyServer] = LOCAL,
        *,
        model: str | None = None,
        config: PoolConfig | None = None,
        cache: "str | os.PathLike[str] | Cache | None" = None,
        cache_mode: CacheMode = "write",
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            servers: Addresses, `Server`s with options, or endpoints.
            model: Name of the model for calls that name none. Without it, the servers must have exactly one.
            cache: A file that keeps answers; it is made if need be.
            cache_mode: "read" uses answers and keeps no new ones, "write" does both, "replay" asks no server at all.
            trace: A file to which a line is added for every request.

        Raises:
            OptionError: There is no server, or an option cannot work.
            MissingExtraError: aiohttp is not installed.
        """
        from brim.llm.cache import Cache
        from brim.llm.trace import Trace

        one_of("cache_mode", cache_mode, CACHE_MODES)
        self.config = config or PoolConfig()
        self.model = model
        given = [servers] if isinstance(servers, str) or not isinstance(servers, Sequence) else list(servers)
        if not given:
            raise OptionError("a pool needs at least one server")
        states = [self._state(number, server) for number, server in enumerate(given)]
        self._process = os.getpid()
        self._closed = False
        with ExitStack() as files:
            if cache is not None and not isinstance(cache, Cache):
                cache = files.enter_context(closing(Cache(cache, mode=cache_mode)))
            self._trace = None if trace is None else files.enter_context(closing(Trace(trace)))
            self._cache = cache
            self._thread = LoopThread("brim-llm")
            self._files = files.pop_all()
        self._engine = self._thread.call(self._open(states))
        self._coalescer = self._thread.call(self._open_coalescer(states))

    def call(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        system: str | None = None,
        kind: Kind = "chat",
        sampling: Sampling | None = None,
        sample: int = 0,
    ) -> Call:
        """Return the call for a prompt; a call stays as it is.

        Args:
            system: The system message, for a chat.
            kind: "chat", or "complete" to let the model continue a text.
            sample: Number of the sample, where one prompt is asked several times.

        Raises:
            OptionError: The prompt is empty, or is not one.
        """
        if isinstance(prompt, Call):
            return prompt
        sampling = (sampling or Sampling()).numbered(sample)
        model = model or self.only_model()
        if kind == "complete":
            if not isinstance(prompt, str) or not prompt:
                raise OptionError(f"a text to continue must be a string that is not empty, got {prompt!r:.80}")
            return Call(kind=kind, model=model, prompt=prompt, sampling=sampling, sample=sample)
        return Call(model=model, messages=chat(prompt, system=system), sampling=sampling, sample=sample)

    def map(
        self,
        prompts: Iterable[Prompt],
        *,
        model: str | None = None,
        system: str | None = None,
        kind: Kind = "chat",
        sampling: Sampling | None = None,
        samples: int = 1,
    ) -> list[Reply | Failure]:
        """Return a reply or a failure for each prompt, in the order asked.

        With `samples`, each prompt is asked so many times, and its results stand next to each other. An empty prompt is
        not sent and comes back as `Rejected`.
        """
        calls = PromptCalls(self.call, model=model, system=system, kind=kind, sampling=sampling, samples=samples)
        return self._ready(calls.of(prompts), self._submit_call, ahead=16 * AHEAD).in_order()

    async def map_async(
        self,
        prompts: Iterable[Prompt],
        *,
        model: str | None = None,
        system: str | None = None,
        kind: Kind = "chat",
        sampling: Sampling | None = None,
        samples: int = 1,
    ) -> list[Reply | Failure]:
        """Do the same as `map` inside an event loop."""
        if model is None and self.model is None:
            model = await asyncio.to_thread(self._only_model)
        calls = PromptCalls(self.call, model=model, system=system, kind=kind, sampling=sampling, samples=samples)
        return await self._ready(calls.of(prompts), self._submit_call, ahead=16 * AHEAD).in_order_async()

    def as_ready(
        self,
        prompts: Iterable[Prompt],
        *,
        model: str | None = None,
        system: str | None = None,
        kind: Kind = "chat",
        sampling: Sampling | None = None,
        samples: int = 1,
        ahead: int = AHEAD,
    ) -> Ready:
        """Return an iterator over (number, reply or failure) in the order in which they are ready, for `for` and for
        `async for`.

        The prompts may be endless: at most `ahead` of them are taken before their results are used.
        """
        check_counts(ahead=ahead)
        calls = PromptCalls(self.call, model=model, system=system, kind=kind, sampling=sampling, samples=samples)
        return self._ready(calls.of(prompts), self._submit_call, ahead=ahead)

    def submit(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        system: str | None = None,
        kind: Kind = "chat",
        sampling: Sampling | None = None,
        sample: int = 0,
        deadline: float | None = None,
    ) -> Pending:
        """Send a prompt, and return an object from which its reply can be had later.

        Args:
            deadline: Seconds from now after which the call ends, even if it was never sent.
        """
        call = self.call(prompt, model=model, system=system, kind=kind, sampling=sampling, sample=sample)
        return Pending(self.post, self._engine, call, deadline)

    def embed(self, texts: Iterable[str], *, model: str | None = None) -> list[Reply | Failure]:
        """Return a reply with a vector, or a failure, for each text, in the order asked.

        Texts share requests. One that a server refuses fails alone.
        """
        return self.embed_as_ready(texts, model=model, ahead=16 * AHEAD).in_order()

    async def embed_async(self, texts: Iterable[str], *, model: str | None = None) -> list[Reply | Failure]:
        """Do the same as `embed` inside an event loop."""
        if model is None and self.model is None:
            model = await asyncio.to_thread(self._only_model)
        return await self.embed_as_ready(texts, model=model, ahead=16 * AHEAD).in_order_async()

    def embed_as_ready(self, texts: Iterable[str], *, model: str | None = None, ahead: int = AHEAD) -> Ready:
        """Return an iterator like that of `as_ready`, over embeddings."""
        check_counts(ahead=ahead)
        if isinstance(texts, str):
            raise OptionError("texts must be a list of strings, not one string")
        name = model or self.only_model()
        checked = (_checked_text(text) for text in texts)
        return self._ready(checked, lambda text, done: self._coalescer.submit(text, name, done), ahead=ahead)

    def _ready(self, items: Iterable[Any], submit: Callable[[Any, Done], Job | None], *, ahead: int) -> Ready:
        return Ready(items, submit, self.post, lambda jobs: _cancel(self._engine, jobs), ahead=ahead)

    def asker(self, turns: asyncio.Semaphore | None = None) -> Asker:
        """Return an object whose coroutines ask this pool's servers, for code that runs in the pool's own event loop.

        `turns` limits how many of its calls are open at once.
        """
        return Asker(self._engine, self._coalescer, turns)

    def only_model(self) -> str:
        """Return the model for calls that name none.

        Raises:
            OptionError: There is none, or the servers have several.
            Failure: No server can be asked.
        """
        return self.model or self._only_model()

    def models(self) -> dict[str, list[str] | Failure]:
        """Return the models of each server, or why it cannot be asked, by the server's name."""
        return self.run(self._models())

    def stats(self) -> PoolStats:
        """Return the figures of the pool and of its servers up to now."""
        return self.run(self._stats())

    def close(self) -> None:
        """End every open call with `Cancelled`, close all connections, and write what the cache and the trace hold."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return  # thread and files belong to the parent
        with self._files:
            self._thread.stop(self._engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"LLMPool({', '.join(server.name for server in self._engine.servers)})"

    def _state(self, number: int, server: AnyServer) -> ServerState:
        if isinstance(server, str):
            server = Server(url=server)
        if not isinstance(server, Server):
            limit = getattr(server, "limit", None)
            return ServerState(server, limit=limit, number=number, seed=self.config.seed)
        from brim.llm.wire.detect import open_endpoint

        return ServerState(
            open_endpoint(server),
            limit=server.limit,
            max_limit=server.max_limit,
            rpm=server.rpm,
            tpm=server.tpm,
            number=number,
            seed=self.config.seed,
        )

    async def _open(self, states: Sequence[ServerState]) -> Engine:
        trace = None if self._trace is None else self._trace.write
        return Engine(states, self.config, cache=self._cache, trace=trace)

    async def _open_coalescer(self, states: Sequence[ServerState]) -> Coalescer:
        # An endpoint in this process may want more texts in a request than a server.
        own = [getattr(state.endpoint, "embed_batch", None) for state in states]
        most = max(self.config.embed_batch, *(batch or 0 for batch in own))
        return Coalescer(self._engine, most=most, wait=self.config.embed_wait)

    def _submit_call(self, call: "Call | Rejected", done: Done) -> Job | None:
        if isinstance(call, Rejected):
            done(call)
            return None
        return self._engine.submit(call, done)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the thread of the pool's event loop, without waiting for it.

        Raises:
            BrimError: The pool is closed, or belongs to another process.
        """
        self._check_usable()
        try:
            self._thread.post(function, *arguments)
        except CancelledError:
            raise BrimError("the pool is closed") from None

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine in the pool's event loop and return its result.

        Raises:
            BrimError: The pool is closed, or belongs to another process.
        """
        try:
            self._check_usable()
        except BrimError:
            coroutine.close()
            raise
        return self._thread.call(coroutine)

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise BrimError("this pool was made by another process; make a pool in each process that asks")
        if self._closed:
            raise BrimError("the pool is closed")

    def _only_model(self) -> str:
        """Return the model of the servers, if they have exactly one.

        Raises:
            OptionError: They have none, or several.
            Failure: None of them can be asked.
        """
        if self._cache is not None and self._cache.mode == "replay":
            raise OptionError("name a model: a cache that is replayed asks no server for its models")
        found = self.models()
        names = sorted({name for models in found.values() if not isinstance(models, Failure) for name in models})
        if len(names) == 1:
            self.model = names[0]
            return names[0]
        if not names:
            raise next((one for one in found.values() if isinstance(one, Failure)), OptionError("name a model"))
        raise OptionError(f"name a model: the servers have {', '.join(names[:10])}")

    async def _models(self) -> dict[str, list[str] | Failure]:
        async def ask(server: ServerState) -> list[str] | Failure:
            try:
                async with asyncio.timeout(min(self.config.timeout, 30.0)):
                    return await server.endpoint.models()
            except Failure as failure:
                return failure
            except TimeoutError:
                return TimedOut("no list of models after 30 s", server=server.name)

        servers = self._engine.servers
        return dict(zip((server.name for server in servers), await asyncio.gather(*map(ask, servers)), strict=True))

    async def _stats(self) -> PoolStats:
        return self._engine.stats()


def _checked_text(text: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"a text to embed must be a string, got {text!r:.80}")
    return text


def _cancel(engine: Engine, jobs: Iterable[Job]) -> None:
    for job in jobs:
        engine.cancel(job)
