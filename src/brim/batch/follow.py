"""Follow a plan: which microbatch comes next on this rank, and which optimizer steps are done.

No framework is imported here: `brim.batch.torch` and `brim.batch.jax` turn microbatches into their own arrays. A
position counts the batches that were handed out, not those that were prefetched. The position of a `PlanFollower` never
points into the middle of an optimizer step, since a checkpoint does not hold the gradients of half a step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

from brim.batch.batch import CarriesSpec
from brim.core.arrays import ceil_div
from brim.core.errors import MismatchError, OptionError
from brim.core.wait.ahead import fetch_ahead
from brim.plan.deal import NULL
from brim.plan.distributed import DistributedConfig
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan, Share
from brim.plan.position import CheckpointPosition, StepCount

PREFETCH = 8
"""Default number of batches that a thread prefetches: both threads wait once for several, and waiting costs time."""


class PlannedRows(list[int]):
    """The row numbers of one microbatch, for any map-style data set.

    They come with the `microbatch` itself, for a data set that supports packed and cut rows.
    """

    def __init__(self, microbatch: MicrobatchSpec) -> None:
        super().__init__(microbatch.indices.tolist())
        self.microbatch = microbatch

    @property
    def ends_step(self) -> bool:
        """True if the optimizer takes its step after this microbatch."""
        return self.microbatch.ends_step

    def __reduce__(self) -> Any:
        return (PlannedRows, (self.microbatch,))


class PlanBatchSampler:
    """A batch sampler over the microbatches of a plan for one rank. Each iteration is one epoch, and the next iteration
    is the next epoch.

    `set_epoch` selects another epoch. A position (`load_state_dict`) may come from any number of ranks; optimizer steps
    stay the same. Pass the sampler to a `DataLoader` or a `StatefulDataLoader` as `batch_sampler`. It shards the plan
    itself, so nothing else may shard its batches.

    With `whole_run` one iteration is the rest of the plan, epoch after epoch, for trainers that count batches and
    assume that every epoch is as long as the first: every optimizer step has exactly `batches_per_step` batches, empty
    ones where the last step of an epoch is short, and `len()` is that of the run from its beginning.
    """

    def __init__(
        self,
        plan: BatchPlan,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        microbatches_per_step: int | None = None,
        whole_run: bool = False,
    ) -> None:
        """Make a sampler for one rank.

        Rank and world size default to those of the plan if it is a share, else to those of the launcher
        (`DistributedConfig.from_env`).

        Raises:
            OptionError: The plan is the share of another rank, or only one of `rank` and `world_size` is given.
        """
        if (rank is None) != (world_size is None):
            raise OptionError(f"give rank and world_size, or neither; got rank {rank} and world_size {world_size}")
        if rank is None or world_size is None:
            me = DistributedConfig.from_env()
            rank, world_size = (plan.rank, plan.world_size) if plan.world_size > 1 else (me.rank, me.world_size)
        if plan.world_size > 1 and (plan.rank, plan.world_size) != (rank, world_size):
            raise OptionError(
                f"this plan is the share of rank {plan.rank} of {plan.world_size}, not of rank {rank} of "
                f"{world_size}; pass the whole plan"
            )
        self.rank, self.world_size, self.whole_run = rank, world_size, whole_run
        self._given = plan if microbatches_per_step is None else plan.with_step_size(microbatches_per_step)
        self.plan = self._given if plan.share != Share() else self._given.shard(rank, world_size)
        """This rank's share of the plan."""
        self._start = CheckpointPosition(
            epoch=0, microbatch_idx=0, microbatches_per_step=self.plan.step_size, fingerprint=plan.fingerprint
        )
        self._began = self._start
        self._length: int | None = None

    @property
    def start(self) -> CheckpointPosition:
        """The position at which the next iteration begins."""
        return self._start

    @property
    def epoch(self) -> int:
        return self._start.epoch

    @property
    def batches_per_step(self) -> int:
        """Number of batches in an optimizer step on this rank, which trainers call gradient accumulation steps.

        The last step of an epoch may have fewer, unless `whole_run`.
        """
        return ceil_div(self.plan.step_size, self.world_size)

    @property
    def batch_size(self) -> None:
        """None, because batch sizes vary.

        Accelerate reads this before it shards the batches of this rank among all ranks again.

        Raises:
            OptionError: There are several ranks, whose batches must not be sharded twice.
        """
        if self.world_size > 1:
            raise OptionError(
                f"this sampler has the batches of rank {self.rank} of {self.world_size} already, and must not be "
                "dealt out again; give accelerator.prepare a brim.batch.torch.loader instead of a DataLoader, or "
                "nothing"
            )

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch. If it is the current epoch already, its position is kept."""
        if self.whole_run:
            if epoch:
                raise OptionError(
                    f"one iteration is the whole plan, so there is no epoch {epoch}: let the trainer run for 1 epoch"
                )
        elif epoch != self._start.epoch:
            self.plan.deal(epoch)  # refuses an epoch that does not exist
            self._start = self._began = replace(self._start, epoch=epoch, microbatch_idx=0)

    def __len__(self) -> int:
        """Return the exact number of microbatches in the next iteration; with `whole_run`, in one from the
        beginning.
        """
        if self.whole_run:
            if self._length is None:
                self._length = (
                    sum(self.plan.deal(epoch).steps for epoch in range(self.plan.num_epochs)) * self.batches_per_step
                )
            return self._length
        if self._start.epoch >= self.plan.num_epochs:
            return 0
        return self.plan.deal(self._start.epoch).rounds_left(self._start.microbatch_idx)

    def __iter__(self) -> "PlanIterator":
        self._began = self._start
        return PlanIterator(self)

    def state_dict(self, done: int | None = None) -> dict[str, Any]:
        """Return the position at which the next iteration begins; with `done`, the position from which a run resumes
        that was trained on `done` batches of the last iteration.

        A plain `DataLoader` does not say which batches it has only prefetched, so count the batches that it yields,
        from 1 in every `for` loop, also in one that resumes in the middle of an epoch.

        Raises:
            OptionError: `done` is negative, or the last iteration has fewer batches.
        """
        if done is None:
            return asdict(self._start)
        if done < 0:
            raise OptionError(f"done must not be negative, got {done}")
        own = copy(self)  # a copy, because an iteration that ends advances its sampler
        own.go_to(self._began)
        taking = PlanIterator(own)
        for number in range(done):
            if next(taking, None) is None:
                raise OptionError(
                    f"done is {done}, and the last iteration has {number} batches; count from 1 in every loop"
                )
        return taking.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume: begin the next iteration at the position that `state_dict` returned.

        Raises:
            MismatchError: The state belongs to another plan, or is not the state of a loader.
            OptionError: There is no such position in this plan.
        """
        try:
            position = CheckpointPosition(**state)
        except TypeError:
            held = ", ".join(sorted(str(name) for name in state)) or "nothing"
            raise MismatchError(
                f"this is not the state of a loader: it holds {held}; pass what state_dict() gave"
            ) from None
        plan = self._given if self._given.share != Share() else self._given.resume(position, self.rank, self.world_size)
        # Refuses a position that does not exist, and for a stored share one at which none of its rounds begins.
        plan.iter_from(position)
        self.plan, self._length = plan, None
        self._began = position
        self.go_to(position)

    def go_to(self, position: CheckpointPosition) -> None:
        """Begin the next iteration at a position of this plan. The position is not checked."""
        self._start = position

    def is_over(self, position: CheckpointPosition, epoch: int) -> bool:
        """Return whether an iteration ends at a position, when its last microbatch was in `epoch`."""
        return position.epoch != epoch and (not self.whole_run or position.epoch == self.plan.num_epochs)


class PlanIterator(Iterator[list[int]]):
    """One iteration of a `PlanBatchSampler`.

    Its state is exact to the batch, and may be in the middle of an optimizer step: the caller has to know where steps
    end.
    """

    def __init__(self, sampler: PlanBatchSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.start)

    def _begin(self, position: CheckpointPosition) -> None:
        self._count = StepCount(position)
        self.microbatches = self._followed(
            self._all_epochs(position) if self._sampler.whole_run else self._epoch(position)
        )
        """The rest of the iteration, for those who need no lists of row numbers."""

    @property
    def position(self) -> CheckpointPosition:
        return self._count.position

    def __next__(self) -> PlannedRows:
        return PlannedRows(next(self.microbatches))

    def _followed(self, rest: Iterator[MicrobatchSpec]) -> Iterator[MicrobatchSpec]:
        for microbatch in rest:
            after = microbatch.after
            assert after is not None
            self._count.pass_on(after, microbatch.ends_step)
            if self._sampler.is_over(after, microbatch.epoch):
                self._sampler.go_to(self.position)
            yield microbatch

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._begin(self._sampler.start)

    def _epoch(self, start: CheckpointPosition) -> Iterator[MicrobatchSpec]:
        plan = self._sampler.plan
        if start.epoch >= plan.num_epochs:
            raise OptionError(
                f"all {plan.num_epochs} epochs of the plan are done; plan more of them, or go back with set_epoch"
            )
        epoch = plan.get_epoch(start.epoch)
        yield from epoch.iter_from(start.microbatch_idx)
        if start.microbatch_idx == epoch.deal.length:  # no batches: the only step was short and is dropped
            self._sampler.go_to(replace(start, epoch=start.epoch + 1, microbatch_idx=0))

    def _all_epochs(self, start: CheckpointPosition) -> Iterator[MicrobatchSpec]:
        plan, size = self._sampler.plan, self._sampler.batches_per_step
        if start.epoch >= plan.num_epochs:
            raise OptionError(
                f"all {plan.num_epochs} epochs of the plan are done; let the trainer run for 1 epoch, or plan more "
                "of them"
            )
        given = ceil_div(start.microbatch_idx % plan.step_size, plan.world_size)
        for epoch in range(start.epoch, plan.num_epochs):
            for microbatch in plan.get_epoch(epoch).iter_from(start.microbatch_idx if epoch == start.epoch else 0):
                given += 1
                yield microbatch.changed(last_of_step=given == size)
                if microbatch.ends_step:
                    for number in range(given + 1, size + 1):
                        yield emptied(microbatch).changed(last_of_step=number == size)
                    given = 0


def emptied(microbatch: MicrobatchSpec) -> MicrobatchSpec:
    """Return an empty microbatch at the same position."""
    nothing = {name: getattr(microbatch, name)[:0] for name in ("indices", "starts", "lengths")}
    return microbatch.changed(
        index=NULL, samples=(), row_ptr=microbatch.row_ptr[:1], max_len=0, bucket_id=0, group=None, **nothing
    )


BatchT = TypeVar("BatchT", bound=CarriesSpec)

Fetched = tuple[BatchT, CheckpointPosition | None, bool]
"""A batch, the position after it if it ends an optimizer step, and whether it ends the iteration."""


class PlanFollower(ABC, Generic[BatchT]):
    """The batches of a plan for one rank. A thread prefetches up to `prefetch` of them.

    Each iteration is one epoch, or the rest of the one that a loaded state points into, and the next iteration is the
    next epoch. If an iteration is left early, the next one starts again where it began; to resume instead, load the
    state. A batch counts as done when it is handed out, an optimizer step when its last batch is: take the state after
    the optimizer's step.
    """

    def __init__(self, sampler: PlanBatchSampler, *, prefetch: int = PREFETCH) -> None:
        if prefetch < 0:
            raise OptionError(f"prefetch must not be negative, got {prefetch}")
        self.sampler, self._prefetch = sampler, prefetch
        self._count = StepCount(sampler.start)
        self._fetching = copy(sampler)  # is ahead of the batches that were handed out

    @property
    def plan(self) -> BatchPlan:
        """This rank's share of the plan."""
        return self.sampler.plan

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self.sampler.epoch

    @property
    def batches_per_step(self) -> int:
        """Number of batches in an optimizer step on this rank.

        The last step of an epoch may have fewer, unless the loader covers the whole run.
        """
        return self.sampler.batches_per_step

    @property
    def position(self) -> CheckpointPosition:
        """The position after the last optimizer step that is done: save it with the model."""
        return self._count.position

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch. If it is the current epoch already, its position is kept."""
        before = self.sampler.start
        self.sampler.set_epoch(epoch)
        if self.sampler.start != before:
            self._count = StepCount(self.sampler.start)

    def __len__(self) -> int:
        """Return the exact number of batches in the next iteration; or in the whole run, if the loader covers it."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[BatchT]:
        self._fetching.plan = self.sampler.plan
        self._fetching.go_to(self.sampler.start)
        self._count = StepCount(self.sampler.start)
        for batch, after, is_over in self._batches():
            if after is not None:
                self._count.pass_on(after, 1)
                if is_over:
                    # Before the yield, because trainers that count batches do not iterate past the last one.
                    self.sampler.go_to(self.position)
            yield batch
        self.sampler.go_to(self._fetching.start)
        self._count = StepCount(self.sampler.start)

    def steps(self) -> Iterator[list[BatchT]]:
        """Iterate over optimizer steps: the same batches, in one list for each step."""
        step: list[BatchT] = []
        for batch in self:
            step.append(batch)
            if batch.ends_step:
                yield step
                step = []

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-like values: a few numbers and a fingerprint, the same on all ranks."""
        return asdict(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, on this number of ranks.

        Raises:
            MismatchError: The state belongs to another plan, or is not the state of a loader.
            OptionError: There is no such position in this plan.
        """
        self.sampler.load_state_dict(state)
        self._count = StepCount(self.sampler.start)

    def _batches(self) -> Iterator[Fetched[BatchT]]:
        return fetch_ahead(self._made(), self._prefetch) if self._prefetch else self._made()

    @abstractmethod
    def _maker(self) -> Callable[[MicrobatchSpec], BatchT]:
        """Return the function that makes the batches of one iteration."""

    def _made(self) -> Iterator[Fetched[BatchT]]:
        make = self._maker()
        return (self._fetched(make(microbatch), microbatch) for microbatch in iter(self._fetching).microbatches)

    def _fetched(self, batch: BatchT, handed: CarriesSpec | MicrobatchSpec) -> Fetched[BatchT]:
        """Return a batch with what an iteration has to know of it, which the thread that made it finds out."""
        after = handed.after if handed.ends_step else None
        return batch, after, after is not None and self.sampler.is_over(after, handed.epoch)
