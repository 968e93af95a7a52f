"""Follow a plan: which microbatch comes next on this rank, and which optimizer steps are done.

No framework is imported here: `brim.batch.torch` and `brim.batch.jax` turn what comes out into their own arrays. A
position follows what was handed out, not what was fetched ahead, and that of a `PlanFollower` never points into the
middle of a step, since half of a step's gradients are in no checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import asdict, replace
from typing import Any, Generic, Protocol, TypeVar

from brim.core.arrays import ceil_div
from brim.core.errors import MismatchError, OptionError
from brim.core.wait.ahead import fetch_ahead
from brim.plan.deal import NULL
from brim.plan.distributed import DistributedConfig
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan, Share
from brim.plan.position import CheckpointPosition


class PlannedRows(list[int]):
    """The rows of one microbatch, for any map-style data set; with the plan of it for one that understands packed and
    cut rows.
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
    """The microbatches of a plan for one rank: iterated once for each epoch, going on to the next one by itself.

    `set_epoch` goes to another epoch. A position (`load_state_dict`) may come from any number of ranks; optimizer steps
    stay what they were. Hand it to a `DataLoader` or a `StatefulDataLoader` as `batch_sampler`. It shards by itself:
    nothing else may.

    With `whole_run` one iteration is the rest of the plan, epoch after epoch, for trainers that count batches and take
    every epoch to be as long as the first: every optimizer step has exactly `batches_per_step` batches, empty ones
    where the last step of an epoch is short, and `len()` is that of the run from its beginning.
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
        """Rank and world size are those of the launcher (`DistributedConfig.from_env`) unless given.

        Raises:
            OptionError: The plan is the share of another rank.
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
        """This rank's share."""
        self._start = CheckpointPosition(
            epoch=0, microbatch_idx=0, microbatches_per_step=self.plan.step_size, fingerprint=plan.fingerprint
        )
        self._began = self._start
        self._length: int | None = None

    @property
    def start(self) -> CheckpointPosition:
        """Where the next iteration begins."""
        return self._start

    @property
    def epoch(self) -> int:
        return self._start.epoch

    @property
    def batches_per_step(self) -> int:
        """On this rank; fewer in the last step of an epoch, unless `whole_run`.

        What trainers call gradient accumulation.
        """
        return ceil_div(self.plan.step_size, self.world_size)

    @property
    def batch_size(self) -> None:
        """None: it varies.

        Accelerate asks for it when it is about to deal out the batches of this rank among all ranks.
        """
        if self.world_size > 1:
            raise OptionError(
                f"this sampler has the batches of rank {self.rank} of {self.world_size} already, and must not be "
                "dealt out again; give accelerator.prepare a brim.batch.torch.loader instead of a DataLoader, or "
                "nothing"
            )

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch; where it was left, if it is the one that is under way."""
        if self.whole_run:
            if epoch:
                raise OptionError(
                    f"one iteration is the whole plan, so there is no epoch {epoch}: let the trainer run for 1 epoch"
                )
        elif epoch != self._start.epoch:
            self.plan.deal(epoch)  # refuses an epoch that does not exist
            self._start = self._began = replace(self._start, epoch=epoch, microbatch_idx=0)

    def __len__(self) -> int:
        """How many microbatches the next iteration gives, exactly; with `whole_run`, how many one from the beginning
        gives.
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
        """Where the next iteration begins; with `done`, where a run goes on that was trained on so many batches of the
        last one.

        A plain `DataLoader` does not say which batches it has only fetched ahead, so count what comes out of it, from 1
        in every `for` loop, also in one that goes on in the middle of an epoch.

        Raises:
            OptionError: That iteration has no so many batches.
        """
        if done is None:
            return asdict(self._start)
        if done < 0:
            raise OptionError(f"done must not be negative, got {done}")
        own = copy(self)  # an iteration that ends moves its sampler on
        own.go_to(self._began)
        taking = PlanIterator(own)
        for number in range(done):
            if next(taking, None) is None:
                raise OptionError(
                    f"done is {done}, and the last iteration has {number} batches; count from 1 in every loop"
                )
        return taking.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
            MismatchError: The state belongs to another plan.
            OptionError: There is no such place in this plan.
        """
        try:
            position = CheckpointPosition(**state)
        except TypeError:
            held = ", ".join(sorted(str(name) for name in state)) or "nothing"
            raise MismatchError(
                f"this is not the state of a loader: it holds {held}; pass what state_dict() gave"
            ) from None
        plan = self._given if self._given.share != Share() else self._given.resume(position, self.rank, self.world_size)
        # Refuses a place that does not exist, and for a stored share one where none of its rounds begins.
        plan.iter_from(position)
        self.plan, self._length = plan, None
        self._began = position
        self.go_to(position)

    def go_to(self, position: CheckpointPosition) -> None:
        """Begin the next iteration there; the place must be one that this plan gave."""
        self._start = position

    def is_over(self, position: CheckpointPosition, epoch: int) -> bool:
        """Whether an iteration that was in `epoch` ends at a position."""
        return position.epoch != epoch and (not self.whole_run or position.epoch == self.plan.num_epochs)


class PlanIterator(Iterator[list[int]]):
    """One iteration of a `PlanBatchSampler`.

    Its state is exact to the batch: where an optimizer step ends is for its owner to know.
    """

    def __init__(self, sampler: PlanBatchSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.start)

    def _begin(self, position: CheckpointPosition) -> None:
        self.position = position
        self._rest = self._all_epochs(position) if self._sampler.whole_run else self._epoch(position)

    def __next__(self) -> PlannedRows:
        rows = next(self._rest)
        after = rows.microbatch.after
        assert after is not None
        self.position = replace(after, global_step=self.position.global_step + rows.ends_step)
        if self._sampler.is_over(self.position, rows.microbatch.epoch):
            self._sampler.go_to(self.position)
        return rows

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._begin(self._sampler.start)

    def _epoch(self, start: CheckpointPosition) -> Iterator[PlannedRows]:
        plan = self._sampler.plan
        if start.epoch >= plan.num_epochs:
            raise OptionError(
                f"all {plan.num_epochs} epochs of the plan are done; plan more of them, or go back with set_epoch"
            )
        epoch = plan.get_epoch(start.epoch)
        for microbatch in epoch.iter_from(start.microbatch_idx):
            yield PlannedRows(microbatch)
        if start.microbatch_idx == epoch.deal.length:  # nothing to give: a short step that is dropped was all there was
            self._sampler.go_to(replace(start, epoch=start.epoch + 1, microbatch_idx=0))

    def _all_epochs(self, start: CheckpointPosition) -> Iterator[PlannedRows]:
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
                yield PlannedRows(replace(microbatch, last_of_step=given == size))
                if microbatch.ends_step:
                    for number in range(given + 1, size + 1):
                        yield PlannedRows(replace(emptied(microbatch), last_of_step=number == size))
                    given = 0


def emptied(microbatch: MicrobatchSpec) -> MicrobatchSpec:
    """A null microbatch at the same place."""
    nothing = {name: getattr(microbatch, name)[:0] for name in ("samples", "indices", "starts", "lengths")}
    return replace(
        microbatch, index=NULL, row_ptr=microbatch.row_ptr[:1], max_len=0, bucket_id=0, group=None, **nothing
    )


class Handed(Protocol):
    """What a follower asks of a batch."""

    @property
    def epoch(self) -> int: ...
    @property
    def after(self) -> CheckpointPosition | None: ...
    @property
    def ends_step(self) -> bool: ...


BatchT = TypeVar("BatchT", bound=Handed)


class PlanFollower(ABC, Generic[BatchT]):
    """The batches of a plan for one rank, `prefetch` of them made ahead by a thread.

    Iterating gives one epoch, or the rest of the one that a loaded state points into, and the next iteration the next
    epoch. An iteration that is left early is begun again by the next one; to go on instead, load the state. A batch
    counts as done when it is handed out, a step when its last batch is: ask for the state after the optimizer's step.
    """

    def __init__(self, sampler: PlanBatchSampler, *, prefetch: int = 2) -> None:
        if prefetch < 0:
            raise OptionError(f"prefetch must not be negative, got {prefetch}")
        self.sampler, self._prefetch = sampler, prefetch
        self._position = sampler.start
        self._fetching = copy(sampler)  # runs ahead of what was handed out

    @property
    def plan(self) -> BatchPlan:
        """This rank's share."""
        return self.sampler.plan

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self.sampler.epoch

    @property
    def batches_per_step(self) -> int:
        """On this rank; fewer in the last step of an epoch, unless the loader is of the whole run."""
        return self.sampler.batches_per_step

    @property
    def position(self) -> CheckpointPosition:
        """Which steps are done: save it with the model."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch; where it was left, if it is the one that is under way."""
        before = self.sampler.start
        self.sampler.set_epoch(epoch)
        if self.sampler.start != before:
            self._position = self.sampler.start

    def __len__(self) -> int:
        """How many batches the next iteration gives, exactly; of a loader of the whole run, how many one from the
        beginning gives.
        """
        return len(self.sampler)

    def __iter__(self) -> Iterator[BatchT]:
        self._fetching.plan = self.sampler.plan
        self._fetching.go_to(self.sampler.start)
        self._position = self.sampler.start
        for batch in self._batches():
            if batch.ends_step and batch.after is not None:
                self._position = replace(batch.after, global_step=self._position.global_step + 1)
                if self.sampler.is_over(self._position, batch.epoch):
                    # Now, because trainers that count do not ask for more than the last batch.
                    self.sampler.go_to(self._position)
            yield batch
        self.sampler.go_to(self._fetching.start)
        self._position = self.sampler.start

    def steps(self) -> Iterator[list[BatchT]]:
        """The same, with the batches of one optimizer step together."""
        step: list[BatchT] = []
        for batch in self:
            step.append(batch)
            if batch.ends_step:
                yield step
                step = []

    def state_dict(self) -> dict[str, Any]:
        """A few numbers and a fingerprint, as JSON takes them; the same on all ranks."""
        return asdict(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on this number of ranks.

        Raises:
            MismatchError: The state belongs to another plan.
        """
        self.sampler.load_state_dict(state)
        self._position = self.sampler.start

    def _batches(self) -> Iterator[BatchT]:
        return fetch_ahead(self._made(), self._prefetch) if self._prefetch else self._made()

    @abstractmethod
    def _make(self, rows: PlannedRows) -> BatchT: ...

    def _made(self) -> Iterator[BatchT]:
        return (self._make(rows) for rows in self._fetching)  # pyright: ignore[reportArgumentType]  these are PlannedRows
