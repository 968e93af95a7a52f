"""PyTorch: batches as tensors, and loaders that follow a plan.

A `PlanBatchSampler` gives every microbatch of a plan as a list of row numbers, as any batch sampler does, and carries along what a packed
or cut microbatch needs; a `TokenDataset` turns such a list into a `Batch`. `loader` puts them together: with no worker processes, which is
right for a token store, batches are made by a thread a few steps ahead; with workers, by a `DataLoader`.

A loader's state is a position in the plan: a few numbers that say which optimizer steps are done. It follows what was handed out, not what
was fetched ahead, and never points into the middle of a step, since half of a step's gradients are in no checkpoint.

A leaf: it imports torch.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.batch.batch import IGNORED, Batch
from brim.batch.belongs import check_belongs
from brim.batch.collate import collate
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.ids import SampleId
from brim.data.token_store import TokenSource
from brim.plan.distributed import DistributedConfig
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Sampler
else:
    torch = need("torch", extra="torch", user="brim.batch.torch")
    from torch.utils.data import DataLoader, Dataset, Sampler

TENSORS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")


@dataclass(frozen=True, eq=False)
class TensorBatch:
    """A `Batch` as tensors. `inputs()` are the arguments of a Hugging Face model."""

    input_ids: "Tensor"  # [rows, width]
    labels: "Tensor"  # IGNORED where nothing is learned; the model shifts
    position_ids: "Tensor"
    segment_ids: "Tensor"  # 0 = padding
    cu_seqlens: "Tensor"  # [segments + 1]
    ids: tuple[SampleId, ...]
    epoch: int
    index: int
    packed: bool
    longest: int
    num_loss_tokens: int
    num_tokens: int
    after: CheckpointPosition | None
    ends_step: bool

    @classmethod
    def of(cls, batch: Batch) -> "TensorBatch":
        """Without copying."""
        return cls(
            input_ids=torch.from_numpy(batch.tokens),
            labels=torch.from_numpy(batch.labels),
            position_ids=torch.from_numpy(batch.positions),
            segment_ids=torch.from_numpy(batch.segment_ids),
            cu_seqlens=torch.from_numpy(batch.cu_seqlens),
            ids=batch.ids,
            epoch=batch.epoch,
            index=batch.index,
            packed=batch.packed,
            longest=batch.longest,
            num_loss_tokens=batch.num_loss_tokens,
            num_tokens=batch.fill.used,
            after=batch.after,
            ends_step=batch.ends_step,
        )

    @property
    def is_null(self) -> bool:
        return not self.ids

    @property
    def is_flat(self) -> bool:
        """Whether it is one row without padding."""
        return self.input_ids.shape[0] == 1 and self.input_ids.shape[1] == max(self.num_tokens, 1)

    @property
    def slots(self) -> int:
        return 0 if self.is_null else self.input_ids.numel()

    def inputs(self) -> dict[str, Any]:
        """Arguments for the forward pass of a causal model of transformers, without labels.

        A flat batch has the boundaries that kernels of variable length take. A padded one needs no mask: padding is on the right, where
        causal attention does not look. Packed rows that are not flat have no such form; see `brim.batch.attention.block_mask`.
        """
        if not self.is_flat:
            if self.packed:
                raise OptionError("packed rows must be flat (loader(..., flat=True)), or come with a mask of their own")
            return {"input_ids": self.input_ids}
        bounds = self.cu_seqlens if not self.is_null else torch.tensor([0, 1], dtype=torch.int32, device=self.input_ids.device)
        longest = max(self.longest, 1)
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def to(self, device: Any, *, non_blocking: bool = False) -> "TensorBatch":
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=non_blocking) for name in TENSORS})

    def pin_memory(self) -> "TensorBatch":
        return replace(self, **{name: getattr(self, name).pin_memory() for name in TENSORS})


class PlannedRows(list[int]):
    """The rows of one microbatch, for any map-style data set; with the plan of it for one that understands packed and cut rows."""

    def __init__(self, microbatch: MicrobatchSpec) -> None:
        super().__init__(microbatch.indices.tolist())
        self.microbatch = microbatch

    def __reduce__(self) -> Any:
        return (PlannedRows, (self.microbatch,))


class TokenDataset(Dataset[Any]):
    """Map-style: an index is a row of the data; a list of rows from a `PlanBatchSampler` becomes a batch. Pickles as its source does."""

    def __init__(self, source: TokenSource, *, pad_id: int | None = None, flat: bool = False) -> None:
        self.source, self.pad_id, self.flat = source, pad_id, flat

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> "dict[str, Tensor]":
        """One sample by itself: its tokens and labels."""
        tokens, learned, _ = self.source.sample(row)
        ids = torch.from_numpy(tokens.astype(np.int64))
        return {"input_ids": ids, "labels": torch.where(torch.from_numpy(learned != 0), ids, IGNORED)}

    def __getitems__(self, rows: Sequence[int]) -> TensorBatch:
        if not isinstance(rows, PlannedRows):
            raise OptionError("a TokenDataset makes batches from the lists of a PlanBatchSampler; pass it as batch_sampler")
        return TensorBatch.of(collate(rows.microbatch, self.source, pad_id=self.pad_id, dtype=np.int64, flat=self.flat))


def as_is(batch: Any) -> TensorBatch:
    """The collate function of a `DataLoader` over a `TokenDataset`, whose batches are ready."""
    return batch


class PlanBatchSampler(Sampler[list[int]]):
    """The microbatches of a plan for one rank: iterated once for each epoch, going on to the next one by itself.

    `set_epoch` goes to another epoch. A position (`load_state_dict`) may come from any number of ranks; optimizer steps stay what they
    were. Hand it to a `DataLoader` or a `StatefulDataLoader` as `batch_sampler`. It shards by itself: nothing else may.
    """

    def __init__(
        self, plan: BatchPlan, *, rank: int | None = None, world_size: int | None = None, microbatches_per_step: int | None = None
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
                f"this plan is the share of rank {plan.rank} of {plan.world_size}, not of rank {rank} of {world_size}; pass the whole plan"
            )
        self.rank, self.world_size = rank, world_size
        self._whole = plan if microbatches_per_step is None else plan.with_step_size(microbatches_per_step)
        self.plan = self._whole if plan.world_size > 1 else self._whole.shard(rank, world_size)
        self._start = CheckpointPosition(epoch=0, microbatch_idx=0, microbatches_per_step=self.plan.step_size, fingerprint=plan.fingerprint)

    @property
    def start(self) -> CheckpointPosition:
        """Where the next iteration begins."""
        return self._start

    @property
    def epoch(self) -> int:
        return self._start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch; where it was left, if it is the one that is under way."""
        if epoch != self._start.epoch:
            self.plan.deal(epoch)  # refuses an epoch that does not exist
            self._start = replace(self._start, epoch=epoch, microbatch_idx=0)

    def __len__(self) -> int:
        """How many microbatches the next iteration gives, exactly."""
        if self._start.epoch >= self.plan.num_epochs:
            return 0
        return self.plan.deal(self._start.epoch).rounds_left(self._start.microbatch_idx)

    def __iter__(self) -> "PlanIterator":
        if self._start.epoch >= self.plan.num_epochs:
            raise OptionError(f"all {self.plan.num_epochs} epochs of the plan are done; plan more of them, or go back with set_epoch")
        return PlanIterator(self)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._start)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Raises:
            MismatchError: The state belongs to another plan.
        """
        position = CheckpointPosition(**state)
        if self._whole.share.partial:
            self._whole.iter_from(position)  # refuses what is not a start of a round
        else:
            self.plan = self._whole.resume(position, self.rank, self.world_size)
        self._start = position


class PlanIterator(Iterator[list[int]]):
    """One epoch of a `PlanBatchSampler`, from where it was. Its state is where it goes on."""

    def __init__(self, sampler: PlanBatchSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.start)

    def _begin(self, position: CheckpointPosition) -> None:
        self.position = position
        over = position.epoch >= self._sampler.plan.num_epochs
        self._rest = iter(()) if over else self._sampler.plan.get_epoch(position.epoch).iter_from(position.microbatch_idx)

    def __next__(self) -> PlannedRows:
        microbatch = next(self._rest)
        assert microbatch.after is not None
        self.position = microbatch.after
        if self.position.epoch != microbatch.epoch:
            self._sampler.load_state_dict(asdict(self.position))  # the next iteration is the next epoch
        return PlannedRows(microbatch)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._begin(self._sampler.start)


class PlanLoader:
    """The batches of a plan for one rank; made by `loader`.

    Iterating gives one epoch, or the rest of the one that a loaded state points into, and the next iteration the next epoch. A batch
    counts as done when it is handed out, a step when its last batch is: ask for the state after the optimizer's step.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        sampler: PlanBatchSampler,
        *,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        multiprocessing_context: Any = None,
    ) -> None:
        if num_workers < 0 or prefetch < 0:
            raise OptionError(f"num_workers and prefetch must not be negative, got {num_workers} and {prefetch}")
        self.dataset, self.sampler = dataset, sampler
        self._position, self._prefetch = sampler.start, prefetch
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._fetching = copy(sampler)  # runs ahead of what was handed out
        self._workers: DataLoader[TensorBatch] | None = None
        if num_workers:
            self._workers = DataLoader(
                dataset,
                batch_sampler=self._fetching,
                num_workers=num_workers,
                collate_fn=as_is,
                pin_memory=self._pin_memory,
                prefetch_factor=max(prefetch, 1),
                multiprocessing_context=multiprocessing_context,
                persistent_workers=True,
            )

    @property
    def plan(self) -> BatchPlan:
        """This rank's share."""
        return self.sampler.plan

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self.sampler.epoch

    @property
    def position(self) -> CheckpointPosition:
        """Which steps are done: save it with the model."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        self._position = replace(self.sampler.start, global_step=self._position.global_step)

    def __len__(self) -> int:
        """How many batches the next iteration gives, exactly."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[TensorBatch]:
        self._fetching.load_state_dict(self.sampler.state_dict())
        self._position = replace(self.sampler.start, global_step=self._position.global_step)
        batches = self._workers or (fetch_ahead(self._fetch(), self._prefetch) if self._prefetch else self._fetch())
        for batch in batches:
            if batch.ends_step and batch.after is not None:
                self._position = replace(batch.after, global_step=self._position.global_step + 1)
            yield batch
        self.sampler.load_state_dict(asdict(self._position))

    def steps(self) -> Iterator[list[TensorBatch]]:
        """The same, with the batches of one optimizer step together."""
        step: list[TensorBatch] = []
        for batch in self:
            step.append(batch)
            if batch.ends_step:
                yield step
                step = []

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, on this number of ranks.

        Raises:
            MismatchError: The state belongs to another plan.
        """
        self.sampler.load_state_dict(state)
        self._position = self.sampler.start

    def _fetch(self) -> Iterator[TensorBatch]:
        for rows in self._fetching:
            batch = self.dataset.__getitems__(rows)
            yield batch.pin_memory() if self._pin_memory else batch


def loader(
    plan: BatchPlan,
    source: TokenSource,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool = False,
    flat: bool | None = None,
    pad_id: int | None = None,
    microbatches_per_step: int | None = None,
    multiprocessing_context: Any = None,
) -> PlanLoader:
    """The batches of `plan` for one rank, with tokens from `source` (a `TokenStore`, or `Samples`).

    Rank and world size are the launcher's unless given. `num_workers=0` makes batches in a thread, `prefetch` of them ahead; worker
    processes pay where rows are tokenised on the fly. `flat` puts the sequences of a microbatch end to end in one row; it is the default
    for packed plans.

    Raises:
        MismatchError: The plan belongs to other data or another tokenizer.

    Example:
        >>> for batch in loader(plan, store):  # doctest: +SKIP
        ...     loss = model(**batch.inputs(), labels=batch.labels).loss
    """
    check_belongs(plan, source)
    sampler = PlanBatchSampler(plan, rank=rank, world_size=world_size, microbatches_per_step=microbatches_per_step)
    dataset = TokenDataset(source, pad_id=pad_id, flat=plan.config.packing is not None if flat is None else flat)
    return PlanLoader(
        dataset,
        sampler,
        num_workers=num_workers,
        prefetch=prefetch,
        pin_memory=pin_memory,
        multiprocessing_context=multiprocessing_context,
    )


def fetch_ahead(items: Iterator[TensorBatch], ahead: int) -> Iterator[TensorBatch]:
    """The same items, made by a thread, at most `ahead` before they are asked for. An error comes where the item would have come."""
    ready: queue.Queue[tuple[TensorBatch | None, BaseException | None]] = queue.Queue(ahead)
    stop = threading.Event()

    def put(item: TensorBatch | None, error: BaseException | None = None) -> None:
        while not stop.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stop.is_set():
                    return
            put(None)
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, name="brim-fetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        thread.join()
