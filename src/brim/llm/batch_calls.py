"""Lists in, lists out: embed queries, rewrite queries, and ask a model many prompts at once.

Results stand in the order asked, and a call that failed is a `Failure` in its place. Nothing takes the place of a
failure unless `fallback` asks for it; then it is counted in `BatchResult.fallbacks` and marked in `Reply.fallback`.

Each function opens a pool for its servers and closes it again. To share adaptive limits, a cache or a trace between
several calls, make an `LLMPool` and give it as `pool`.
"""

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts, one_of
from brim.llm.call import Reply, Sampling
from brim.llm.config import LOCAL, Server
from brim.llm.embed.open import is_in_process, open_embedder
from brim.llm.failures import Failure
from brim.llm.mutations import Mutation, load_mutation
from brim.llm.pool import AnyServer, LLMPool
from brim.llm.prompt_calls import Prompt

Servers = AnyServer | Sequence[AnyServer]
AnyMutation = str | os.PathLike[str] | Mutation
Result = TypeVar("Result")


class BatchResult(list[Result], Generic[Result]):
    """A list of results in the order asked."""

    def __init__(self, results: Iterable[Result] = (), fallbacks: dict[int, Failure] | None = None) -> None:
        super().__init__(results)
        self.fallbacks = fallbacks or {}
        """The failures that a fallback has replaced, by their place in the list."""

    @property
    def failed(self) -> dict[int, Failure]:
        """The failures that are in the list, by their place."""
        return {place: result for place, result in enumerate(self) if isinstance(result, Failure)}


class Embeddings(np.ndarray[tuple[int, int], np.dtype[np.float32]]):
    """Vectors, float32 [n, d]. The rows of texts that could not be embedded are NaN, and `failed` has their failures by
    row. Slices and copies have no `failed`, because their rows may be others."""

    failed: dict[int, Failure]

    def __new__(cls, vectors: NDArray[np.float32], failed: dict[int, Failure] | None = None) -> "Embeddings":
        array = vectors.view(cls)
        array.failed = failed or {}
        return array


@overload
def batch_encode_queries(
    queries: Sequence[str],
    model: str | os.PathLike[str] | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    results: Literal[False] = False,
) -> Embeddings: ...


@overload
def batch_encode_queries(
    queries: Sequence[str],
    model: str | os.PathLike[str] | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    results: Literal[True],
) -> BatchResult[Reply | Failure]: ...


def batch_encode_queries(
    queries: Sequence[str],
    model: str | os.PathLike[str] | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    results: bool = False,
) -> Embeddings | BatchResult[Reply | Failure]:
    """Return the embeddings of queries, float32 [n, d].

    Without `servers` and `pool`, the built-in model "hash" and a directory such as "./minilm" are computed in this
    process; other models are asked from an Ollama server on this machine.

    Args:
        model: Name of the model. It can be left out where the pool has one, or the servers have exactly one.
        servers: Addresses of servers, or `Server`s with options.
        pool: A pool to use instead of servers.
        max_workers: Upper limit of the requests in flight at each server. None finds out what a server can take.
        results: Return a `Reply` or a failure for each query, instead of an array.

    Raises:
        OptionError: The queries are not a list of strings, or an option cannot work.
        DataError: Two servers gave vectors of different sizes.
        Failure: No query at all could be embedded, and an array was asked for.
    """
    texts = _strings("queries", queries)
    if servers is None and pool is None and model is not None and is_in_process(model):
        if max_workers is not None:
            raise OptionError(f"max_workers has no effect on {os.fspath(model)}, which runs in this process")
        replies = _encoded_here(texts, model)
    else:
        with _pool(texts, servers, pool, max_workers) as opened:
            replies = opened.embed(texts, model=None if model is None else os.fspath(model)) if opened else []
    return BatchResult(replies) if results else _stacked(replies)


@overload
def batch_mutate_queries(
    queries: Sequence[str],
    mutations: AnyMutation | Sequence[AnyMutation],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: Literal["original"] | None = None,
    results: Literal[False] = False,
) -> BatchResult[str | Failure]: ...


@overload
def batch_mutate_queries(
    queries: Sequence[str],
    mutations: AnyMutation | Sequence[AnyMutation],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: Literal["original"] | None = None,
    results: Literal[True],
) -> BatchResult[Reply | Failure]: ...


def batch_mutate_queries(
    queries: Sequence[str],
    mutations: AnyMutation | Sequence[AnyMutation],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: Literal["original"] | None = None,
    results: bool = False,
) -> BatchResult[Any]:
    """Let a model rewrite queries, and return the new ones, without blanks around them.

    Args:
        mutations: How they are rewritten: a name from `brim.llm.mutations`, a template file, or a `Mutation`; one for
            all queries, or a list with one for each.
        model: Name of the model. It can be left out where the pool has one, or the servers have exactly one.
        servers: Addresses of servers, or `Server`s with options; by default an Ollama server on this machine.
        pool: A pool to use instead of servers.
        max_workers: Upper limit of the requests in flight at each server. None finds out what a server can take.
        fallback: "original" puts the query itself in the place of a failure.
        results: Return `Reply`s instead of strings.

    Raises:
        OptionError: The queries are not a list of strings, there is no such mutation, or an option cannot work.
        DataError: A template file is not a template.
    """
    texts = _strings("queries", queries)
    if fallback is not None:
        one_of("fallback", fallback, ["original"])
    chosen = _mutations(mutations, len(texts))
    # An empty query stays empty, and the pool refuses it: a model would invent one.
    prompts = [mutation.apply(text) if text.strip() else "" for mutation, text in zip(chosen, texts, strict=True)]
    with _pool(texts, servers, pool, max_workers) as opened:
        replies = opened.map(prompts, model=model, sampling=sampling) if opened else []
    stripped = [reply if isinstance(reply, Failure) else replace(reply, text=reply.text.strip()) for reply in replies]
    return _finished(stripped, None if fallback is None else texts, results)


@overload
def batch_query_target_model(
    prompts: Sequence[Prompt],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: str | None = None,
    results: Literal[False] = False,
) -> BatchResult[str | Failure]: ...


@overload
def batch_query_target_model(
    prompts: Sequence[Prompt],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: str | None = None,
    results: Literal[True],
) -> BatchResult[Reply | Failure]: ...


def batch_query_target_model(
    prompts: Sequence[Prompt],
    model: str | None = None,
    *,
    servers: Servers | None = None,
    pool: LLMPool | None = None,
    max_workers: int | None = None,
    sampling: Sampling | None = None,
    fallback: str | None = None,
    results: bool = False,
) -> BatchResult[Any]:
    """Ask a model many prompts at once, and return its answers.

    Args:
        prompts: Strings, or lists of messages.
        model: Name of the model. It can be left out where the pool has one, or the servers have exactly one.
        servers: Addresses of servers, or `Server`s with options; by default an Ollama server on this machine.
        pool: A pool to use instead of servers.
        max_workers: Upper limit of the requests in flight at each server. None finds out what a server can take.
        fallback: A text that takes the place of a failure. A reward for such a text rewards a failed call.
        results: Return `Reply`s instead of strings.

    Raises:
        OptionError: The prompts are not a list, or an option cannot work.
    """
    if isinstance(prompts, str):
        raise OptionError(f"prompts must be a list, got one string: {prompts[:40]!r}")
    listed = list(prompts)
    with _pool(listed, servers, pool, max_workers) as opened:
        replies = opened.map(listed, model=model, sampling=sampling) if opened else []
    return _finished(replies, None if fallback is None else [fallback] * len(listed), results)


def _strings(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str):
        raise OptionError(f"{name} must be a list of strings, got one string: {values[:40]!r}")
    listed = list(values)
    for place, value in enumerate(cast(list[Any], listed)):
        if not isinstance(value, str):
            raise OptionError(f"{name} must be strings; number {place} is {value!r:.80}")
    return listed


def _encoded_here(texts: list[str], model: str | os.PathLike[str]) -> list[Reply | Failure]:
    if not texts:  # a model need not be loaded for them
        return []
    embedder = open_embedder(os.fspath(model))
    return [Reply(vector=vector, model=embedder.name) for vector in embedder.encode(texts)]


@contextmanager
def _pool(
    asked: Sequence[Any], servers: Servers | None, pool: LLMPool | None, max_workers: int | None
) -> Generator[LLMPool | None, None, None]:
    """Yield the pool that was given, or one for the servers that is closed at the end; None if nothing is asked."""
    check_counts(max_workers=max_workers)
    if pool is not None:
        for name, value in (("servers", servers), ("max_workers", max_workers)):
            if value is not None:
                raise OptionError(f"{name} has no effect on a pool that exists; give it to the pool's servers")
        yield pool if asked else None
        return
    chosen = LOCAL if servers is None else servers
    listed = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
    capped = listed if max_workers is None else [_capped(server, max_workers) for server in listed]
    if not asked:
        yield None
        return
    with LLMPool(capped) as opened:
        yield opened


def _capped(server: AnyServer, most: int) -> Server:
    if isinstance(server, str):
        return Server(url=server, max_limit=most)
    if not isinstance(server, Server):
        raise OptionError(f"max_workers needs servers by their address, got {type(server).__name__}")
    limit = None if server.limit is None else min(server.limit, most)
    return replace(server, limit=limit, max_limit=min(server.max_limit, most))


def _stacked(replies: Sequence[Reply | Failure]) -> Embeddings:
    """Put vectors into the rows of one array, [n, d]."""
    vectors = {row: reply.vector for row, reply in enumerate(replies) if not isinstance(reply, Failure)}
    failed = {row: reply for row, reply in enumerate(replies) if isinstance(reply, Failure)}
    if failed and not vectors:
        raise failed[0]
    sizes = sorted({0 if vector is None else len(vector) for vector in vectors.values()})
    if len(sizes) > 1:
        raise DataError(f"the servers gave vectors of different sizes: {', '.join(map(str, sizes))}; do they differ?")
    rows = np.full((len(replies), sizes[0] if sizes else 0), np.nan, np.float32)
    for row, vector in vectors.items():
        rows[row] = vector
    return Embeddings(rows, failed)


def _mutations(given: AnyMutation | Sequence[AnyMutation], count: int) -> list[Mutation]:
    if isinstance(given, str | os.PathLike | Mutation):
        return [_loaded(given)] * count
    if len(given) != count:
        raise OptionError(f"there are {len(given)} mutations for {count} queries; give one for each, or one for all")
    return [_loaded(one) for one in given]


def _loaded(mutation: AnyMutation) -> Mutation:
    loaded = mutation if isinstance(mutation, Mutation) else load_mutation(mutation)
    if loaded.needs_other:
        raise OptionError(
            f"the mutation {loaded.name!r} needs a second query for each query, and none can be given here; ask a "
            "model the prompts that Mutation.apply(query, other) returns"
        )
    return loaded


def _finished(replies: Sequence[Reply | Failure], instead: Sequence[str] | None, results: bool) -> BatchResult[Any]:
    """Put fallbacks in the place of failures, if there are any, and return replies or their texts."""
    fallbacks: dict[int, Failure] = {}
    finished: list[Reply | Failure] = []
    for place, reply in enumerate(replies):
        if isinstance(reply, Failure) and instead is not None:
            fallbacks[place] = reply
            reply = Reply(
                text=instead[place],
                server=reply.server,
                attempts=reply.attempts,
                seconds=reply.seconds,
                fallback=f"{type(reply).__name__}: {reply}",
            )
        finished.append(reply)
    if results:
        return BatchResult(finished, fallbacks)
    return BatchResult([one if isinstance(one, Failure) else one.text for one in finished], fallbacks)
