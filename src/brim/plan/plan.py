"""`BatchPlan`: a pure function of lengths and config, which any number of ranks can follow.

A plan holds no iterators and no state. Epochs are built when they are first used, or mapped from disk
(`brim.plan.store`); a shard is a view of the same epochs for one rank.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.display import facts_html
from brim.core.errors import MismatchError, OptionError
from brim.core.options import check_counts, is_integer
from brim.core.progress import Progress, silent
from brim.data.ids import SampleId
from brim.data.lengths import LengthCache, LengthEntry
from brim.plan.buckets import BucketSpec
from brim.plan.build import ALGORITHM
from brim.plan.config import BatchingConfig
from brim.plan.deal import Deal, deal_order
from brim.plan.epoch import EpochPlan, MicrobatchSpec
from brim.plan.epoch_columns import EpochColumns
from brim.plan.epochs import BuiltEpochs, Epochs, plan_fingerprint
from brim.plan.position import CheckpointPosition
from brim.plan.units import Counts, Units, too_long

Lengths = LengthCache | Mapping[str, int] | Mapping[SampleId, int] | Iterable[LengthEntry]


@dataclass(frozen=True)
class Share:
    """The part of a plan that belongs to one rank. `partial` says that the epochs hold that part only."""

    rank: int = 0
    world_size: int = 1
    partial: bool = False
    totals: tuple[int, ...] = ()
    """Number of microbatches of each epoch over all ranks; set for a partial plan only."""


class BatchPlan:
    """A plan of which samples share a microbatch, and in which order, for each epoch.

    Example:
        >>> plan = BatchPlan.build({"a": 5, "b": 3, "c": 4}, BatchingConfig(token_budget=8), num_epochs=2)
        >>> sorted(id for microbatch in plan.iter_epoch(0) for id in microbatch.samples)
        ['a', 'b', 'c']
    """

    def __init__(
        self,
        epochs: Epochs,
        config: BatchingConfig,
        num_epochs: int,
        *,
        step_size: int | None = None,
        share: Share | None = None,
    ) -> None:
        """Not called directly: use `build` or `load`."""
        self.epochs, self.config, self.num_epochs = epochs, config, num_epochs
        self._step_size, self.share = step_size or config.microbatches_per_step, share or Share()

    @classmethod
    def build(
        cls,
        lengths: Lengths,
        config: BatchingConfig | None = None,
        *,
        num_epochs: int = 1,
        algorithm: int = ALGORITHM,
        report: Progress = silent,
    ) -> "BatchPlan":
        """Plan `num_epochs` epochs. A mapping is planned in the order of its ids, so the order of a dict does not
        matter.

        Args:
            algorithm: Version of the planner. An earlier one gives the plan that it gave when it was the newest.
            report: Called while patterns for packed rows are searched, with the rows so far and their lower bound.

        Raises:
            LengthError: A sample does not fit and `config.overflow` is "error".
        """
        if not is_integer(num_epochs) or num_epochs < 1:
            raise OptionError(f"num_epochs must be an integer of at least 1, got {num_epochs!r}")
        if not 1 <= algorithm <= ALGORITHM:
            raise OptionError(f"algorithm must lie between 1 and {ALGORITHM}, got {algorithm}")
        config = config or BatchingConfig()
        table = LengthCache.from_lengths(lengths)  # pyright: ignore[reportArgumentType]
        epochs = BuiltEpochs(table, config, num_epochs, algorithm=algorithm, report=report)
        return cls(epochs, config, num_epochs)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, report: Progress = silent) -> "BatchPlan":
        """Open a plan directory without reading its columns. See `brim.plan.store`.

        `report` is called while patterns are searched for the packed rows of a plan whose epochs are not stored.
        """
        from brim.plan.store import load_plan

        return load_plan(path, report=report)

    def save(
        self, path: str | os.PathLike[str], *, lazy: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Write the plan as a directory, whole or not at all.

        `lazy` leaves the epochs out; they are built again when they are used.
        """
        from brim.plan.store import save_plan

        save_plan(self, path, lazy=lazy, progress=progress)

    @property
    def fingerprint(self) -> str:
        """Fingerprint that changes if anything changes that reaches a tensor; see `plan_fingerprint`.

        All shares of a plan have the fingerprint of the plan.
        """
        return self.epochs.fingerprint

    @property
    def table(self) -> LengthCache:
        """The lengths that the plan was built from."""
        return self.epochs.table

    @property
    def units(self) -> Units:
        """The sequences that the plan places: the samples, skipped, cut or split as `config.overflow` says."""
        return self.epochs.units

    @property
    def longest(self) -> int:
        """The length of the longest sequence that the plan places."""
        return self.epochs.longest

    def columns(self, epoch: int) -> EpochColumns:
        """Return the microbatches of an epoch as columns, in the order in which they were built, for all ranks that the
        plan holds.

        Raises:
            OptionError: There is no such epoch.
        """
        self._check_epoch(epoch)
        return self.epochs.parts(epoch).whole

    def dropped_units(self, epoch: int) -> NDArray[np.int32]:
        """Return which sequences (`units`) `drop_last` leaves out of an epoch."""
        self._check_epoch(epoch)
        return self.epochs.dropped(epoch)

    @property
    def counts(self) -> Counts:
        """Number of samples that were skipped, truncated and split."""
        return self.epochs.counts

    @property
    def buckets(self) -> BucketSpec | None:
        return self.epochs.buckets

    @property
    def step_size(self) -> int:
        """Microbatches in an optimizer step, over all ranks: as configured, or one for each rank."""
        return self._step_size or self.share.world_size

    @property
    def rank(self) -> int:
        return self.share.rank

    @property
    def world_size(self) -> int:
        return self.share.world_size

    @cached_property
    def total_microbatches(self) -> int:
        """Number of microbatches on this rank over all epochs, empty ones included."""
        return sum(self.num_microbatches(epoch) for epoch in range(self.num_epochs))

    def num_microbatches(self, epoch: int) -> int:
        """Return the number of this rank's microbatches in an epoch, empty ones included; the same on every rank."""
        return self.deal(epoch).rounds

    def deal(self, epoch: int) -> Deal:
        """Return how the microbatches of an epoch are dealt to optimizer steps and ranks."""
        self._check_epoch(epoch)
        total = self.share.totals[epoch] if self.share.partial else self.epochs.num_microbatches(epoch)
        return Deal(total, self.step_size, self.share.world_size, self.config.remainder)

    def get_epoch(self, epoch: int) -> EpochPlan:
        """Return the microbatches of one epoch, for this rank."""
        self._check_epoch(epoch)
        parts, order = self.epochs.parts(epoch), None
        if (
            not self.share.partial
            and self.config.shuffle
            and self.step_size != (self.config.microbatches_per_step or 1)
        ):
            costs = parts.cost(self.config.cost_model)
            order = deal_order(costs, self.step_size, seed=self.config.seed, epoch=epoch)
        return EpochPlan(
            epoch=epoch,
            parts=parts,
            origin=self.epochs,
            deal=self.deal(epoch),
            rank=self.share.rank,
            order=order,
            partial=self.share.partial,
        )

    def dropped(self, epoch: int) -> tuple[SampleId, ...]:
        """The samples that `drop_last` leaves out of an epoch."""
        return self.table.ids.take(np.unique(self.units.samples(self.dropped_units(epoch))))

    def skipped(self) -> tuple[SampleId, ...]:
        """The samples that `overflow="skip"` leaves out of every epoch."""
        return self.table.ids.take(self._too_long()) if self.counts.skipped else ()

    def truncated(self) -> tuple[SampleId, ...]:
        """The samples that `overflow="truncate"` shortens."""
        return self.table.ids.take(self._too_long()) if self.counts.truncated else ()

    def _too_long(self) -> NDArray[np.int64]:
        return too_long(self.table, self.config)

    def iter_epoch(self, epoch: int = 0) -> EpochPlan:
        """The microbatches of an epoch, for `for` and `async for`."""
        return self.get_epoch(epoch)

    def iter_from(
        self, epoch: "int | CheckpointPosition", microbatch_idx: int = 0
    ) -> Iterator[tuple[int, int, MicrobatchSpec]]:
        """Iterate over (epoch, index, microbatch) from a position to the end of the last epoch, for this rank.

        `index` is where the round of this microbatch starts in the global order, so it is the same on all ranks. To
        resume on another number of ranks, start from `plan.resume(position, rank, world_size)`.

        Raises:
            MismatchError: The position belongs to another plan, or to optimizer steps of another size.
        """
        if isinstance(epoch, CheckpointPosition):
            self._check_position(epoch)
            epoch, microbatch_idx = epoch.epoch, epoch.microbatch_idx
        elif microbatch_idx and self._step_size is None and self.world_size > 1:
            raise OptionError(
                f"microbatch {microbatch_idx} of a plan that does not fix its steps is another one on another number "
                "of ranks; pass the position that a microbatch gave (microbatch.after), or plan with "
                "microbatches_per_step"
            )
        if epoch == self.num_epochs and microbatch_idx == 0:
            return iter(())
        # A position that does not exist raises here, not at the first microbatch.
        self.get_epoch(epoch).iter_from(microbatch_idx)
        return self._iterate(epoch, microbatch_idx)

    def _iterate(self, start: int, at: int) -> Iterator[tuple[int, int, MicrobatchSpec]]:
        for epoch in range(start, self.num_epochs):
            view, here = self.get_epoch(epoch), at if epoch == start else 0
            for round, microbatch in view.rounds_from(here):
                yield epoch, round.start, microbatch

    def resume(self, position: CheckpointPosition, rank: int = 0, world_size: int = 1) -> "BatchPlan":
        """Return the share of a rank that resumes a run at `position`, on any number of ranks; iterate over it with
        `resumed.iter_from(position)`.

        Optimizer steps stay the same, so nothing is repeated or skipped, and the run takes the same steps as one that
        was not interrupted. A run that an earlier version of the planner planned is resumed on its plan (`planned_as`).

        Raises:
            MismatchError: The position belongs to another plan.
        """
        plan = self.planned_as(position.fingerprint)
        plan._check_plan(position)
        return plan.with_step_size(position.microbatches_per_step).shard(rank, world_size)

    def planned_as(self, fingerprint: str) -> "BatchPlan":
        """Return the plan of the same lengths and options that has this fingerprint, if an earlier version of the
        planner gave it; otherwise this plan.
        """
        if self.share.partial or fingerprint == self.fingerprint:
            return self
        for algorithm in range(1, ALGORITHM):
            if plan_fingerprint(self.table, self.config, self.num_epochs, algorithm=algorithm) == fingerprint:
                epochs = BuiltEpochs(self.table, self.config, self.num_epochs, algorithm=algorithm)
                return BatchPlan(epochs, self.config, self.num_epochs, step_size=self._step_size, share=self.share)
        return self

    def _check_plan(self, position: CheckpointPosition) -> None:
        if position.fingerprint != self.fingerprint:
            raise MismatchError(
                f"this position belongs to another plan: it was made with {position.fingerprint[:8] or 'none'}.., "
                f"this plan is {self.fingerprint[:8]}..; load the plan of that run, or start from the beginning"
            )

    def _check_position(self, position: CheckpointPosition) -> None:
        self._check_plan(position)
        if position.microbatches_per_step != self.step_size:
            raise MismatchError(
                f"this position was made with steps of {position.microbatches_per_step} microbatches, here they are "
                f"{self.step_size}; continue with plan.resume(position, rank, world_size)"
            )

    def with_step_size(self, microbatches_per_step: int) -> "BatchPlan":
        """Return the same plan with this number of microbatches in an optimizer step.

        Raises:
            MismatchError: The plan already fixes another number.
        """
        if microbatches_per_step == self._step_size:
            return self
        check_counts(microbatches_per_step=microbatches_per_step)
        if self._step_size is not None:
            raise MismatchError(f"the plan has steps of {self._step_size} microbatches, not {microbatches_per_step}")
        return BatchPlan(self.epochs, self.config, self.num_epochs, step_size=microbatches_per_step, share=self.share)

    def shard(self, rank: int, world_size: int) -> "BatchPlan":
        """Return the share of one rank. All ranks take equally many microbatches.

        Microbatches are dealt in rounds, in which every rank gets one. Unless the plan fixes the microbatches per step,
        a round is a step, and its microbatches cost nearly the same. `config.remainder` decides what happens to a short
        last step.
        """
        if self.share != Share():
            raise OptionError(
                f"this plan is already the share of rank {self.rank} of {self.world_size}; shard the whole plan instead"
            )
        check_counts(world_size=world_size)
        if not is_integer(rank) or not 0 <= rank < world_size:
            raise OptionError(f"rank must lie between 0 and {world_size - 1}, got {rank!r}")
        return BatchPlan(
            self.epochs,
            self.config,
            self.num_epochs,
            step_size=self._step_size,
            share=replace(self.share, rank=rank, world_size=world_size),
        )

    def _check_epoch(self, epoch: int) -> None:
        if not 0 <= epoch < self.num_epochs:
            raise OptionError(f"epoch {epoch} does not exist: the plan has epochs 0 to {self.num_epochs - 1}")

    def _repr_html_(self) -> str:
        """Return a summary for notebooks, without building an epoch. `brim.create_plan_report` shows more."""
        facts: dict[str, Any] = {
            "samples": self.counts.samples,
            "tokens": self.counts.tokens,
            "epochs": self.num_epochs,
            "token budget": self.config.token_budget,
            "mode": "packed" if self.config.packing is not None else str(self.config.mode),
            "share": f"rank {self.rank} of {self.world_size}",
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
        }
        return facts_html(facts, title="BatchPlan")

    def __repr__(self) -> str:
        part = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return (
            f"BatchPlan({self.counts.samples} samples, {self.num_epochs} epochs, budget "
            f"{self.config.token_budget}{part})"
        )


class BatchPlanBuilder:
    """Builds plans from one set of lengths and one config."""

    def __init__(
        self, lengths: Lengths, batching_config: BatchingConfig, *, dataset_hash: str = "", tokenizer_hash: str = ""
    ) -> None:
        table = LengthCache.from_lengths(lengths)  # pyright: ignore[reportArgumentType]
        self.table = table.with_hashes(dataset_hash or table.dataset_hash, tokenizer_hash or table.tokenizer_hash)
        self.batching_config = batching_config

    def build(self, num_epochs: int = 1) -> BatchPlan:
        return BatchPlan.build(self.table, self.batching_config, num_epochs=num_epochs)
