"""`BucketSampler`: batches of nested samples that all have the same structure.

The sampler only translates its options and measures the data set: the batches are those of a `BatchPlan`.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from brim.batch.follow import PlanBatchSampler
from brim.core.errors import OptionError
from brim.core.options import LONGEST
from brim.data.nested.lengths import charge_axes, measure_structures
from brim.plan.config import BatchingConfig, Overflow
from brim.plan.plan import BatchPlan

ENDLESS = 2**31
"""Default number of epochs: in practice, no limit. An epoch is planned when it is reached."""

NUMBERED = re.compile(r"([^=,]+)=(\d+)")
"""Pattern of the name of a structure that one number identifies, such as compression_depth=2."""


class BucketSampler(PlanBatchSampler):
    """A batch sampler: lists of row numbers of samples that have one structure and similar lengths.

    Every sample comes once per epoch, over all ranks, unless `drop_last` or `overflow` leaves it out. Each iteration is
    one epoch, and the next iteration is the next epoch. Pass it to a `DataLoader` as `batch_sampler`, with any number
    of workers: samplers run in the process of the loader, so batches and their order do not depend on the number of
    workers.

    Example:
        >>> import numpy as np
        >>> data = [{"stages": [np.zeros(3)] * depth} for depth in (0, 1, 1, 2)]
        >>> sampler = BucketSampler(data, batch_size=2)
        >>> sampler.buckets
        {0: [0], 1: [1, 2], 2: [3]}
        >>> sorted(list(rows) for rows in sampler)
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
        """Measure the data set and plan batches of at most `batch_size` samples, or of at most `token_budget` steps, or
        both.

        A `token_budget` counts the steps along all ragged axes, padding included. Where a step along one axis costs
        more than along another, `axis_costs` says how many steps it counts for: {"context": 3}. Axes are named by their
        paths (`plan.table.source["structures"]`, or `brim plan info --json`), and a path includes everything below it.

        The data set is read once to measure it, unless it has a `table` (`measure_structures`). Rank and world size are
        those of the launcher unless given. Without `shuffle`, a batch holds neighbouring samples of one structure, in
        the order of the data. Pass `pad_to_multiple` to the collate function too.

        Raises:
            OptionError: Neither `batch_size` nor `token_budget` is given.
            DataError: A sample cannot be batched.
        """
        if batch_size is None and token_budget is None:
            raise OptionError(
                "give batch_size, the samples of a batch, or token_budget, the steps of all of them with padding, "
                "or both"
            )
        config = BatchingConfig(
            token_budget=LONGEST if token_budget is None else token_budget,
            max_sequences=batch_size,
            pad_to_multiple=1 if axis_costs else pad_to_multiple,  # charge_axes rounds the lengths
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
                raise OptionError(
                    f"the samples have no arrays that a token_budget of {token_budget} could bound; give batch_size"
                )
        if axis_costs:
            table = charge_axes(table, axis_costs, pad_to_multiple=pad_to_multiple)
        plan = BatchPlan.build(table, config, num_epochs=num_epochs)
        super().__init__(plan, rank=rank, world_size=world_size)

    @cached_property
    def buckets(self) -> dict[int | str, list[int]]:
        """The row numbers of all samples, by structure, in the order of the data.

        The key is the number that tells the structures apart, such as the compression depth. Structures that no single
        number tells apart have their names as keys (`plan.table.group_names`).
        """
        table = self.plan.table
        assert table.groups is not None  # every table of nested samples has them
        by_group = [np.flatnonzero(table.groups == group).tolist() for group in range(len(table.group_names))]
        return dict(zip(_keys(table.group_names), by_group, strict=True))


def _keys(names: tuple[str, ...]) -> list[int] | list[str]:
    """Return the numbers in the names of structures if the names differ in nothing else, and the names otherwise."""
    found = [match for name in names if (match := NUMBERED.fullmatch(name))]
    if len(found) < len(names) or len({match[1] for match in found}) > 1:
        return list(names)
    return [int(match[2]) for match in found]
