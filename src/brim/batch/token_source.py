"""Does this plan belong to this data? Asked once, before anything is written or trained."""

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import MismatchError
from brim.data.samples import Samples
from brim.data.token_store import TokenSource, TokenStore
from brim.plan.plan import BatchPlan

WAY_OUT = "Rebuild it with `brim lengths build` and `brim plan build`, or pass the data and tokenizer it was built for."


def check_belongs(plan: BatchPlan, source: TokenSource) -> None:
    """
    Raises:
        MismatchError: The plan was built for other data, another tokenizer, or rows of other lengths.
    """
    table = plan.table
    hashes = {
        "other data": (table.dataset_hash, source.dataset_hash),
        "another tokenizer or row format": (table.tokenizer_hash, source.tokenizer_hash),
    }
    for what, (expected, found) in hashes.items():
        if expected and found and expected != found:
            rows = "" if len(table) == len(source) else f" ({len(table):,} samples, now {len(source):,})"
            raise MismatchError(f"this plan was built for {what}: it expects {expected[:6]}.., this is {found[:6]}..{rows}. {WAY_OUT}")
    if len(table) != len(source):
        raise MismatchError(f"this plan was built for other data: it has {len(table)} samples, the data {len(source)}. {WAY_OUT}")
    lengths = _lengths(plan, source)
    if lengths is not None and not np.array_equal(table.lengths, lengths):
        wrong = np.flatnonzero(table.lengths != lengths)
        first = int(wrong[0])
        raise MismatchError(
            f"this plan was built for other lengths: {len(wrong)} samples differ, the first is {table.ids[first]!r} with "
            f"{int(table.lengths[first])} tokens in the plan and {int(lengths[first])} in the data. {WAY_OUT}"
        )


def _lengths(plan: BatchPlan, source: TokenSource) -> NDArray[np.int32] | None:
    """How long the rows of the source are. Of samples that are tokenised on the fly that costs a pass, which equal hashes save."""
    if isinstance(source, TokenStore):
        return source.lengths
    known = plan.table.dataset_hash and plan.table.tokenizer_hash
    return source.measure() if isinstance(source, Samples) and not known else None
