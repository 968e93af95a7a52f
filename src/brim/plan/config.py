"""`BatchingConfig`: everything that decides a plan, except the lengths.

There are two ways to group samples. Fixed shapes: `bucket_edges` (or `num_buckets`, to have the edges chosen) with
PAD_TO_BUCKET, for models that compile one program per shape. Sorted windows: no buckets, for the least padding. Unless
`shuffle` is off, both differ between epochs, and are reproducible.
"""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint
from brim.core.options import LONGEST, check_counts, from_dict, is_number, one_of
from brim.plan.cost import DEFAULT, CostModel

WINDOW_PADDING = 0.01
SEARCH_SECONDS = 10.0
"""Default time limit of the search for patterns."""
Overflow = Literal["error", "skip", "truncate", "split"]
Remainder = Literal["null", "drop", "repeat"]


class PadPolicy(StrEnum):
    """The width that the rows of a microbatch are padded to."""

    PAD_TO_BUCKET = "pad_to_bucket"
    """Pad to the width of the bucket: few distinct shapes."""
    PAD_TO_MAX = "pad_to_max"
    """Pad to the longest row of the microbatch: little padding."""


class BatchingMode(StrEnum):
    """The preset that a config is closest to: `BatchingConfig.predictable()` or `BatchingConfig.throughput()`."""

    PREDICTABLE = "predictable"
    THROUGHPUT = "throughput"


class PackingMode(StrEnum):
    """How sequences are assigned to rows."""

    FIRST_FIT = "first_fit"
    """In order of arrival, into the oldest row with room: keeps the order, for streams."""
    BEST_FIT = "best_fit"
    """Longest first, into the fullest row (best-fit decreasing): the fastest. Mixed lengths take at most a thousandth
    more rows than necessary; lengths near a third or a quarter of the capacity, or few distinct lengths, up to an
    eighth more.
    """
    GREEDY = "greedy"
    """Longest first, into the oldest row with room (first-fit decreasing): nearly as many rows as best fit."""
    OPTIMAL = "optimal"
    """By a search for patterns of whole rows: nearly the fewest rows possible, and never more than best fit."""
    AUTO = "auto"
    """Best fit; then OPTIMAL if that took more than half a per cent, and more than one row, over a lower bound."""


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """Options for packing sequences into rows."""

    max_length: int = 2048
    """Capacity of a row, in tokens."""
    mode: PackingMode = PackingMode.AUTO
    """How sequences are assigned to rows. The default of `pack`, which takes no config, is BEST_FIT."""
    max_sequences: int | None = None
    """Upper limit of the sequences in a row."""
    pad_to_max: bool = True
    """Pad every row to `max_length` (one shape), or only to the longest row of its microbatch."""
    time_limit: float = SEARCH_SECONDS
    """Upper limit of the work of searching for patterns, in seconds of a typical core. Work is counted, not timed, so
    every machine makes the same plan. With groups, each gets an equal part. 0: no search, best fit.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", PackingMode(one_of("packing mode", self.mode, PackingMode)))
        if cast(object, self.max_length) is None:
            raise OptionError("packing max_length must be an integer, got None")
        check_counts(**{"packing max_length": self.max_length, "packing max_sequences": self.max_sequences})
        object.__setattr__(self, "max_length", int(self.max_length))  # NumPy's integers have no fingerprint
        if self.max_sequences is not None:
            object.__setattr__(self, "max_sequences", int(self.max_sequences))
        check_seconds("packing time_limit", self.time_limit)


def check_seconds(name: str, seconds: float) -> None:
    """Refuse a time limit that is not a number from 0 to `LONGEST`.

    Raises:
        OptionError: It is none; the message has its name and value.
    """
    if not is_number(seconds):
        raise OptionError(f"{name} must be a number of seconds, got {seconds!r}")
    if not 0 <= seconds < math.inf:
        raise OptionError(f"{name} must be at least 0 and finite, got {seconds}")
    if seconds > LONGEST:
        raise OptionError(f"{name} must be at most {LONGEST}, got {seconds}")


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """Options of a plan. `BatchingConfig.predictable()` and `.throughput()` are the usual starting points."""

    token_budget: int = 4096
    """Upper limit of the tokens in a microbatch, padding included."""
    bucket_edges: tuple[int, ...] | None = None
    """Lengths at which buckets end. Samples of different buckets never share a microbatch."""
    num_buckets: int | None = None
    """Upper limit of the buckets, whose edges are then chosen so that padding to them wastes the least."""
    overflow_max: int | None = None
    """Maximum length of a sample; `overflow` decides about longer ones. Default: the token budget."""
    overflow: Overflow = "error"
    """Policy for samples that are too long: "error" refuses the data, "skip" leaves them out, "truncate" cuts off their
    end, "split" cuts them into pieces.
    """
    pad_policy: PadPolicy = PadPolicy.PAD_TO_MAX
    pad_to_multiple: int = 1
    """Round every width up to a multiple of this."""
    max_sequences: int | None = None
    """Upper limit of the rows in a microbatch."""
    window: int | None = None
    """Rows are sorted by length inside random windows of at most this many rows. Smaller: more random; larger: less
    padding. Default: as small as `window_padding` allows. It has no effect on rows that are all padded to one width,
    nor without `shuffle`.
    """
    window_padding: float = WINDOW_PADDING
    """Share of the slots that padding may take in sorted windows whose size is not given. Larger: smaller windows, so
    that samples share microbatches with other samples in each epoch; 0: one window, with the least padding. An epoch
    of few microbatches has more padding than this even in one window.
    """
    drop_last: bool = False
    """Drop microbatches that are not full because their bucket or window ran out of rows."""
    packing: PackingConfig | None = None
    """Options for packing samples into rows before rows are grouped. None: one sequence per row."""
    microbatches_per_step: int | None = None
    """Microbatches in one optimizer step, over all ranks. If it is given, microbatches are cut so that there are whole
    steps (except with `drop_last`, or with fewer rows than microbatches in a step), whose microbatches cost nearly the
    same (except without `shuffle`). That can take more steps: an epoch is planned in windows of about 24 steps, each
    of which is rounded up to whole ones, and little data gets up to two more. Default: one for each rank.
    """
    cost: CostModel | None = None
    """Cost of a microbatch, by which steps are balanced. Default: that of a model of width 1,024."""
    remainder: Remainder = "null"
    """Policy for a short last optimizer step of an epoch: "null" gives empty microbatches to ranks that would have
    none, "drop" drops the step, "repeat" repeats microbatches from the start of the epoch. With
    `microbatches_per_step`, the last step is short only if there are too few rows for whole steps, or with `drop_last`.
    """
    shuffle: bool = True
    """Shuffle in every epoch. If False, microbatches hold neighbouring samples, in the order of the data, the same in
    every epoch.
    """
    seed: int = 42

    def __post_init__(self) -> None:
        if self.bucket_edges is not None:
            object.__setattr__(self, "bucket_edges", _integers("bucket_edges", self.bucket_edges))
        object.__setattr__(self, "pad_policy", PadPolicy(one_of("pad_policy", self.pad_policy, PadPolicy)))
        self._check_numbers()
        self._check_choices()
        if self.bucket_edges is not None:
            check_edges(self.bucket_edges)
            highest = self.bucket_edges[-1] if self.bucket_edges else 0
            if highest > self.limit:
                raise OptionError(
                    f"bucket edge {highest} is above the longest sample that fits, {self.limit} (token_budget "
                    f"{self.token_budget}, overflow_max {self.overflow_max}); lower the edge or raise the limit"
                )

    def _check_numbers(self) -> None:
        counts = (
            "token_budget",
            "num_buckets",
            "overflow_max",
            "pad_to_multiple",
            "max_sequences",
            "window",
            "microbatches_per_step",
        )
        check_counts(**{name: getattr(self, name) for name in counts})
        if not is_number(self.window_padding) or not 0 <= self.window_padding < 1:
            raise OptionError(f"window_padding must be at least 0 and below 1, got {self.window_padding!r}")
        if self.window is not None and self.window_padding != WINDOW_PADDING:
            raise OptionError(
                f"give window or window_padding, not both: got windows of {self.window} rows, and {self.window_padding}"
            )
        if self.pad_to_multiple > self.token_budget:
            raise OptionError(f"pad_to_multiple {self.pad_to_multiple} is above token_budget {self.token_budget}")

    def _check_choices(self) -> None:
        one_of("overflow", self.overflow, get_args(Overflow))
        one_of("remainder", self.remainder, get_args(Remainder))
        if type(self.cost) not in (CostModel, type(None)):
            raise OptionError(f"cost must be a CostModel, got {self.cost!r}")
        if type(self.packing) not in (PackingConfig, type(None)):
            raise OptionError(f"packing must be a PackingConfig, got {self.packing!r}")
        bucketed = self.bucket_edges is not None or self.num_buckets is not None
        if self.bucket_edges is not None and self.num_buckets is not None:
            raise OptionError("give bucket_edges or num_buckets, not both")
        if self.pad_policy is PadPolicy.PAD_TO_BUCKET and not bucketed:
            raise OptionError("pad_to_bucket needs buckets: give bucket_edges or num_buckets")
        if self.packing is not None and bucketed:
            raise OptionError("packed rows need no buckets: give packing or bucket_edges/num_buckets, not both")
        if self.packing is not None and self.packing_width > self.token_budget:
            raise OptionError(
                f"packed rows of {self.packing_width} tokens do not fit the token budget of {self.token_budget}"
            )

    @classmethod
    def predictable(
        cls, *, bucket_edges: tuple[int, ...] | None = None, num_buckets: int | None = None, **options: Any
    ) -> "BatchingConfig":
        """Return options for few distinct shapes, known beforehand: microbatches are padded to their bucket.

        Without `bucket_edges` and `num_buckets`, eight buckets are chosen.
        """
        if bucket_edges is None and num_buckets is None:
            num_buckets = 8
        return cls(bucket_edges=bucket_edges, num_buckets=num_buckets, pad_policy=PadPolicy.PAD_TO_BUCKET, **options)

    @classmethod
    def throughput(cls, **options: Any) -> "BatchingConfig":
        """Return options for the least padding: microbatches are padded to their longest row."""
        return cls(pad_policy=PadPolicy.PAD_TO_MAX, **options)

    @property
    def mode(self) -> BatchingMode:
        return BatchingMode.PREDICTABLE if self.pad_policy is PadPolicy.PAD_TO_BUCKET else BatchingMode.THROUGHPUT

    @property
    def limit(self) -> int:
        """The length of the longest sample that fits: the least of `overflow_max`, the capacity of packed rows, and
        `token_budget` rounded down to a multiple of `pad_to_multiple`.
        """
        limit = self.token_budget // self.pad_to_multiple * self.pad_to_multiple
        if self.overflow_max is not None:
            limit = min(limit, self.overflow_max)
        if self.packing is not None:
            limit = min(limit, self.packing.max_length)
        return limit

    @property
    def packing_width(self) -> int:
        """The padded width of a full packed row: its capacity, rounded up to a multiple of `pad_to_multiple`."""
        if self.packing is None:
            raise OptionError("this plan is not packed")
        return -(-self.packing.max_length // self.pad_to_multiple) * self.pad_to_multiple

    @property
    def cost_model(self) -> CostModel:
        return self.cost or DEFAULT

    @property
    def fingerprint(self) -> str:
        return fingerprint(config=self.identity)

    @property
    def identity(self) -> dict[str, Any]:
        """The options that go into fingerprints: all of them, except `shuffle` if it is True.

        Plans made before this option existed are shuffled, and must keep their fingerprints.
        """
        return {name: value for name, value in asdict(self).items() if (name, value) != ("shuffle", True)}

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BatchingConfig":
        """Create options from values that `to_dict` returned.

        Raises:
            OptionError: A name is unknown, or a value is not allowed.
        """
        return from_dict(cls, values)


def check_edges(edges: tuple[int, ...]) -> None:
    """Raise OptionError unless edges are positive, ascending and at most `LONGEST`."""
    if any(edge < 1 for edge in edges):
        raise OptionError(f"bucket edges must be positive, got {listed(edges)}")
    if edges and max(edges) > LONGEST:
        raise OptionError(f"bucket edges must be at most {LONGEST}, got {max(edges)}")
    if any(left >= right for left, right in pairwise(edges)):
        raise OptionError(f"bucket edges must ascend, got {listed(edges)}; did you mean {listed(sorted(set(edges)))}?")


def listed(edges: tuple[int, ...] | list[int]) -> str:
    return ",".join(str(edge) for edge in edges)


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        found = tuple(int(value) for value in values)
        if found == tuple(values):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionError(f"{name} must be a list of integers, got {values!r}")
