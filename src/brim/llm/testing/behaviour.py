"""Options of a simulated model server: capacity, latency, answers, models, faults.

Everything random is a function of `seed` and of the number of the request, so a run that sends the same requests in the
same order meets the same latencies and the same faults. With several requests at once, their order is the order in
which they reach the server.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import check_counts, one_of
from brim.llm.call import Call

Fault = Literal[
    "error",
    "reject",
    "hang",
    "drop",
    "garbage",
    "empty",
    "ndjson_error",
    "short_embeddings",
    "shuffled_embeddings",
    "cut",
    "wrong_length",
    "drip",
    "endless",
    "bomb",
    "redirect",
]
SOCKET_FAULTS: tuple[Fault, ...] = ("cut", "wrong_length", "drip", "endless", "bomb", "redirect")
"""Faults that only a real connection can have."""


class Refusal(Exception):  # noqa: N818
    """Raised by a callable in `answers` or `embedding` to refuse a request.

    Example:
        def embedding(text):
            if len(text) > 100:
                raise Refusal("the input length exceeds the context length")
            return numpy.ones(8)
    """

    def __init__(self, message: str, status: int = 400) -> None:
        """`status` is the HTTP status of the reply."""
        super().__init__(message)
        self.message = message
        self.status = status


class Latency(Protocol):
    """A distribution of the seconds from the start of the work on a request to its answer."""

    def at(self, share: float) -> float:
        """Return the quantile `share`, a number in [0, 1)."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(seconds=self.seconds)

    def at(self, share: float) -> float:
        return self.seconds


@dataclass(frozen=True)
class Uniform:
    """Any number of seconds between two, equally likely."""

    shortest: float
    longest: float

    def __post_init__(self) -> None:
        _check_seconds(shortest=self.shortest, longest=self.longest)
        if self.shortest > self.longest:
            raise OptionError(f"shortest must not exceed longest, got {self.shortest!r} and {self.longest!r}")

    def at(self, share: float) -> float:
        return self.shortest + (self.longest - self.shortest) * share


@dataclass(frozen=True)
class LogNormal:
    """Log-normal: many near the median, and a long tail that `sigma` makes longer. The mean is median * exp(sigma**2 /
    2)."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _check_seconds(median=self.median)
        if not 0 <= self.sigma <= 10:
            raise OptionError(f"sigma must lie between 0 and 10, got {self.sigma!r}")

    def at(self, share: float) -> float:
        return self.median * math.exp(self.sigma * _STANDARD_NORMAL.inv_cdf(max(share, 2.0**-53)))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities of what goes wrong with a request. At most one thing does, so their sum is at most 1."""

    error: float = 0.0
    """HTTP status `error_status`, after the usual latency."""
    reject: float = 0.0
    """HTTP status `reject_status` at once, although there are free slots."""
    hang: float = 0.0
    """The answer comes `hang_seconds` late. The request keeps its slot until then, or until the client leaves."""
    drop: float = 0.0
    """The connection is closed instead of an answer."""
    garbage: float = 0.0
    """A body that is not JSON, with HTTP status 200."""
    empty: float = 0.0
    """An empty body, with HTTP status 200."""
    ndjson_error: float = 0.0
    """An error inside the body, with HTTP status 200: as its last line or event where the answer is streamed."""
    short_embeddings: float = 0.0
    """One embedding is missing in the reply."""
    shuffled_embeddings: float = 0.0
    """The embeddings come in another order, and each with its index. Only the OpenAI protocol has an index; elsewhere
    the request is answered as usual."""
    cut: float = 0.0
    """The connection is closed in the middle of the body."""
    wrong_length: float = 0.0
    """The header Content-Length promises more than the body has."""
    drip: float = 0.0
    """A body of spaces, one each `drip_seconds`, without end."""
    endless: float = 0.0
    """A body without end, as fast as it is read."""
    bomb: float = 0.0
    """A gzip-compressed body of a few hundred KiB, which is 256 MiB long when it is decompressed."""
    redirect: float = 0.0
    """A redirect (HTTP 307) to `redirect_to`."""

    def __post_init__(self) -> None:
        for name, value in self.items():
            if not 0.0 <= value <= 1.0:
                raise OptionError(f"the probability of {name} must lie between 0 and 1, got {value!r}")
        if (total := sum(value for _, value in self.items())) > 1.0 + 1e-9:
            raise OptionError(f"the probabilities of all faults together must be at most 1, got {total:g}")

    def items(self) -> list[tuple[Fault, float]]:
        """Return the faults and their probabilities, in the order of the fields."""
        return [(cast(Fault, field.name), getattr(self, field.name)) for field in fields(self)]

    def at(self, share: float) -> Fault | None:
        """Return the fault that a number in [0, 1) stands for, or None."""
        for name, bound in self._bounds:
            if share < bound:
                return name
        return None

    @cached_property
    def _bounds(self) -> list[tuple[Fault, float]]:
        """The faults that can happen, each with the end of its part of [0, 1]."""
        end = 0.0
        bounds: list[tuple[Fault, float]] = []
        for name, value in self.items():
            end += value
            if value > 0:
                bounds.append((name, end))
        return bounds


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How a simulated model server behaves."""

    slots: int | None = None
    """Number of requests that it works on at once. None is no limit."""
    overflow: Literal["reject", "queue"] = "queue"
    """Whether a request that finds no free slot is rejected at once, or waits in a queue (first in, first out)."""
    max_queue: int | None = None
    """Upper limit of the requests that wait; those beyond it get HTTP status 503. None is no limit."""
    reject_status: Literal[429, 503] = 503
    """HTTP status of a request that is rejected because no slot is free."""
    retry_after: float | None = None
    """Seconds in the header Retry-After of rejections. None sends no header."""
    latency: float | Latency = 0.0
    """Seconds from the start of the work to the answer (to the first token, if the answer is streamed): a number or a
    distribution."""
    seconds_per_token: float = 0.0
    """Further seconds for each generated token, or for each token of texts that are embedded."""
    faults: Faults = Faults()
    error_status: int = 500
    """HTTP status of the fault "error"."""
    hang_seconds: float = math.inf
    """Delay of the fault "hang". math.inf never answers."""
    drip_seconds: float = 0.05
    """Time between two bytes of the fault "drip"."""
    redirect_to: str = "http://127.0.0.1:9/"
    """Address in the fault "redirect"."""
    answers: "Callable[[Call], str] | Mapping[str, str] | Sequence[str] | None" = None
    """The source of the answers: a function of the call; texts by prompt (other prompts get HTTP status 400); a script,
    one text after another in the order in which the work on the requests starts (400 after its end); or None for a text
    made of the prompt, see `brim.llm.testing.replies.echo`."""
    embedding: "Callable[[str], NDArray[np.float32]] | None" = None
    """The vector of a text. None is a unit vector of length `dim` that depends on the text alone."""
    dim: int = 64
    """Length of the default vectors."""
    models: tuple[str, ...] | None = None
    """The models that it has; calls to others get HTTP status 404. None has every model, and lists "test"."""
    software: Literal["openai", "vllm", "llama.cpp"] = "openai"
    """Whose form replies in the OpenAI protocol have where servers differ. "vllm" tells the ids of tokens if a request
    has `return_token_ids`, and what stopped an answer (`stop_reason`). "llama.cpp" sends the log-probs of completions
    in the form of those of chats, with ids. "openai" does neither."""
    reports_logprobs: bool = True
    """Whether log-probs are sent to those who ask for them: see `brim.llm.testing.replies.token_facts`."""
    reports_durations: bool = True
    """Whether replies say how long the request waited and was worked on: Ollama's durations, llama.cpp's timings."""
    seed: int = 0
    """Decides latencies and faults."""
    record: int = 1000
    """Number of requests that are kept in `requests`, the newest ones."""

    def __post_init__(self) -> None:
        check_counts(slots=self.slots, max_queue=self.max_queue, dim=self.dim, record=self.record)
        one_of("overflow", self.overflow, ("reject", "queue"))
        one_of("software", self.software, ("openai", "vllm", "llama.cpp"))
        one_of("reject_status", self.reject_status, ("429", "503"))
        _check_seconds(seconds_per_token=self.seconds_per_token, drip_seconds=self.drip_seconds)
        if self.retry_after is not None:
            _check_seconds(retry_after=self.retry_after)
        if isinstance(self.latency, int | float):
            _check_seconds(latency=self.latency)
        elif not callable(getattr(self.latency, "at", None)):
            raise OptionError(f"latency must be a number of seconds or a distribution, got {self.latency!r}")
        if not self.hang_seconds >= 0:
            raise OptionError(f"hang_seconds must not be negative, got {self.hang_seconds!r}")
        if not 500 <= self.error_status <= 599:
            raise OptionError(f"error_status must lie between 500 and 599, got {self.error_status!r}")
        if isinstance(self.answers, str):
            raise OptionError(f"answers must be a list of texts, got {self.answers!r}")
        if isinstance(cast(Any, self.models), str):
            raise OptionError(f"models must be a list of names, got {self.models!r}")


def check_fault(name: str) -> Fault:
    """Return `name` if it is a fault.

    Raises:
        OptionError: It is none.
    """
    known = [field.name for field in fields(Faults)]
    if name not in known:
        raise OptionError(f"unknown fault {name!r} (known: {', '.join(known)}).{did_you_mean(name, known)}")
    return cast(Fault, name)


def _check_seconds(**options: float) -> None:
    for name, value in options.items():
        if not 0 <= value < math.inf:
            raise OptionError(f"{name} must be a number of seconds that is not negative, got {value!r}")


_STANDARD_NORMAL = NormalDist()
