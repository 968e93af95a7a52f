"""Samples that are at hand, by id or in a list, as a source of tokens for a plan."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from brim.core.errors import DataError, MismatchError
from brim.data.ids import SampleId
from brim.data.sample import Sample
from brim.data.token_store import TokenSource, TokenStore
from brim.plan.plan import BatchPlan

SamplesAtHand = (
    Mapping[SampleId, Sample | Mapping[str, ArrayLike]] | Mapping[str, Mapping[str, ArrayLike]] | Mapping[str, Sample] | Sequence[Sample]
)


def token_source(plan: BatchPlan, source: TokenSource | SamplesAtHand) -> TokenSource:
    """A source as it is; samples in the order of the plan's table.

    In a mapping a sample is a `Sample`, or a mapping with `input_ids` and `loss_mask`; without a mask, all of it is learned.

    Raises:
        MismatchError: A sample of the plan is not there, or one is there that the plan does not know.
        DataError: A sample is not what it should be, or comes twice.
    """
    by_id: dict[SampleId, Sample]
    if isinstance(source, Mapping):
        by_id = {id: _sample(id, value) for id, value in source.items()}
    elif isinstance(source, Sequence):
        by_id = {sample.id: sample for sample in source}
        if len(by_id) != len(source):
            twice = next(sample.id for number, sample in enumerate(source) if any(sample.id == other.id for other in source[:number]))
            raise DataError(f"sample {twice!r} comes twice; ids must be unique")
    else:
        return source
    ids = plan.table.ids
    if "id_text" in ids.columns:  # where integers and strings are mixed, a table holds strings
        by_id = {str(id): sample for id, sample in by_id.items()}
    missing = next((id for id in ids if id not in by_id), None)
    if missing is not None:
        raise MismatchError(f"this plan was built for other data: sample {missing!r} is not among the {len(by_id)} that were given")
    if len(by_id) > len(ids):
        known = set(ids)
        extra = next(id for id in by_id if id not in known)
        raise MismatchError(f"this plan was built for other data: it does not know sample {extra!r} and has {len(ids)} of the {len(by_id)}")
    return TokenStore.from_samples(by_id[id] for id in ids)


def _sample(id: SampleId, value: Sample | Mapping[str, ArrayLike]) -> Sample:
    if isinstance(value, Sample):
        return value
    fields = cast(Mapping[str, Any], value)
    if "input_ids" not in fields:
        raise DataError(f"sample {id!r} has no input_ids (keys: {', '.join(fields) or 'none'})")
    tokens = fields["input_ids"]
    mask = fields.get("loss_mask")
    return Sample(id, tokens, np.ones(len(tokens), np.uint8) if mask is None else mask)
