"""`BucketSampler`: batches of nested samples of one structure. A thin face of the planner."""

from collections.abc import Mapping
from typing import Any

from brim.batch.follow import PlanBatchSampler
from brim.core.errors import OptionError
from brim.core.options import LONGEST
from brim.data.nested.lengths import charge_axes, measure_structures
from brim.plan.config import BatchingConfig, Overflow
from brim.plan.plan import BatchPlan

ENDLESS = 2**31
"""More epochs than anyone trains; they are planned when they are reached."""


class BucketSampler(PlanBatchSampler):
    """Gives lists of row numbers, all of one structure, alike in length; every sample once an epoch, over all ranks.

    Iterating gives one epoch, the next iteration the next one. Hand it to a `DataLoader` as `batch_sampler`, with any number of workers:
    samplers run in the process of the loader, so batches and their order do not depend on how many there are.

    Example:
        >>> import numpy as np
        >>> data = [{"stages": [np.zeros(3)] * depth} for depth in (0, 1, 1, 2)]
        >>> sorted(BucketSampler(data, batch_size=2))
        [[0], [1, 2], [3]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = True,
        *,
        token_budget: int | None = None,
        axis_costs: Mapping[str, int] | None = None,
        pad_to_multiple: int = 1,
        drop_last: bool = False,
        overflow: Overflow = "error",
        window: int | None = None,
        microbatches_per_step: int | None = None,
        seed: int = 42,
        rank: int | None = None,
        world_size: int | None = None,
        num_epochs: int = ENDLESS,
    ) -> None:
        """At most `batch_size` samples in a batch, or at most `token_budget` steps along all ragged axes, padding included, or both.

        Where a step along one axis costs more than along another, `axis_costs` says how many it counts for: {"context": 3}. Axes are named
        by their paths (`plan.table.source["structures"]`, or `brim plan info --json`), and a path stands for everything below it.

        The data set is gone through once to measure it, unless it has a `table` (`measure_structures`). Rank and world
        size are the launcher's unless given. Without `shuffle`, batches hold neighbours of one structure in the order of the data. Tell the
        collate function of `pad_to_multiple` too.

        Raises:
            OptionError: Neither `batch_size` nor `token_budget` is given.
            DataError: A sample cannot be batched.
        """
        if batch_size is None and token_budget is None:
            raise OptionError("give batch_size, the samples of a batch, or token_budget, the steps of all of them with padding, or both")
        config = BatchingConfig(
            token_budget=LONGEST if token_budget is None else token_budget,
            max_sequences=batch_size,
            pad_to_multiple=1 if axis_costs else pad_to_multiple,  # the charge is rounded already
            drop_last=drop_last,
            overflow=overflow,
            window=window,
            microbatches_per_step=microbatches_per_step,
            shuffle=shuffle,
            seed=seed,
        )
        table = measure_structures(dataset)
        if token_budget is not None and not table.lengths.any():  # a list of samples may leave their arrays out
            table = measure_structures(dataset, read=True)
            if not table.lengths.any():
                raise OptionError(f"the samples have no arrays that a token_budget of {token_budget} could bound; give batch_size")
        if axis_costs:
            table = charge_axes(table, axis_costs, pad_to_multiple=pad_to_multiple)
        plan = BatchPlan.build(table, config, num_epochs=num_epochs)
        super().__init__(plan, rank=rank, world_size=world_size)
