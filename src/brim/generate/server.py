"""`ServerGenerator`: responses of a model that runs behind a server, such as vLLM, llama.cpp or Ollama.

It yields the same `Response` as generation in this process, so that either can feed a trainer. Each response is one
call of an `LLMPool`, which decides how many are in flight. A call that failed is a `FailedResponse` in the place of its
response; no text is ever made up. Nothing here imports torch, and nothing knows a tokenizer: token ids are those that a
server tells, or are not known.

Pitfall: a server fills in every option that a request leaves out. llama.cpp draws from the 40 likeliest tokens, with a
`min_p` of 0.05; vLLM takes `top_k`, `min_p` and `repetition_penalty` from the model's generation_config.json, unless it
was started with `--generation-config vllm`. Therefore `temperature` and `top_p` are always sent. The OpenAI protocol
has neither `top_k` nor `min_p`, and some hosted servers refuse a request with a field that they do not know: values
above 0 are always sent; a 0, which is no limit, only to Ollama and to servers whose list of models says that they are
vLLM, SGLang or llama.cpp. llama.cpp truncates before it divides by the temperature, the others and `Law` after it.
"""

import os
import secrets
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint
from brim.core.options import check_counts
from brim.core.rng import new_seed
from brim.generate.config import FinishReason, GenerationConfig, Stop, checked_stops
from brim.generate.rollouts import Column, Ids, Response
from brim.llm.answers.ask import is_hopeless, servers_lost
from brim.llm.call import LARGEST_SEED, Call, Message, Reply, Sampling, chat
from brim.llm.config import PoolConfig
from brim.llm.engine.stats import PoolStats
from brim.llm.failures import BadReply, Failure, Rejected
from brim.llm.pool import AnyServer, LLMPool

if TYPE_CHECKING:
    from brim.llm.cache import Cache

ChatOrText = str | Sequence[Message]
"""A prompt: a text, or a conversation."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FailedResponse:
    """A response that no server gave."""

    prompt: int
    """Number of the prompt in the call."""
    sample: int
    """Number of the response among those to its prompt."""
    failure: Failure


class ServerGenerator:
    """G responses to each prompt, from one or several model servers.

    A `Response` holds what the server told:

    - `text` is as the server sent it. Servers cut a stop string off.
    - `token_ids` are known with `logprobs=True`, from llama.cpp and vLLM. They are None if the server did not tell all
      of them: llama.cpp leaves out the tokens of a stop string, and tokens that are only a part of a character.
    - `logprobs` are those of the model itself. Servers send log-probs of either of two distributions: the model's own
      (llama.cpp; vLLM, unless it was started with another `--logprobs-mode`; Ollama) or the one that the token was
      drawn from (SGLang divides by the temperature), and a reply does not say which. So they are recorded only where
      both are the same, at temperature 1 with nothing truncated, and only if there is one for every generated token.
    - `sampling_logprobs` are None, because no reply proves that it holds them, and so are `entropies`.
    - `finish_reason` is "length" where the server says so. Where it says "stop", it is "eos" if no stop was asked for.
      Otherwise it is what vLLM or SGLang tell (`stop_reason`, `matched_stop`), or what the last token id proves if all
      stops are token ids. A server that tells neither does not distinguish a stop string from the model's own end
      token, and "stop" stands for both. Any other reason is a failure.

    Example:
        with ServerGenerator("http://127.0.0.1:8000", logprobs=True) as generator:
            for response in generator.stream(["2 + 2 =", "3 + 3 ="], G=8, seed=0):
                if isinstance(response, Response):
                    print(response.prompt, response.sample, response.text)
    """

    def __init__(
        self,
        servers: AnyServer | Sequence[AnyServer],
        *,
        model: str | None = None,
        config: GenerationConfig | None = None,
        pool_config: PoolConfig | None = None,
        chat: bool = False,
        logprobs: bool = False,
        cache: "str | os.PathLike[str] | Cache | None" = None,
        trace: str | os.PathLike[str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            servers: Addresses, `Server`s with options, or endpoints.
            model: Name of the model. Without it, the servers must have exactly one.
            config: How responses are drawn. Batch sizes and budgets have no effect: the server batches.
            pool_config: How calls are sent, repeated and given up.
            chat: Ask for the answer to a conversation, to which the server applies the model's chat template; a text is
                then one message of the user. Otherwise the model continues the text. Ollama applies its template to
                texts, too, unless `extra` has {"raw": True}.
            logprobs: Ask for log-probs and token ids.
            cache: A file that keeps answers; it is made if need be.
            trace: A file to which a line is added for every request.
            extra: Further fields of every request, under the server's own names.

        Raises:
            OptionError: There is no server, or an option cannot work.
            MissingExtraError: aiohttp is not installed.
        """
        self.config = config or GenerationConfig()
        self.seed: int | None = None
        """Seed of the latest `stream`."""
        self._chat = chat
        self._logprobs = logprobs
        self._extra = dict(extra or {})
        self._stats: PoolStats | None = None
        self._pool = LLMPool(servers, model=model, config=pool_config, cache=cache, trace=trace)

    def stream(
        self,
        prompts: Sequence[ChatOrText],
        G: int = 8,  # noqa: N803  the seed's letter
        *,
        seed: int | None = None,
        stop: Sequence[Stop] | None = None,
        skip: Container[tuple[int, int]] = (),
    ) -> Iterator[Response | FailedResponse]:
        """Yield G responses to each prompt, in the order in which they are ready.

        The seed of a response depends on `seed`, on the content of its prompt, on how many equal prompts stand before
        it and on the number of the response: neither the order of the prompts nor `skip` changes it. Whether a server
        gives the same response for the same seed is up to the server.

        Args:
            G: Number of responses to each prompt.
            seed: None takes that of the config, or else a new one: see `seed`.
            stop: Texts and token ids that end a response. None takes those of the config. Token ids are sent as
                `stop_token_ids`, which vLLM and SGLang know; other servers ignore or refuse them.
            skip: (number of a prompt, number of a response) of those that are not needed.

        Raises:
            OptionError: An option is out of range, or a prompt is empty.
            Failure: No further call can succeed: the servers are lost, or the first answers say that the key is refused
                or the model is missing. Most of these show only while the responses are read.
        """
        check_counts(G=G)
        if isinstance(prompts, str):
            raise OptionError("prompts must be a list of prompts, not one string")
        for number, prompt in enumerate(prompts):
            self._check(number, prompt)
        stops = (self.config.stop or ()) if stop is None else checked_stops(stop)
        if seed is None:
            seed = self.config.seed
        if seed is None:
            seed = secrets.randbits(63)
        if type(seed) is not int or seed < 0:
            raise OptionError(f"seed must be an integer that is not negative, got {seed!r}")
        self.seed = seed
        model = self._pool.only_model() if prompts else ""
        return self._responses(_Request(prompts, G, seed, stops, skip, model))

    @property
    def stats(self) -> PoolStats:
        """The figures of the calls and of the servers up to now, or up to `close`."""
        return self._stats or self._pool.stats()

    def close(self) -> None:
        """End every open call, close all connections, and write what the cache and the trace hold."""
        if self._stats is None:
            self._stats = self._pool.stats()
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _check(self, number: int, prompt: ChatOrText) -> None:
        """Refuse a prompt that cannot be asked."""
        if not self._chat and not isinstance(prompt, str):
            raise OptionError(f"prompt {number} is a conversation, not a text; pass chat=True")
        if not self._chat and not prompt:
            raise OptionError(f"prompt {number} is empty")
        if self._chat:
            try:
                chat(prompt)
            except OptionError as error:
                raise OptionError(f"prompt {number} cannot be asked: {error}") from None

    def _responses(self, request: "_Request") -> Iterator[Response | FailedResponse]:
        under_way: dict[int, tuple[int, int]] = {}
        answered = False
        lost = servers_lost(self._pool.stats, self._pool.config.attempts)
        for index, result in self._pool.as_ready(self._calls(request, under_way)):
            prompt, sample = under_way.pop(index)
            if not isinstance(result, Failure):
                answered = True
                yield self._response(prompt, sample, result, request.stops)
            elif is_hopeless(result, answered=answered) or lost(result):
                raise result
            else:
                yield FailedResponse(prompt=prompt, sample=sample, failure=result)

    def _calls(self, request: "_Request", under_way: dict[int, tuple[int, int]]) -> Iterator[Call]:
        """Yield the calls that are needed, and note in `under_way` which response each of them is for."""
        index = 0
        sampling = self._sampling(request.stops)
        seen: Counter[str] = Counter()
        for number, prompt in enumerate(request.prompts):
            call = self._call(request.model, prompt)
            content = fingerprint(prompt=call.prompt, messages=[dict(message) for message in call.messages])
            purpose = f"generate/server/{content}/{seen[content]}"
            seen[content] += 1
            for sample in range(request.G):
                if (number, sample) in request.skip:
                    continue
                seed = new_seed(seed=request.seed, purpose=purpose, epoch=sample) % LARGEST_SEED
                under_way[index] = (number, sample)
                index += 1
                yield replace(call, sampling=replace(sampling, seed=seed), sample=sample)

    def _call(self, model: str, prompt: ChatOrText) -> Call:
        if self._chat or not isinstance(prompt, str):
            return Call(model=model, messages=chat(prompt))
        return Call(kind="complete", model=model, prompt=prompt)

    def _sampling(self, stops: tuple[Stop, ...]) -> Sampling:
        """Return the options that all calls have in common."""
        ids = _token_stops(stops)
        law = self.config.law
        common = Sampling(
            max_tokens=self.config.max_new_tokens,
            temperature=law.temperature,
            stop=tuple(stop for stop in stops if isinstance(stop, str)),
            logprobs=self._logprobs,
            extra=self._extra | ({"stop_token_ids": ids} if ids else {}),
        )
        return common if law.greedy else replace(common, top_p=law.top_p, top_k=law.top_k, min_p=law.min_p)

    def _response(self, prompt: int, sample: int, reply: Reply, stops: tuple[Stop, ...]) -> Response | FailedResponse:
        """Return the response that a reply holds, or the failure that it amounts to."""
        token_ids = None if reply.logprobs is None else reply.logprobs.ids
        try:
            reason = _finish_reason(reply, token_ids, stops)
        except Failure as failure:
            return FailedResponse(prompt=prompt, sample=sample, failure=failure)
        return Response(
            prompt=prompt,
            sample=sample,
            text=reply.text,
            finish_reason=reason,
            token_ids=token_ids,
            logprobs=self._models_own(reply),
        )

    def _models_own(self, reply: Reply) -> Column | None:
        """Return the log-probs under the model itself, one for each generated token; None if they are not known."""
        told = reply.logprobs
        if told is None or not self.config.law.is_models_own or len(told) != reply.completion_tokens:
            return None
        return told.logprobs


class _Request(NamedTuple):
    """The arguments of one `stream`, checked."""

    prompts: Sequence[ChatOrText]
    G: int
    seed: int
    stops: tuple[Stop, ...]
    skip: Container[tuple[int, int]]
    model: str


def _finish_reason(reply: Reply, token_ids: Ids | None, stops: tuple[Stop, ...]) -> FinishReason:
    """Return why a response ends.

    Raises:
        Failure: The server names another reason, or did not stop where it was told to.
    """
    ids = _token_stops(stops)
    if token_ids is not None and np.isin(token_ids[:-1], ids).any():
        message = f"the server did not stop at one of the token ids {ids}; it may not know stop_token_ids"
        raise Rejected(message, server=reply.server, attempts=reply.attempts, seconds=reply.seconds)
    if reply.finish_reason == "length":
        return "length"
    if reply.finish_reason != "stop":
        message = f"the answer ended because of {reply.finish_reason!r:.40}, which is neither stop nor length"
        raise BadReply(message, server=reply.server, attempts=reply.attempts, seconds=reply.seconds)
    if not stops:
        return "eos"
    if reply.stop_reason in stops:
        return "stop"
    # vLLM names the id of an end token only where a model has several; SGLang always does.
    if reply.stop_reason == "" or isinstance(reply.stop_reason, int):
        return "eos"
    if token_ids is not None and len(ids) == len(stops):
        return "stop" if np.isin(token_ids[-1:], ids).any() else "eos"
    return "stop"


def _token_stops(stops: tuple[Stop, ...]) -> list[int]:
    return [stop for stop in stops if isinstance(stop, int)]
