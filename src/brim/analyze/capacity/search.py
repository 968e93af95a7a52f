"""The largest size that works, and how fast every size is: found by trying.

The search is told nothing about what a size is of (tokens in a microbatch, environments in a batch): it is given
something that attempts a size and says whether it fits, and a word for the unit. It starts no process and measures
nothing itself; `attempts` does.

What the search believes is that sizes are monotone: what is larger than a size that failed fails too. So a size above a
failure is never tried, which also keeps a machine out of trouble that it was in once. Where that is false (a time that
jitters around its limit), the answer is a size that fitted when it was tried, next to one that did not.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from brim.core.display import bar, table_html
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError, OptionError

CAPACITY = Document(format="brim.capacity/1", what="a capacity", again="measure it again", checksum="none")
ENOUGH = 0.95
"""The share of the best throughput from which on a size is fast enough."""

LARGEST = 2**62
"""Neither sizes nor bytes go beyond this."""

Why = Literal["out of memory", "too slow", "killed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One size, tried."""

    size: int
    why: Why | None = None
    """Why it does not fit; None if it does."""
    seconds: float | None = None
    """Of one step: the median of those that were timed."""
    peak: int | None = None
    """The most bytes that were in use at once."""
    detail: str = ""
    """What was seen of a failure: a signal, a message."""

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= LARGEST:
            raise DataError(f"a size is an integer from 1 to {LARGEST}, got {self.size}")
        if self.why is not None and self.why not in get_args(Why):
            raise DataError(f"a trial fails for one of {', '.join(get_args(Why))}, got {self.why!r}")
        if self.fits and not (
            0 < (self.seconds or 0) < math.inf and 0 <= (-1 if self.peak is None else self.peak) <= LARGEST
        ):
            raise DataError(
                f"a size that fits has seconds and a peak, got {self.seconds} and {self.peak} for {self.size}"
            )

    @property
    def fits(self) -> bool:
        return self.why is None

    @property
    def rate(self) -> float:
        """Units a second; 0 where nothing was timed."""
        return self.size / self.seconds if self.seconds else 0.0


class Line(NamedTuple):
    """What any size should take: `line(size)` is `fixed + per_unit * size`. Neither part is ever negative."""

    fixed: float
    per_unit: float

    def __call__(self, size: float) -> float:
        return self.fixed + self.per_unit * size


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What was tried, by size, and what follows from it. At least one trial fits."""

    unit: str
    """What a size is of, such as "tokens"."""
    trials: tuple[Trial, ...]
    measured: Mapping[str, Any] = field(default_factory=lambda: {})
    """On what: the model, the machine, the options. Values that JSON has."""

    def __post_init__(self) -> None:
        trials = tuple(sorted(self.trials, key=lambda trial: trial.size))
        if len({trial.size for trial in trials}) < len(trials):
            raise DataError("a size was tried twice; one trial of each is kept")
        if not any(trial.fits for trial in trials):
            raise DataError("no size fits, so there is no capacity")
        object.__setattr__(self, "trials", trials)

    @property
    def fitting(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.fits)

    @property
    def largest(self) -> Trial:
        """The largest that fits."""
        return self.fitting[-1]

    @property
    def fastest(self) -> Trial:
        """The one with the best throughput."""
        return max(self.fitting, key=lambda trial: trial.rate)

    @property
    def knee(self) -> Trial:
        """The smallest that reaches 95% of the best throughput: above it, memory buys no speed."""
        return next(trial for trial in self.fitting if trial.rate >= ENOUGH * self.fastest.rate)

    @property
    def failed(self) -> Trial | None:
        """The smallest that does not fit."""
        return next((trial for trial in self.trials if not trial.fits), None)

    @property
    def limit(self) -> Why | Literal["most"]:
        """Why nothing larger fits; "most" if nothing failed and larger sizes were not asked for."""
        return "most" if self.failed is None else self.failed.why or "most"

    @property
    def advice(self) -> str:
        """One sentence: which size to take, and what kept the largest from being larger."""
        knee, largest = self.knee, self.largest
        share = (
            "the best throughput"
            if knee is self.fastest
            else f"{knee.rate / self.fastest.rate:.0%} of the best throughput"
        )
        return f"{knee.size:,} {self.unit} give {share}; {largest.size:,} is the largest that {self._why_no_more()}."

    def _why_no_more(self) -> str:
        failed = 0 if self.failed is None else self.failed.size
        return {
            "out of memory": f"fits, {failed:,} runs out of memory",
            "killed": f"fits, {failed:,} was killed",
            "too slow": f"is fast enough, {failed:,} is too slow, and what memory allows was not reached",
            "most": "was to be tried, and it fits: what memory allows was not reached",
        }[self.limit]

    @property
    def seconds(self) -> Line:
        """Of one step of any size, by least squares of the relative errors over what fits."""
        return _line([trial.size for trial in self.fitting], [trial.seconds or 0 for trial in self.fitting])

    @property
    def bytes(self) -> Line:
        """At the peak of a step of any size; as `seconds`."""
        return _line([trial.size for trial in self.fitting], [trial.peak or 0 for trial in self.fitting])

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values. What follows from the trials is there for readers; `from_dict` works it out again."""
        follows = {name: getattr(self, name).size for name in ("largest", "fastest", "knee")}
        lines = {name: getattr(self, name)._asdict() for name in ("seconds", "bytes")}
        return {
            "format": CAPACITY.format,
            "unit": self.unit,
            **follows,
            "limit": self.limit,
            "advice": self.advice,
            **lines,
            "measured": dict(self.measured),
            "trials": [{**asdict(trial), "fits": trial.fits, "rate": trial.rate} for trial in self.trials],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Capacity":
        """Make a capacity of what `to_dict` returned.

        Raises:
            DataError: It is not a capacity.
            DamagedError: It is altered, or of another version.
        """
        return cls._of(CAPACITY.check(values, "this"))

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> "Capacity":
        names = ("size", "why", "seconds", "peak", "detail")
        try:
            trials = tuple(Trial(**{name: trial[name] for name in names}) for trial in values["trials"])
            return cls(unit=str(values["unit"]), trials=trials, measured=dict(values["measured"]))
        except (KeyError, TypeError, ValueError, DataError) as error:
            raise DamagedError(f"this is not a capacity: {type(error).__name__}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small JSON file, whole or not at all."""
        values = self.to_dict()
        del values["format"]  # the document says it
        CAPACITY.write(path, values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Capacity":
        """Read a file that `save` wrote.

        Raises:
            DataError: There is no such file, or it is not a capacity.
            DamagedError: It is truncated, altered, or of another version.
        """
        values = CAPACITY.read(path)
        try:
            return cls._of(values)
        except DamagedError as error:
            raise DamagedError(f"{path}: {error}") from None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.unit, "fits", "s/step", "peak", f"{self.unit}/s")

    def rows(self) -> list[tuple[str, ...]]:
        """The trials as text, in these columns."""
        return [
            (
                f"{trial.size:,}",
                self._outcome(trial),
                seconds_text(trial.seconds),
                bytes_text(trial.peak),
                _rate_text(trial.rate),
            )
            for trial in self.trials
        ]

    def _outcome(self, trial: Trial) -> str:
        if trial.why is not None:
            return trial.why
        named = {self.fastest.size: "fastest", self.knee.size: "knee", self.largest.size: "largest"}
        return f"yes, {named[trial.size]}" if trial.size in named else "yes"

    def to_ascii(self, width: int = 24) -> str:
        """A table with one line for each trial; the bars, of at most `width` characters, are the throughput."""
        table = [self.columns, *self.rows()]
        sizes = [max(len(row[at]) for row in table) for at in range(len(self.columns))]
        bars = ["", *(bar(trial.rate / self.fastest.rate if trial.fits else 0, width) for trial in self.trials)]
        lines: list[str] = []
        for row, drawn in zip(table, bars, strict=True):
            cells = [
                cell.ljust(size) if at == 1 else cell.rjust(size)
                for at, (cell, size) in enumerate(zip(row, sizes, strict=True))
            ]
            lines.append("  ".join([*cells, drawn]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table_html(self.columns, self.rows()) + f"<p>{escape(self.advice)}</p>"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which sizes may be tried, and how exactly the largest is to be known."""

    unit: str
    start: int
    """Rounded down to a multiple, but at least one."""
    most: int | None = None
    """Without it, only a failure ends the search."""
    resolution: float = 0.05
    """Of the largest, how far off it may be; 0 finds it exactly."""
    multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "multiple"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.resolution < 1:
            raise OptionError(f"resolution must be at least 0 and below 1, got {self.resolution}")
        if self.most is not None and self.most < self.multiple:
            raise OptionError(
                f"most must be at least {self.multiple}, because sizes are multiples of it, got {self.most}"
            )

    @property
    def top(self) -> int | None:
        """The largest size that may be tried."""
        return None if self.most is None else self.most // self.multiple * self.multiple


def find_capacity(
    attempt: Callable[[int], Trial], search: Search, *, measured: Mapping[str, Any] | None = None
) -> Capacity:
    """Double from the start until a size fails or the most is reached, then bisect between the last that fitted and the
    first that failed.

    The largest that fits is found to the resolution or to one multiple, whichever is more. Where already the start
    fails, the search goes down from there.

    Raises:
        BrimError: Not even one multiple fits. Whatever `attempt` raises ends the search too.
    """
    multiple, top = search.multiple, search.top
    trials: list[Trial] = []

    def fits(size: int) -> bool:
        trials.append(attempt(size))
        return trials[-1].fits

    low, high, size = 0, None, max(search.start // multiple, 1) * multiple
    while high is None and low != top:
        size = size if top is None else min(size, top)
        if fits(size):
            low, size = size, 2 * size
        else:
            high = size
    while high is not None and high - low > max(multiple, search.resolution * low):
        # They are two multiples apart or more, so it is strictly between.
        middle = (low + high) // 2 // multiple * multiple
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise BrimError(f"not even {trials[-1].size:,} {search.unit} fit: {_reason(trials[-1])}")
    return Capacity(unit=search.unit, trials=tuple(trials), measured=measured or {})


def _reason(trial: Trial) -> str:
    return f"{trial.why} ({trial.detail})" if trial.detail else str(trial.why)


def _line(sizes: list[int], values: list[float]) -> Line:
    """Relative errors, so that a small size counts as much as a large one; a part that comes out negative is 0."""
    x, y = np.array(sizes, np.float64), np.maximum(np.array(values, np.float64), 1e-12)
    through_zero = Line(0.0, float((x / y).sum() / ((x / y) ** 2).sum()))
    if len(x) == 1:
        return through_zero
    fixed, per_unit = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x)), rcond=None)[0].tolist()
    if fixed < 0:
        return through_zero
    return Line(fixed, per_unit) if per_unit >= 0 else Line(float((1 / y).sum() / (1 / y**2).sum()), 0.0)


def seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.3f}"


def bytes_text(count: float | None) -> str:
    """1234567890 -> 1.23 GB."""
    if count is None:
        return "-"
    return f"{count / 1e9:.2f} GB" if count >= 999.5e6 else f"{count / 1e6:.0f} MB"


def _rate_text(rate: float) -> str:
    return "-" if not rate else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"
