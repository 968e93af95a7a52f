"""`TokenBudgetBatchSampler`: batches under a token budget, from a dict of lengths. A thin wrapper of the planner."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from brim.data.ids import SampleId
from brim.plan.buckets import BucketSpec, BucketStats
from brim.plan.config import BatchingConfig, Overflow, PadPolicy
from brim.plan.epoch import EpochPlan
from brim.plan.metrics import BatchMetrics
from brim.plan.plan import BatchPlan, Lengths


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One batch: the ids of its samples, its bucket and width, and its number of tokens without padding."""

    sample_ids: tuple[SampleId, ...]
    bucket_id: int
    max_length: int
    token_count: int

    @property
    def batch_size(self) -> int:
        return len(self.sample_ids)

    @property
    def padded_token_count(self) -> int:
        return self.batch_size * self.max_length


@dataclass(frozen=True)
class Batches(Sequence[BatchSpec]):
    """The batches of one epoch, for `for` and `async for`."""

    epoch_plan: EpochPlan

    def __len__(self) -> int:
        return len(self.epoch_plan)

    @overload
    def __getitem__(self, index: int) -> BatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchSpec]: ...
    def __getitem__(self, index: int | slice) -> BatchSpec | list[BatchSpec]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        microbatch = self.epoch_plan[index]
        return BatchSpec(microbatch.samples, microbatch.bucket_id, microbatch.max_len, microbatch.token_count)

    def __iter__(self) -> Iterator[BatchSpec]:
        return (self[i] for i in range(len(self)))

    async def __aiter__(self) -> AsyncIterator[BatchSpec]:
        for batch in self:
            yield batch


class TokenBudgetBatchSampler:
    """Forms batches of samples of one bucket, padded to the bucket's width, that hold at most `token_budget` tokens.

    Every sample is in exactly one batch per epoch, unless `drop_last` or `overflow` says otherwise. Batches of all
    buckets come in a random order, which differs between epochs and is the same for the same seed.
    """

    def __init__(
        self,
        lengths: Lengths,
        bucket_spec: BucketSpec,
        token_budget: int,
        seed: int = 42,
        *,
        drop_last: bool = False,
        overflow: Overflow = "error",
        pad_policy: PadPolicy = PadPolicy.PAD_TO_BUCKET,
    ) -> None:
        config = BatchingConfig(
            token_budget=token_budget,
            bucket_edges=bucket_spec.edges,
            overflow_max=bucket_spec.overflow_max,
            pad_policy=pad_policy,
            drop_last=drop_last,
            overflow=overflow,
            seed=seed,
        )
        self.bucket_spec, self.plan = bucket_spec, BatchPlan.build(lengths, config, num_epochs=2**31)

    def iter_epoch(self, epoch: int = 0) -> Batches:
        """Return the batches of an epoch. Epochs can be requested in any order."""
        return Batches(self.plan.get_epoch(epoch))

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, before `drop_last`."""
        return self.plan.counts.samples - self.plan.counts.skipped

    @property
    def num_skipped(self) -> int:
        return self.plan.counts.skipped

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """Plan an epoch and compute the metrics of its batches."""
        return BatchMetrics.of(
            self.iter_epoch(epoch),
            bucket_stats=BucketStats.of(self.bucket_spec, self.plan.units.length),
            num_skipped=self.num_skipped,
            num_dropped=len(self.plan.dropped(epoch)),
        )
