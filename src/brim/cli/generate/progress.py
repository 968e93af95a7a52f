"""Counters of a generation, and the line that tells how far it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brim.cli.llm.progress import duration
from brim.cli.show import human
from brim.generate.output.lines import Fields, Totals


@dataclass
class Tally:
    """Counters of a run. One thread counts, another one shows them."""

    total: int
    """Responses of the whole run, or of this rank."""
    before: int = 0
    """Responses that an earlier run finished."""
    failed: int = 0
    totals: Totals = field(default_factory=Totals)
    """Sums over the responses that this run finished."""
    decoding: Callable[[], Any] | None = None
    """Returns the `DecodeStats` of the moment; None if a server generates."""
    name: str = ""
    """Text in front of the line, such as the number of the rank."""
    started: float = field(default_factory=time.monotonic)
    stopped: float | None = None

    def restart(self) -> None:
        """Set the clock to zero: from here on it is generated."""
        self.started = time.monotonic()

    def stop(self) -> None:
        """Stop the clock."""
        self.stopped = time.monotonic()

    @property
    def ended(self) -> int:
        """Responses that need not be generated any more by this run."""
        return self.before + self.totals.responses + self.failed

    @property
    def seconds(self) -> float:
        return (self.stopped or time.monotonic()) - self.started

    @property
    def tokens(self) -> int:
        """Tokens that this run generated, with those of responses that have not ended yet where they are known."""
        return self.totals.tokens if self.decoding is None else self.decoding().tokens

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-3)

    def add(self, fields: Fields) -> None:
        self.totals.add(fields)

    def line(self) -> str:
        """Return one line: how far, how fast, how full, how long still."""
        parts = [f"{self.name}{self.ended}/{self.total} responses", f"{human(self.tokens_per_second)} tokens/s"]
        if self.decoding is not None:
            stats = self.decoding()
            parts.append(f"{stats.live} live rows")
            parts.append(f"fill {stats.fill.ratio:.0%}")
        now = self.totals.responses + self.failed
        if now and self.ended < self.total:
            parts.append(f"ETA {duration((self.total - self.ended) * self.seconds / now)}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)
