"""One epoch of a plan: views of its columns (`brim.plan.epoch_columns`) that trainers use.

All data is in the columns: an `EpochPlan` is a view of them for one rank, and a `MicrobatchSpec` is created when it is
accessed. Where they lie in a file, that reads the few rows that the microbatch needs.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import stretches
from brim.core.errors import OptionError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.data.lengths import LengthCache
from brim.plan.deal import NULL, Deal, Round
from brim.plan.epoch_columns import EpochColumns
from brim.plan.position import CheckpointPosition
from brim.plan.units import UnitReader


@dataclass(frozen=True, eq=False)
class MicrobatchSpec:
    """The sequences of one forward pass on one rank.

    Sequence s is `lengths[s]` tokens of row `indices[s]` of the length table (id `samples[s]`), from its token
    `starts[s]` on. Row r of the batch holds the sequences `row_ptr[r]` to `row_ptr[r + 1]`: one sequence, unless rows
    are packed.

    The ids of a planned microbatch are made when they are first looked at: most are never needed.
    """

    epoch: int
    index: int  # in the global order; NULL (-1) for an empty microbatch
    samples: tuple[SampleId, ...]
    indices: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    row_ptr: NDArray[np.int64]
    max_len: int
    bucket_id: int = 0
    group: str | None = None
    packed: bool = False
    after: CheckpointPosition | None = None
    """Position from which a run resumes once all ranks have done their microbatch of this round; the same on all ranks.

    Save it after the optimizer step.
    """
    last_of_step: bool | None = None
    """Whether the optimizer step ends here, as set by loaders that pad every step to the same number of microbatches.

    None: derived from `after`.
    """

    @classmethod
    def unplanned(
        cls,
        samples: Iterable[SampleId],
        lengths: NDArray[np.int32],
        max_len: int,
        *,
        packed: bool = False,
    ) -> "MicrobatchSpec":
        """Make a microbatch without a plan: one whole sample to a row, or all of them in one row if packed."""
        count = len(lengths)
        return cls(
            epoch=0,
            index=0,
            samples=tuple(samples),
            indices=np.arange(count),
            starts=np.zeros(count, np.int32),
            lengths=lengths,
            row_ptr=np.array([0, count]) if packed else np.arange(count + 1),
            max_len=max_len,
            packed=packed,
        )

    @property
    def is_null(self) -> bool:
        """Whether the microbatch is empty: it fills a round so that no rank waits for another, and has no samples."""
        return self.index == NULL

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer takes its step after this microbatch; the same on all ranks."""
        if self.last_of_step is not None:
            return self.last_of_step
        return self.after is None or self.after.microbatch_idx % self.after.microbatches_per_step == 0

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return len(self.row_ptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return (self.batch_size, self.max_len)

    @property
    def packs(self) -> tuple[tuple[SampleId, ...], ...] | None:
        """The samples of each row if rows are packed, else None."""
        if not self.packed:
            return None
        bounds = self.row_ptr.tolist()
        return tuple(self.samples[start:end] for start, end in pairwise(bounds))

    @property
    def num_packs(self) -> int:
        return self.batch_size if self.packed else 0

    @property
    def token_count(self) -> int:
        """Number of tokens, without padding."""
        return int(self.lengths.sum())

    @property
    def padded_token_count(self) -> int:
        return self.batch_size * self.max_len

    @property
    def fill(self) -> Fill:
        return Fill(self.token_count, self.padded_token_count)

    if not TYPE_CHECKING:  # where it would make every name an attribute

        def __getattr__(self, name: str) -> Any:
            """Make the ids of a planned microbatch. Python calls this for attributes that are not set."""
            state = vars(self)
            if name != "samples" or IDS not in state:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            samples = state[name] = state[IDS].take(state["indices"])
            return samples

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MicrobatchSpec):
            return NotImplemented
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  it holds arrays

    def __reduce__(self) -> Any:
        """Pickle arrays as bytes, in half the time: every batch from a loader's worker process carries its spec."""
        state: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return (_unpickled, (state | {name: (state[name].dtype.str, state[name].tobytes()) for name in ARRAYS},))

    def renumbered(self, index: int) -> "MicrobatchSpec":
        """Return the microbatch for use outside its plan: with another index, and no position to resume from."""
        return self.changed(index=NULL if self.is_null else index, after=None)

    def changed(self, **values: Any) -> "MicrobatchSpec":
        """Return a copy with other values in some fields, as `dataclasses.replace` does, without making its ids."""
        return _spec(**(vars(self) | values))


AT_ONCE = 64
"""Number of microbatches that an iteration looks up together."""

IDS = "_ids"
"""The attribute of a planned microbatch that holds the column of its table's ids, from which `samples` is taken."""

ARRAYS = ("indices", "starts", "lengths", "row_ptr")


def _unpickled(state: dict[str, Any]) -> MicrobatchSpec:
    """Rebuild the spec that `MicrobatchSpec.__reduce__` pickled. Its arrays are read-only."""
    for name in ARRAYS:
        dtype, content = state[name]
        state[name] = np.frombuffer(content, dtype)
    return MicrobatchSpec(**state)


def _spec(**state: Any) -> MicrobatchSpec:
    """Make a spec of values for all fields, except that `_ids` may take the place of `samples`."""
    spec = object.__new__(MicrobatchSpec)
    object.__setattr__(spec, "__dict__", state)  # field by field takes three times as long
    return spec


class Origin(Protocol):
    """The properties of a plan that its epochs use.

    They are read only when needed, because computing a fingerprint can mean hashing the whole table.
    """

    @property
    def table(self) -> LengthCache: ...
    @property
    def unit_reader(self) -> UnitReader: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, eq=False)
class EpochPlan(Sequence[MicrobatchSpec]):
    """The microbatches of one epoch for one rank, in order. A sequence with O(1) access; supports `async for` too."""

    epoch: int
    parts: EpochColumns
    """The columns that single microbatches are read from."""
    origin: Origin
    deal: Deal
    rank: int = 0
    order: NDArray[np.int64] | None = None
    """Index into the columns of each global index. None: the columns are in the global order."""
    partial: bool = False
    """Whether the columns hold this rank's microbatches only, empty ones included."""

    @property
    def columns(self) -> EpochColumns:
        """The microbatches as columns of arrays, in the order in which they were built."""
        return self.parts.whole

    def __len__(self) -> int:
        return self.deal.rounds

    @overload
    def __getitem__(self, index: int) -> MicrobatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[MicrobatchSpec]: ...
    def __getitem__(self, index: int | slice) -> MicrobatchSpec | list[MicrobatchSpec]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"microbatch {index} of {len(self)} in epoch {self.epoch}")
        (spec,) = self._specs([self.deal.round(index % len(self))])
        return spec

    def __iter__(self) -> Iterator[MicrobatchSpec]:
        return self.iter_from(0)

    async def __aiter__(self) -> AsyncIterator[MicrobatchSpec]:
        for spec in self:
            yield spec

    def iter_from(self, position: int) -> Iterator[MicrobatchSpec]:
        """Return the microbatches left for this rank when the first `position` of the global order are done."""
        return (microbatch for _, microbatch in self.rounds_from(position))

    def rounds_from(self, position: int) -> Iterator[tuple[Round, MicrobatchSpec]]:
        """Return the same microbatches as `iter_from`, each with the round that it is part of."""
        if not 0 <= position <= self.deal.length:
            raise OptionError(f"microbatch {position} does not exist: epoch {self.epoch} has {self.deal.length}")
        if self.partial and self.deal.round_number(position) is None:
            raise OptionError(
                f"microbatch {position} is not where a round of {self.deal.world_size} ranks starts; continue from "
                "the whole plan instead"
            )
        return self._rounds(self.deal.rounds_from(position))

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps in the epoch."""
        return self.deal.steps

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Indices of this rank's microbatches in the columns, in order; NULL for empty ones."""
        indices = self.deal.indices(self.rank)
        if self.partial:
            return np.where(indices == NULL, NULL, np.arange(len(indices)))
        return indices if self.order is None else np.where(indices == NULL, NULL, self.order[indices])

    @property
    def total_samples(self) -> int:
        """Number of sequences on this rank; a sample that was split counts once per piece."""
        return len(self.columns.take(self.places).unit)

    @property
    def total_tokens(self) -> int:
        return self.fill.used

    @property
    def fill(self) -> Fill:
        real = self.places[self.places != NULL]
        return Fill(int(self.columns.tokens[real].sum()), int(self.columns.slots[real].sum()))

    def _rounds(self, rounds: Iterator[Round]) -> Iterator[tuple[Round, MicrobatchSpec]]:
        """Make microbatches in groups of up to `AT_ONCE`; the first is a group of its own, because it is waited for."""
        count = 1
        while some := list(islice(rounds, count)):
            yield from zip(some, self._specs(some), strict=True)
            count = min(2 * count, AT_ONCE)

    def _places(self, rounds: Sequence[Round], indices: list[int]) -> NDArray[np.int64]:
        """Return where in the columns this rank's microbatches of some rounds are, NULL for empty ones."""
        places = np.array(indices, np.int64)
        if self.partial:
            numbers = (self.deal.round_number(round.start) for round in rounds)
            found = np.array([NULL if number is None else number for number in numbers], np.int64)
            return np.where(places == NULL, NULL, found)
        return places if self.order is None else np.where(places == NULL, NULL, self.order[places])

    def position(self, index: int) -> CheckpointPosition:
        """The position before a microbatch of the global order; at the end of the epoch, the start of the next one."""
        return self._next_epoch if index == self._length else self._begin.at(index)

    @cached_property
    def _begin(self) -> CheckpointPosition:
        return CheckpointPosition(
            epoch=self.epoch,
            microbatch_idx=0,
            global_step=0,
            microbatches_per_step=self.deal.step_size,
            fingerprint=self.origin.fingerprint,
        )

    @cached_property
    def _next_epoch(self) -> CheckpointPosition:
        return replace(self._begin, epoch=self.epoch + 1)

    @cached_property
    def _length(self) -> int:
        return self.deal.length

    def _specs(self, rounds: Sequence[Round]) -> Iterator[MicrobatchSpec]:
        """Make this rank's microbatches of some rounds. All are looked up together, and share their arrays."""
        columns, origin = self.parts, self.origin
        indices = [self.deal.index(round, self.rank) for round in rounds]
        places = self._places(rounds, indices)
        null = places == NULL
        at = np.where(null, 0, places)
        first = columns.row_ptr[at]
        last = np.where(null, first, columns.row_ptr[at + 1])

        # The units of microbatch i are `edges[i]` to `edges[i + 1]` of those that are looked up, and the boundaries of
        # its rows are `corners[i]` to `corners[i + 1]` of `row_ptr`.
        if columns.seq_ptr is None:
            units, edges = stretches(first, last - first)
            row_ptr, corners = stretches(np.zeros_like(first), last - first + 1)
        else:
            rows, corners = stretches(first, last - first + 1)
            begin, end = columns.seq_ptr[first], columns.seq_ptr[last]
            units, edges = stretches(begin, end - begin)
            row_ptr = columns.seq_ptr[rows] - np.repeat(begin, np.diff(corners))
        spans = origin.unit_reader.spans(columns.unit[units])

        groups: list[str | None] = [None] * len(rounds)
        if columns.group is not None:
            names = origin.table.group_names
            groups = [None if place == NULL else names[columns.group[place]] for place in places.tolist()]
        widths, buckets = (np.where(null, 0, column[at]).tolist() for column in (columns.width, columns.bucket))
        edge, corner = edges.tolist(), corners.tolist()
        epoch, ids, packed = self.epoch, origin.table.ids, columns.seq_ptr is not None
        for i, round in enumerate(rounds):
            part = slice(edge[i], edge[i + 1])
            yield _spec(
                epoch=epoch,
                index=indices[i],
                _ids=ids,
                indices=spans.samples[part],
                starts=spans.starts[part],
                lengths=spans.lengths[part],
                row_ptr=row_ptr[corner[i] : corner[i + 1]],
                max_len=widths[i],
                bucket_id=buckets[i],
                group=groups[i],
                packed=packed,
                after=self.position(round.end),
                last_of_step=None,
            )
