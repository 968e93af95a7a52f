"""JAX: batches of fixed shapes, so that a jitted step is compiled once for each of them.

A plan with fixed shapes has few widths: those of its buckets (`BatchingConfig.predictable`), or that of its packed
rows. Here the number of rows is fixed too: a microbatch that its bucket could not fill gets rows of padding, which hold
no segment and no label. An empty microbatch has the smallest of the shapes.

Pass `batch.arrays` to jitted functions. Where several processes work on one global array, all of them need the same
shape at the same time: use a packed plan.

This module imports jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from brim.batch.batch import CarriesSpec
from brim.batch.collate import arrange
from brim.batch.follow import PREFETCH, PlanBatchSampler, PlanFollower
from brim.batch.token_source import check_belongs
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.token_store import TokenSource
from brim.plan.config import PadPolicy
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="jax", user="brim.batch.jax")
    jnp = jax.numpy

Shape = tuple[int, int]


class Arrays(NamedTuple):
    """The arrays of a batch, all of [rows, width], int32."""

    tokens: "jax.Array"
    labels: "jax.Array"  # IGNORED where not trained on; token t predicts label t + 1
    positions: "jax.Array"
    segment_ids: "jax.Array"  # 0 = padding


@dataclass(frozen=True, eq=False)
class JaxBatch(CarriesSpec):
    """A `Batch` as JAX arrays."""

    arrays: Arrays
    num_loss_tokens: int
    num_tokens: int  # without padding

    @property
    def shape(self) -> Shape:
        return (self.arrays.tokens.shape[0], self.arrays.tokens.shape[1])

    @property
    def slots(self) -> int:
        return 0 if self.is_null else self.arrays.tokens.size


class JaxLoader(PlanFollower[JaxBatch]):
    """The batches of a plan for one rank; made by `loader`."""

    def __init__(
        self, source: TokenSource, sampler: PlanBatchSampler, *, pad_id: int | None = None, prefetch: int = PREFETCH
    ) -> None:
        super().__init__(sampler, prefetch=prefetch)
        self.shapes = shapes(sampler.plan)
        self._source, self._pad_id = source, source.pad_id if pad_id is None else pad_id
        self._rows = {width: rows for rows, width in self.shapes}
        self._smallest = min(self.shapes, key=lambda shape: shape[0] * shape[1])

    def _maker(self) -> Callable[[MicrobatchSpec], JaxBatch]:
        return self._make

    def _make(self, microbatch: MicrobatchSpec) -> JaxBatch:
        width = self._smallest[1] if microbatch.is_null else microbatch.max_len
        rows = self._smallest[0] if microbatch.is_null else self._rows[width]
        made = arrange(microbatch, self._source, pad_id=self._pad_id, shape=(rows, width))
        return JaxBatch(
            arrays=Arrays(
                tokens=jnp.asarray(made.tokens),
                labels=jnp.asarray(made.labels),
                positions=jnp.asarray(made.positions),
                segment_ids=jnp.asarray(made.segment_ids),
            ),
            num_loss_tokens=made.num_loss_tokens,
            num_tokens=made.num_tokens,
            spec=microbatch,
        )


def loader(
    plan: BatchPlan,
    source: TokenSource,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    prefetch: int = PREFETCH,
    pad_id: int | None = None,
    microbatches_per_step: int | None = None,
    whole_run: bool = False,
) -> JaxLoader:
    """Return a loader of the batches of `plan` for one rank, with tokens from `source` (a `TokenStore`, or `Samples`).

    Rank and world size are the launcher's unless given, or those of the plan if it is a share; under JAX's own
    launcher, pass jax.process_index() and jax.process_count(). A thread prefetches `prefetch` batches. With `whole_run`
    one iteration covers all epochs, see `PlanBatchSampler`.

    Raises:
        MismatchError: The plan belongs to other data or another tokenizer.
        OptionError: The shapes of the plan are not fixed.

    Example:
        >>> for batch in loader(plan, store):  # doctest: +SKIP
        ...     state = step(state, batch.arrays)
    """
    check_belongs(plan, source)
    sampler = PlanBatchSampler(
        plan, rank=rank, world_size=world_size, microbatches_per_step=microbatches_per_step, whole_run=whole_run
    )
    return JaxLoader(source, sampler, pad_id=pad_id, prefetch=prefetch)


def shapes(plan: BatchPlan) -> tuple[Shape, ...]:
    """Return every (rows, width) that a batch of this plan can have: one for each bucket, or one for packed rows.

    Raises:
        OptionError: The shapes of the plan are not fixed.
    """
    config = plan.config
    if config.packing is not None:
        if not config.packing.pad_to_max:
            raise OptionError(
                "packed rows of this plan have many widths, so every batch may be compiled anew: pack with pad_to_max"
            )
        widths = (config.packing_width,)
    elif plan.buckets is None or config.pad_policy is not PadPolicy.PAD_TO_BUCKET:
        raise OptionError(
            "batches of this plan are as wide as their longest row, so every batch may be compiled anew: plan with "
            "fixed shapes, by BatchingConfig.predictable(...) or packing"
        )
    else:
        widths = plan.buckets.widths
    most = config.max_sequences or config.token_budget
    return tuple((min(config.token_budget // width, most), width) for width in widths)
