"""`BatchingConfig`: everything that decides a plan, except the lengths.

Two ways to group. Fixed shapes: `bucket_edges` (or `num_buckets`, to have them chosen) with PAD_TO_BUCKET, for models
that compile one program per shape. Sorted windows: neither of them, for the least padding. Both are random across
epochs and reproducible.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from brim.core.arrays import round_up
from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint
from brim.core.options import check_counts, from_dict, one_of
from brim.plan.buckets import check_edges
from brim.plan.packing import PackingConfig

Overflow = Literal["error", "skip", "truncate", "split"]
Remainder = Literal["null", "drop", "repeat"]


class PadPolicy(StrEnum):
    """How wide a microbatch is."""

    PAD_TO_BUCKET = "pad_to_bucket"
    """As wide as its bucket: few distinct shapes."""
    PAD_TO_MAX = "pad_to_max"
    """As wide as its longest row: little padding."""


class BatchingMode(StrEnum):
    """The two presets."""

    PREDICTABLE = "predictable"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """Options of a plan. `BatchingConfig.predictable()` and `.throughput()` are the usual starting points."""

    token_budget: int = 4096
    """A microbatch holds at most this many tokens, padding included."""
    bucket_edges: tuple[int, ...] | None = None
    """The lengths at which buckets end. Samples of different buckets never share a microbatch."""
    num_buckets: int | None = None
    """Have this many buckets chosen so that padding to them wastes least."""
    overflow_max: int | None = None
    """The longest sample; the token budget if not given."""
    overflow: Overflow = "error"
    """What to do with a longer one: refuse the data, leave it out, cut its end off, or cut it into pieces."""
    pad_policy: PadPolicy = PadPolicy.PAD_TO_MAX
    pad_to_multiple: int = 1
    """Round every width up to a multiple of this."""
    max_sequences: int | None = None
    """At most this many rows in a microbatch."""
    window: int | None = None
    """Rows are sorted by length inside random windows of this many. Smaller: more random; larger: less padding."""
    drop_last: bool = False
    """Leave out microbatches that stay short because their bucket or window ran out."""
    packing: PackingConfig | None = None
    """Pack samples into rows first."""
    microbatches_per_step: int | None = None
    """Microbatches in one optimizer step, over all ranks. If not given: one for each rank."""
    remainder: Remainder = "null"
    """When the last step of an epoch is short: pad it with empty microbatches, drop it, or repeat from the epoch's
    start.
    """
    shuffle: bool = True
    """Without: microbatches hold neighbours, in the order of the data, the same in every epoch."""
    seed: int = 42

    def __post_init__(self) -> None:
        if self.bucket_edges is not None:
            object.__setattr__(self, "bucket_edges", tuple(int(edge) for edge in self.bucket_edges))
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
        if self.pad_to_multiple > self.token_budget:
            raise OptionError(f"pad_to_multiple {self.pad_to_multiple} is above token_budget {self.token_budget}")

    def _check_choices(self) -> None:
        one_of("overflow", self.overflow, get_args(Overflow))
        one_of("remainder", self.remainder, get_args(Remainder))
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
        """Few distinct shapes, known beforehand: microbatches are padded to their bucket.

        Without edges, eight are chosen.
        """
        if bucket_edges is None and num_buckets is None:
            num_buckets = 8
        return cls(bucket_edges=bucket_edges, num_buckets=num_buckets, pad_policy=PadPolicy.PAD_TO_BUCKET, **options)

    @classmethod
    def throughput(cls, **options: Any) -> "BatchingConfig":
        """Least padding: microbatches are padded to their longest row."""
        return cls(pad_policy=PadPolicy.PAD_TO_MAX, **options)

    @property
    def mode(self) -> BatchingMode:
        return BatchingMode.PREDICTABLE if self.pad_policy is PadPolicy.PAD_TO_BUCKET else BatchingMode.THROUGHPUT

    @property
    def limit(self) -> int:
        """The longest sample that fits."""
        limit = self.token_budget // self.pad_to_multiple * self.pad_to_multiple
        if self.overflow_max is not None:
            limit = min(limit, self.overflow_max)
        if self.packing is not None:
            limit = min(limit, self.packing.max_length)
        return limit

    @property
    def packing_width(self) -> int:
        """The width of a full packed row."""
        if self.packing is None:
            raise OptionError("this plan is not packed")
        return round_up(self.packing.max_length, self.pad_to_multiple)

    @property
    def fingerprint(self) -> str:
        return fingerprint(config=self.identity)

    @property
    def identity(self) -> dict[str, Any]:
        """What goes into fingerprints: all options, but for those that plans once had no choice about and that are as
        they were then.
        """
        return {name: value for name, value in asdict(self).items() if (name, value) != ("shuffle", True)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BatchingConfig":
        """Make options of what `to_dict` returned.

        Raises:
            OptionError: A name is unknown, or a value cannot be.
        """
        return from_dict(cls, values)
