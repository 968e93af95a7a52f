"""PyTorch: batches as tensors, and loaders that follow a plan.

A `PlanBatchSampler` gives every microbatch of a plan as a list of row numbers, as any batch sampler does, together with
what a packed or cut microbatch needs; a `TokenDataset` turns such a list into a `TensorBatch`. `loader` combines the
two: without worker processes, which suits a token store, a thread prefetches batches; with workers, a `DataLoader`
does. A loader's state is a position in the plan, see `brim.batch.follow`.

Batches are sharded over ranks here, and must not be sharded again. Accelerate shards the batches of every `DataLoader`
that it prepares: give `accelerator.prepare` the model, the optimizer and, optionally, a `PlanLoader`, which it returns
unchanged. Lightning and Hugging Face's Trainer assume that every epoch is as long as the first: give them a loader or
sampler with `whole_run`, as one epoch.

This module imports torch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.batch.batch import IGNORED, Batch, CarriesSpec
from brim.batch.buffers import Buffers, Memory
from brim.batch.buffers import allocate as aligned
from brim.batch.collate import INT64, LaidOut, arrange
from brim.batch.follow import PREFETCH, Fetched, PlanBatchSampler, PlanFollower, PlannedRows
from brim.batch.token_source import check_belongs
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.token_store import TokenSource
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset
else:
    torch = need("torch", extra="torch", user="brim.batch.torch")
    from torch.utils.data import DataLoader, Dataset

PREFETCH_WORKER = 2
"""Default number of batches that each worker process prefetches, as in a `DataLoader`."""

INTACT = 2
"""With `reuse`, this many of the last batches that were handed out are as they were made."""

TENSORS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")


@dataclass(frozen=True, eq=False)
class TensorBatch(CarriesSpec):
    """A `Batch` as tensors. `inputs()` are the arguments of a Hugging Face model."""

    input_ids: "Tensor"  # [rows, width]
    labels: "Tensor"  # IGNORED where not trained on; the model shifts them
    position_ids: "Tensor"
    segment_ids: "Tensor"  # 0 = padding
    cu_seqlens: "Tensor"  # [segments + 1]
    # Counted before the tensors move to a device, where counting would have to wait for the device.
    longest: int
    num_loss_tokens: int
    num_tokens: int  # without padding

    @classmethod
    def of(cls, batch: Batch) -> "TensorBatch":
        """Make tensors that share the memory of the arrays."""
        return cls(
            input_ids=torch.from_numpy(batch.tokens),
            labels=torch.from_numpy(batch.labels),
            position_ids=torch.from_numpy(batch.positions),
            segment_ids=torch.from_numpy(batch.segment_ids),
            cu_seqlens=torch.from_numpy(batch.cu_seqlens),
            longest=batch.longest,
            num_loss_tokens=batch.num_loss_tokens,
            num_tokens=batch.fill.used,
            spec=batch.spec,
        )

    @classmethod
    def laid_out(cls, made: LaidOut, spec: MicrobatchSpec) -> "TensorBatch":
        """Make tensors that share the memory of what `arrange` returned."""
        return cls._made_of(made, spec, torch.from_numpy)

    @classmethod
    def inside(cls, block: "Tensor", made: LaidOut, spec: MicrobatchSpec) -> "TensorBatch":
        """Make tensors that share the storage of the `block` in which the arrays lie.

        Where memory is pinned, torch knows copies that are under way by the storage they read from, and does not use it
        again before they are done. It would not know tensors that were made of the arrays.

        Raises:
            OptionError: The block does not begin where numbers of 64 bits can.
        """
        storage, begin = block.untyped_storage(), block.data_ptr() - block.storage_offset()
        if block.data_ptr() % 8 or begin % 8:
            raise OptionError("allocate returned memory that does not begin at a multiple of 8 bytes")

        def tensor(array: NDArray[Any]) -> "Tensor":
            offset = (array.ctypes.data - begin) // array.itemsize
            dtype = torch.int64 if array.itemsize == 8 else torch.int32
            strides = [stride // array.itemsize for stride in array.strides]
            return torch.empty(0, dtype=dtype).set_(storage, offset, array.shape, strides)

        return cls._made_of(made, spec, tensor)

    @classmethod
    def _made_of(cls, made: LaidOut, spec: MicrobatchSpec, tensor: "Callable[[NDArray[Any]], Tensor]") -> "TensorBatch":
        """Make a batch whose tensors `tensor` makes of the arrays."""
        arrays = (made.tokens, made.labels, made.positions, made.segment_ids, made.cu_seqlens)
        batch = object.__new__(cls)
        state = {
            **dict(zip(TENSORS, map(tensor, arrays), strict=True)),
            "longest": made.longest,
            "num_loss_tokens": made.num_loss_tokens,
            "num_tokens": made.num_tokens,
            "spec": spec,
        }
        object.__setattr__(batch, "__dict__", state)  # field by field takes three times as long
        return batch

    @property
    def is_flat(self) -> bool:
        """Whether the batch is one row without padding."""
        return self.input_ids.shape[0] == 1 and self.input_ids.shape[1] == max(self.num_tokens, 1)

    @property
    def slots(self) -> int:
        return 0 if self.is_null else self.input_ids.numel()

    def inputs(self) -> dict[str, Any]:
        """Return the arguments for the forward pass of a causal model of transformers, without labels.

        For a flat batch they include the segment boundaries that variable-length kernels expect. A padded batch needs
        no mask: padding is on the right, where causal attention does not look. For packed rows that are not flat, see
        `brim.batch.attention.block_mask`. Without `use_cache=False` transformers does not detect the segments of a row,
        and "sdpa" and "eager" would mix them.

        Raises:
            OptionError: Rows are packed and not flat.
        """
        if not self.is_flat:
            if self.packed:
                raise OptionError("packed rows must be flat (loader(..., flat=True)), or come with a mask of their own")
            return {"input_ids": self.input_ids, "use_cache": False}
        bounds = (
            self.cu_seqlens
            if self.num_tokens
            else torch.tensor([0, 1], dtype=torch.int32, device=self.input_ids.device)
        )
        longest = max(self.longest, 1)
        return {
            "input_ids": self.input_ids,
            "use_cache": False,
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


class TokenDataset(Dataset[Any]):
    """A map-style data set: an index gives one sample, a list of rows from a `PlanBatchSampler` gives a batch.

    Pickles as its source does.
    """

    def __init__(self, source: TokenSource, *, pad_id: int | None = None, flat: bool = False) -> None:
        self.source, self.pad_id, self.flat = source, pad_id, flat

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> "dict[str, Tensor]":
        """Return the tokens and labels of one sample."""
        tokens, learned, _ = self.source.sample(row)
        ids = torch.from_numpy(tokens.astype(np.int64))
        return {"input_ids": ids, "labels": torch.where(torch.from_numpy(learned != 0), ids, IGNORED)}

    def __getitems__(self, rows: Sequence[int]) -> TensorBatch:
        if not isinstance(rows, PlannedRows):
            raise OptionError(
                "a TokenDataset makes batches from the lists of a PlanBatchSampler; pass one as batch_sampler"
            )
        return TensorBatch.laid_out(self.arrange(rows.microbatch), rows.microbatch)

    def arrange(self, microbatch: MicrobatchSpec, memory: Memory | None = None) -> LaidOut:
        """Return the arrays of a microbatch, in `memory` if it is given."""
        return arrange(microbatch, self.source, pad_id=self.pad_id, dtype=INT64, flat=self.flat, memory=memory)


def as_is(batch: Any) -> TensorBatch:
    """Return a batch unchanged: the collate function for a `DataLoader` over a `TokenDataset`, which makes batches."""
    return batch


def as_inputs(batch: TensorBatch) -> dict[str, Any]:
    """Return the arguments of a model, labels included: a collate function for trainers that pass a batch to the model
    unchanged.
    """
    return {**batch.inputs(), "labels": batch.labels}


class PlanLoader(PlanFollower[TensorBatch]):
    """The batches of a plan for one rank; made by `loader`."""

    def __init__(
        self,
        dataset: TokenDataset,
        sampler: PlanBatchSampler,
        *,
        num_workers: int = 0,
        prefetch: int | None = None,
        pin_memory: bool = False,
        reuse: bool = False,
        multiprocessing_context: Any = None,
        allocate: "Callable[[int], Tensor] | None" = None,
    ) -> None:
        """Make a loader; `loader` describes the options.

        `allocate` returns a tensor of so many bytes, in which a batch is made. The default is pinned memory if
        `pin_memory` and there is an accelerator.
        """
        if num_workers < 0:
            raise OptionError(f"num_workers must not be negative, got {num_workers}")
        if multiprocessing_context is not None and not num_workers:
            raise OptionError(
                f"multiprocessing_context {multiprocessing_context!r} is for worker processes; give num_workers too"
            )
        if reuse and num_workers:
            raise OptionError(
                f"reuse is for batches that are made in this process; leave it out, or num_workers={num_workers}"
            )
        if prefetch is None:
            prefetch = PREFETCH_WORKER if num_workers else PREFETCH
        super().__init__(sampler, prefetch=prefetch)
        self.dataset = dataset
        pin = pin_memory and has_accelerator()
        if allocate is None and pin:
            allocate = pinned
        self._allocate, self._reuse = allocate, reuse
        self._workers: DataLoader[TensorBatch] | None = None
        if num_workers:
            self._workers = DataLoader(
                dataset,
                batch_sampler=self._fetching,
                num_workers=num_workers,
                collate_fn=as_is,
                pin_memory=pin,
                prefetch_factor=max(prefetch, 1),
                multiprocessing_context=multiprocessing_context,
                persistent_workers=True,
            )

    def _batches(self) -> Iterator[Fetched[TensorBatch]]:
        if self._workers is None:
            return super()._batches()
        return (self._fetched(batch, batch) for batch in self._workers)

    def steps(self) -> Iterator[list[TensorBatch]]:
        """Iterate over optimizer steps: the same batches, in one list for each step.

        Raises:
            OptionError: A step has more batches than `reuse` leaves intact.
        """
        if self._reuse and self.batches_per_step > INTACT:
            raise OptionError(
                f"a step has {self.batches_per_step} batches, and with reuse only the last {INTACT} are intact; "
                "iterate over the batches, or leave reuse out"
            )
        return super().steps()

    def _maker(self) -> Callable[[MicrobatchSpec], TensorBatch]:
        count = self._prefetch + INTACT
        if self._allocate is None:
            memory = Buffers(count, aligned) if self._reuse else None
            return lambda microbatch: TensorBatch.laid_out(self.dataset.arrange(microbatch, memory), microbatch)
        blocks = Buffers(count, self._allocate) if self._reuse else self._allocate

        def make(microbatch: MicrobatchSpec) -> TensorBatch:
            taken: list[Tensor] = []

            def memory(size: int) -> NDArray[np.uint8]:
                taken.append(blocks(size))
                return taken[0].numpy()

            made = self.dataset.arrange(microbatch, memory)
            return TensorBatch.inside(taken[0], made, microbatch)

        return make


def pinned(size: int) -> "Tensor":
    """Return so many bytes of memory that an accelerator can copy from while the processor does something else."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def has_accelerator() -> bool:
    """Return whether there is a device that pinned memory can be copied to; without one, torch warns about pinning."""
    return torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available()


def loader(
    plan: BatchPlan,
    source: TokenSource,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch: int | None = None,
    pin_memory: bool = False,
    reuse: bool = False,
    flat: bool | None = None,
    pad_id: int | None = None,
    microbatches_per_step: int | None = None,
    whole_run: bool = False,
    multiprocessing_context: Any = None,
) -> PlanLoader:
    """Return a loader of the batches of `plan` for one rank, with tokens from `source` (a `TokenStore`, or `Samples`).

    Rank and world size are the launcher's unless given, or those of the plan if it is a share. With `num_workers=0` a
    thread prefetches `prefetch` batches, by default 8; worker processes help where rows are tokenised on the fly, and
    each prefetches `prefetch` batches, by default 2. `flat` puts the sequences of a microbatch end to end in one row,
    which is the default for packed plans. With `whole_run` one iteration covers all epochs, see `PlanBatchSampler`.

    With `pin_memory`, batches are made in pinned memory if there is an accelerator. With `reuse`, the memory of a batch
    is used again: its tensors change when the batch after the next one is asked for. That saves allocations for loops
    that are done with a batch by then; whoever keeps batches, or copies them to a device with `non_blocking` and does
    not wait for the copies, must leave it off.

    Raises:
        MismatchError: The plan belongs to other data or another tokenizer.

    Example:
        >>> for batch in loader(plan, store):  # doctest: +SKIP
        ...     loss = model(**batch.inputs(), labels=batch.labels).loss
    """
    check_belongs(plan, source)
    sampler = PlanBatchSampler(
        plan, rank=rank, world_size=world_size, microbatches_per_step=microbatches_per_step, whole_run=whole_run
    )
    dataset = TokenDataset(source, pad_id=pad_id, flat=plan.config.packing is not None if flat is None else flat)
    return PlanLoader(
        dataset,
        sampler,
        num_workers=num_workers,
        prefetch=prefetch,
        pin_memory=pin_memory,
        reuse=reuse,
        multiprocessing_context=multiprocessing_context,
    )
