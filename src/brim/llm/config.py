"""Options of a pool of model servers, and defaults that the help of commands shows."""

import math
from dataclasses import dataclass, field
from typing import Literal

from brim.core.errors import OptionError
from brim.core.options import check_counts, one_of

Protocol = Literal["auto", "ollama", "openai"]
PROTOCOLS: tuple[Protocol, ...] = ("auto", "ollama", "openai")
CacheMode = Literal["off", "read", "write", "replay"]
CACHE_MODES: tuple[CacheMode, ...] = ("off", "read", "write", "replay")
LOCAL = "http://127.0.0.1:11434"
"""The address of an Ollama server on this machine."""
LEVELS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of requests at once with which a server is measured, by default."""
CONTEXT = 2048
"""Tokens of a prompt and its answer together in a llama.cpp server on this machine, by default."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A model server, and how much it may be asked."""

    url: str = field(repr=False)
    """Its address, such as http://127.0.0.1:11434; a path such as /v1 may follow. It may hold a password, so it is not
    shown."""
    protocol: Protocol = "auto"
    """The protocol it speaks. "auto" asks the server."""
    key_env: str | None = field(default=None, repr=False)
    """Name of the environment variable that holds the API key. The key itself is never given; if it is, by mistake, it
    is not shown."""
    limit: int | None = None
    """Number of requests at once. None finds it out while the requests run."""
    max_limit: int = 1024
    """Upper limit of what is found out."""
    rpm: float | None = None
    """Upper limit of the requests in a minute."""
    tpm: float | None = None
    """Upper limit of the tokens in a minute, prompts and answers together."""

    def __post_init__(self) -> None:
        one_of("protocol", self.protocol, PROTOCOLS)
        check_counts(limit=self.limit, max_limit=self.max_limit)
        for name, value in (("rpm", self.rpm), ("tpm", self.tpm)):
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} must be a positive number, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How calls are sent, repeated and given up."""

    timeout: float = 600.0
    """Seconds for a call, from its first request to its end, whatever happens in between."""
    attempt_timeout: float | Literal["auto"] = "auto"
    """Seconds for one request. "auto" gives up a request that takes four times as long as the 99th percentile of recent
    ones, and doubles that for the next attempt of the same call."""
    attempts: int = 8
    """Upper limit of the requests for one call."""
    retry_budget: float = 0.2
    """Upper limit of the retries, as a share of all requests, beyond the first few. Retries above it wait."""
    patience: float = 60.0
    """Seconds for which calls wait while no server can be reached. A server that was never reached is not waited
    for."""
    hedge: bool = False
    """Whether a request that takes longer than almost all others is sent a second time, to another server or to a free
    slot; the first answer counts."""
    hedge_budget: float = 0.05
    """Upper limit of these second requests, as a share of all."""
    embed_batch: int = 64
    """Upper limit of the texts in one request for embeddings."""
    embed_wait: float = 0.004
    """Seconds that a text waits for others to share its request."""
    seed: int = 42
    """Decides the jitter of retries."""

    def __post_init__(self) -> None:
        check_counts(attempts=self.attempts, embed_batch=self.embed_batch)
        for name in ("timeout", "patience", "embed_wait", "retry_budget", "hedge_budget"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise OptionError(f"{name} must be a number that is not negative, got {value!r}")
        if self.attempt_timeout != "auto" and not 0 < self.attempt_timeout < math.inf:
            raise OptionError(f'attempt_timeout must be "auto" or a positive number, got {self.attempt_timeout!r}')
