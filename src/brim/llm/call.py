"""A call to a model, the answer of one attempt, and the reply that the caller gets.

A `Call` is the same whichever server it goes to: it holds no address and no protocol. Its `key` covers everything that
may change the answer, so it serves as the key of the cache and of calls that are joined.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.fingerprint import canonical_json
from brim.core.options import check_counts
from brim.core.rng import new_seed

Kind = Literal["chat", "complete", "embed"]
Message = Mapping[str, Any]
"""A chat message: "role" and "content"."""
LARGEST_SEED = 2**31
"""Some servers keep a seed in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the model writes. None leaves an option to the server."""

    max_tokens: int | None = None
    """Upper limit of the tokens that are generated."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """Draw from this many likeliest tokens; 0 is no limit."""
    min_p: float | None = None
    """Draw from tokens whose probability is at least this share of the largest one; 0 is no limit. The OpenAI protocol
    has neither this nor `top_k`: a 0 is sent only to servers that are known to accept it."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    logprobs: bool = False
    """Whether to ask for the log-probability of each generated token."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the request, under the server's own names, such as {"format": "json"}."""

    def __post_init__(self) -> None:
        check_counts(max_tokens=self.max_tokens)
        for name, most in (("temperature", 100.0), ("top_p", 1.0), ("min_p", 1.0)):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= most:
                raise OptionError(f"{name} must lie between 0 and {most:g}, got {value!r}")
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 0):
            raise OptionError(f"top_k must be an integer that is not negative (0 is no limit), got {self.top_k!r}")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < LARGEST_SEED):
            raise OptionError(f"seed must be an integer from 0 to {LARGEST_SEED - 1}, got {self.seed!r}")
        if isinstance(self.stop, str):
            raise OptionError(f"stop must be a list of strings, got {self.stop!r}")
        if type(self.logprobs) is not bool:
            raise OptionError(f"logprobs must be True or False, got {self.logprobs!r}")

    @property
    def deterministic(self) -> bool:
        """True if equal calls get equal answers, as far as a server keeps its word."""
        return self.temperature == 0 or self.seed is not None

    def numbered(self, sample: int) -> "Sampling":
        """Return the options of sample number `sample` of one prompt: with a seed of its own, if there is a seed."""
        if self.seed is None or sample == 0:
            return self
        return replace(self, seed=new_seed(seed=self.seed, purpose="llm/sample", epoch=sample) % LARGEST_SEED)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One question to a model."""

    kind: Kind = "chat"
    model: str = ""
    messages: tuple[Message, ...] = ()
    """The conversation, for a chat."""
    prompt: str = ""
    """The text to continue, for a completion."""
    inputs: tuple[str, ...] = ()
    """The texts to embed."""
    sampling: Sampling = Sampling()
    sample: int = 0
    """Number of the sample, where one prompt is asked several times. Calls that differ in it are never joined, and are
    cached apart."""

    def key(self) -> bytes:
        """Return 16 bytes that stand for everything that may change the answer."""
        parts: dict[str, Any] = {
            "kind": self.kind,
            "model": self.model,
            "messages": [dict(message) for message in self.messages],
            "prompt": self.prompt,
            "inputs": list(self.inputs),
            "max_tokens": self.sampling.max_tokens,
            "temperature": None if self.sampling.temperature is None else float(self.sampling.temperature),
            "top_p": None if self.sampling.top_p is None else float(self.sampling.top_p),
            "seed": self.sampling.seed,
            "stop": list(self.sampling.stop),
            "extra": dict(self.sampling.extra),
            "sample": self.sample,
        }
        # Younger options count only where they are given, so that the keys of answers in older caches stay the same.
        if self.sampling.top_k is not None:
            parts["top_k"] = self.sampling.top_k
        if self.sampling.min_p is not None:
            parts["min_p"] = float(self.sampling.min_p)
        if self.sampling.logprobs:
            parts["logprobs"] = True
        return hashlib.blake2b(canonical_json(parts), digest_size=16).digest()

    @property
    def joinable(self) -> bool:
        """True if an equal call that is under way can answer this one, too."""
        return self.kind == "embed" or self.sampling.deterministic


def chat(prompt: "str | Sequence[Message]", *, system: str | None = None) -> tuple[Message, ...]:
    """Return the messages of a conversation: a string is one message of the user.

    Raises:
        OptionError: It is empty, or not a list of messages.
    """
    if isinstance(prompt, str):
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if not prompt.strip():
            raise OptionError("the prompt is empty")
    else:
        messages = [dict(message) for message in prompt]
        if not messages:
            raise OptionError("the prompt is an empty list of messages")
        for message in messages:
            if "role" not in message or "content" not in message:
                found = ", ".join(message) or "nothing"
                raise OptionError(f'a message needs "role" and "content"; this one has {found}')
    return ({"role": "system", "content": system}, *messages) if system else tuple(messages)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenLogprobs:
    """The log-probabilities of generated tokens, as a server told them.

    Which distribution they belong to depends on the server; docs/llm.md says what is known. A server may leave tokens
    out, such as those of a stop string: all are there if their number is that of `completion_tokens`.
    """

    tokens: tuple[str, ...]
    """The tokens as text; one that is only a part of a character in whatever way the server shows it."""
    logprobs: NDArray[np.float32]
    """One for each token, in nats; none is above 0."""
    ids: NDArray[np.int32] | None = None
    """The ids of all generated tokens; None if the server does not tell every one of them."""

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer of a server to one request."""

    text: str = ""
    vectors: NDArray[np.float32] | None = None
    """[n, d], one row for each of the call's inputs, in their order."""
    model: str = ""
    """The model that answered, as the server names it."""
    finish_reason: str | None = None
    """Why the answer ends: "stop", "length", or what the server says."""
    stop_reason: str | int | None = None
    """Which string or token id stopped it, where the server tells: "" is the model's own end token. None if the answer
    was not stopped, or the server does not tell."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    logprobs: TokenLogprobs | None = None
    """None if they were not asked for, or the server did not send them."""
    service_seconds: float | None = None
    """Seconds that the server says it worked on this request."""
    queue_seconds: float | None = None
    """Seconds that the request waited in the server, as the server's own figures tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to a call, and how it came about."""

    text: str = ""
    vector: NDArray[np.float32] | None = None
    """The embedding, for a text that was embedded."""
    model: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """Which string or token id stopped the answer, where the server tells: "" is the model's own end token."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    logprobs: TokenLogprobs | None = None
    """None if `Sampling.logprobs` did not ask for them, or the server did not send them."""
    server: str = ""
    """Address of the server that answered, without secrets; "" if it came from the cache."""
    attempts: int = 0
    """Requests that were sent for this call; 0 if it came from the cache or from an equal call."""
    seconds: float = 0.0
    """Time from submitting the call to its end."""
    latency: float = 0.0
    """Time of the attempt that succeeded."""
    queue_seconds: float | None = None
    """The part of it that the request waited in the server, if that is known."""
    cached: bool = False
    joined: bool = False
    """True if an equal call was under way, and its answer is this one."""
    hedged: bool = False
    """True if a second request was sent because the first one took long."""
    fallback: str | None = None
    """Why a default took the place of an answer, if `fallback=` asked for one."""
