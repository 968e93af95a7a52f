"""Search for the largest size that fits, and record the speed of every size tried.

The search does not know what a size counts (tokens in a microbatch, environments in a batch): it is given a function
that attempts a size and returns whether it fits, and a word for the unit. It starts no process and measures nothing
itself; `attempts` does.

It assumes that sizes are monotone: whatever is larger than a size that failed, fails too. So a size above a failure is
never tried, which also avoids running the machine out of memory again. Where the assumption is false (step times that
jitter around the limit), the result is a size that fitted when it was tried, next to one that did not.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from html import escape
from typing import Any, Literal, NamedTuple, get_args

from brim.core.display import bar, table_html
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError, OptionError

CAPACITY = Document(format="brim.capacity/1", what="a capacity", again="measure it again", checksum="none")
ENOUGH = 0.95
"""Share of the best throughput at which a size counts as fast enough (see `Capacity.knee`)."""

LARGEST = 2**62
"""Upper limit of sizes, and of peaks in bytes."""

Why = Literal["out of memory", "too slow", "killed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of trying one size."""

    size: int
    why: Why | None = None
    """The reason why the size does not fit; None if it fits."""
    seconds: float | None = None
    """Seconds of one step: the median of the timed ones."""
    peak: int | None = None
    """Peak memory in bytes."""
    detail: str = ""
    """Details of a failure, such as a signal or a message."""

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
        """Throughput in units per second; 0 if no step was timed."""
        return self.size / self.seconds if self.seconds else 0.0


class Line(NamedTuple):
    """A linear estimate for any size: `line(size)` is `fixed + per_unit * size`. Neither part is ever negative."""

    fixed: float
    per_unit: float

    def __call__(self, size: float) -> float:
        return self.fixed + self.per_unit * size


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """All trials, sorted by size, and the results computed from them. At least one trial fits."""

    unit: str
    """The unit of a size, such as "tokens"."""
    trials: tuple[Trial, ...]
    measured: Mapping[str, Any] = field(default_factory=lambda: {})
    """The conditions of the measurement: model, machine, options. Values that JSON can represent."""

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
        """The largest size that fits."""
        return self.fitting[-1]

    @property
    def fastest(self) -> Trial:
        """The size with the best throughput."""
        return max(self.fitting, key=lambda trial: trial.rate)

    @property
    def knee(self) -> Trial:
        """The smallest size that reaches 95% of the best throughput: larger ones take more memory for little speed."""
        return next(trial for trial in self.fitting if trial.rate >= ENOUGH * self.fastest.rate)

    @property
    def failed(self) -> Trial | None:
        """The smallest size that does not fit; None if every size fitted."""
        return next((trial for trial in self.trials if not trial.fits), None)

    @property
    def limit(self) -> Why | Literal["most"]:
        """The reason why no larger size fits; "most" if none failed up to the largest size that was to be tried."""
        return "most" if self.failed is None else self.failed.why or "most"

    @property
    def advice(self) -> str:
        """One sentence: which size to choose, which is the largest, and why no larger one fits."""
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
        """Estimate of the seconds of one step of any size, by least squares of the relative errors over what fits."""
        return _line([trial.size for trial in self.fitting], [trial.seconds or 0 for trial in self.fitting])

    @property
    def bytes(self) -> Line:
        """Estimate of the peak memory of a step of any size in bytes, fitted like `seconds`."""
        return _line([trial.size for trial in self.fitting], [trial.peak or 0 for trial in self.fitting])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-like values. Results computed from the trials are for readers; `from_dict` recomputes them."""
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
            DataError: The values are not a capacity.
            DamagedError: A value is missing or invalid, or the values are of another version.
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
        """Write a small JSON file, atomically."""
        values = self.to_dict()
        del values["format"]  # `Document.write` adds it
        CAPACITY.write(path, values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Capacity":
        """Read a file that `save` wrote.

        Raises:
            DataError: There is no such file, or it is not a capacity.
            DamagedError: It is truncated, a value is missing or invalid, or it is of another version.
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
        """Return the trials as text, one row each, in the order of `columns`."""
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
        """Return a table as text, one line per trial; the bars, of at most `width` characters, show the throughput."""
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
    """Options of a search: the sizes that may be tried, and the accuracy of the result."""

    unit: str
    start: int
    """The first size to try, rounded down to a multiple of `multiple`, but at least one."""
    most: int | None = None
    """Upper limit of the sizes to try. Without it, only a failure ends the search."""
    resolution: float = 0.05
    """Relative accuracy of the largest size that fits; 0 finds the exact multiple."""
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
    """Find the largest size that fits: double from `start` until a size fails or `most` is reached, then bisect between
    the last that fitted and the first that failed.

    The largest that fits is found to within the resolution or one multiple, whichever is more. If the first size
    already fails, the search continues below it. `measured` is kept in the result.

    Raises:
        BrimError: Not even one multiple fits. Exceptions of `attempt` end the search too.
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
        # `low` and `high` are at least two multiples apart, so `middle` is strictly between them.
        middle = (low + high) // 2 // multiple * multiple
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise BrimError(f"not even {trials[-1].size:,} {search.unit} fit: {_reason(trials[-1])}")
    return Capacity(unit=search.unit, trials=tuple(trials), measured=measured or {})


def _reason(trial: Trial) -> str:
    return f"{trial.why} ({trial.detail})" if trial.detail else str(trial.why)


def _line(sizes: list[int], values: list[float]) -> Line:
    """Fit a line by least squares of the relative errors, so that a small size counts as much as a large one.

    If a part would be negative, it is fixed at 0 and the other one is fitted alone. Fractions, of which there are few,
    give the same line on every machine; the last bits of a library for matrices depend on its version.
    """
    x = [Fraction(size) for size in sizes]
    y = [Fraction(max(value, 1e-12)) for value in values]
    weights = [1 / value**2 for value in y]
    through_zero = Line(0.0, float(_dot(weights, x, y) / _dot(weights, x, x)))
    mean_x, mean_y = (_dot(weights, column) / sum(weights) for column in (x, y))
    off_x, off_y = [value - mean_x for value in x], [value - mean_y for value in y]
    spread = _dot(weights, off_x, off_x)
    if not spread:
        return through_zero
    per_unit = _dot(weights, off_x, off_y) / spread
    fixed = mean_y - per_unit * mean_x
    if fixed < 0:
        return through_zero
    return Line(float(fixed), float(per_unit)) if per_unit >= 0 else Line(float(mean_y), 0.0)


def _dot(*columns: list[Fraction]) -> Fraction:
    """The sum of the products of the columns."""
    return sum((math.prod(row, start=Fraction(1)) for row in zip(*columns, strict=True)), Fraction())


def seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.3f}"


def bytes_text(count: float | None) -> str:
    """Format a number of bytes: 1234567890 -> 1.23 GB, None -> "-"."""
    if count is None:
        return "-"
    return f"{count / 1e9:.2f} GB" if count >= 999.5e6 else f"{count / 1e6:.0f} MB"


def _rate_text(rate: float) -> str:
    return "-" if not rate else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"
