"""Get the tokens of a plan from the user's data, and check that the data belongs to the plan.

A plan names rows of a length table; their tokens come from a `TokenStore`, from `Samples` that tokenise on the fly, or
from samples in memory, by id or in a list. This module checks that these are the rows that the plan was built for,
once, before anything is written or trained.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError, MismatchError
from brim.data.ids import SampleId, comes_twice
from brim.data.sample import Sample
from brim.data.samples import Samples
from brim.data.token_store import TokenSource, TokenStore
from brim.plan.plan import BatchPlan

SamplesAtHand = (
    Mapping[SampleId, Sample | Mapping[str, ArrayLike]]
    | Mapping[str, Mapping[str, ArrayLike]]
    | Mapping[str, Sample]
    | Sequence[Sample]
)

WAY_OUT = "Rebuild it with `brim lengths build` and `brim plan build`, or pass the data and tokenizer it was built for."


def token_source(plan: BatchPlan, source: TokenSource | SamplesAtHand) -> TokenSource:
    """Return a token source unchanged, and samples in memory as a `TokenStore` in the order of the plan's table.

    In a mapping a sample is a `Sample`, or a mapping with `input_ids` and `loss_mask`; without a mask, all tokens are
    trained on.

    Raises:
        MismatchError: A sample of the plan is missing, or a sample is not in the plan.
        DataError: A sample is invalid, or an id occurs twice.
    """
    by_id: dict[SampleId, Sample]
    if isinstance(source, Mapping):
        by_id = {id: _sample(id, value) for id, value in source.items()}
    elif isinstance(source, Sequence):
        by_id = {sample.id: sample for sample in source}
        if len(by_id) != len(source):
            twice = next(
                sample.id
                for number, sample in enumerate(source)
                if any(sample.id == other.id for other in source[:number])
            )
            raise comes_twice(twice)
    else:
        return source
    ids = plan.table.ids
    if ids.text is not None:  # where integers and strings are mixed, a table holds strings
        by_id = {str(id): sample for id, sample in by_id.items()}
    missing = next((id for id in ids if id not in by_id), None)
    if missing is not None:
        raise MismatchError(
            f"this plan was built for other data: sample {missing!r} is not among the {len(by_id)} that were given"
        )
    if len(by_id) > len(ids):
        known = set(ids)
        extra = next(id for id in by_id if id not in known)
        raise MismatchError(
            f"this plan was built for other data: it does not know sample {extra!r} and has {len(ids)} of the "
            f"{len(by_id)}"
        )
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


def check_belongs(plan: BatchPlan, source: TokenSource) -> None:
    """Check that a plan was built for the data and tokenizer of a token source.

    Hashes are compared where both have them, then the number of samples, and then the length of each, unless that would
    take a pass over the data that hashes make unnecessary.

    Raises:
        MismatchError: The plan was built for other data, another tokenizer, or rows of other lengths.
    """
    table = plan.table
    if table.dataset_hash and source.dataset_hash and table.dataset_hash != source.dataset_hash:
        rows = "" if len(table) == len(source) else f" ({len(table):,} samples, now {len(source):,})"
        raise _other("data", table.dataset_hash, source.dataset_hash, rows)
    check_identity(plan, source.tokenizer_hash)
    if len(table) != len(source):
        raise MismatchError(
            f"this plan was built for other data: it has {len(table)} samples, the data {len(source)}. {WAY_OUT}"
        )
    if isinstance(source, TokenStore) and table.length.equals(source.length):
        return
    lengths = _lengths(plan, source)
    if lengths is not None and not np.array_equal(table.lengths, lengths):
        wrong = np.flatnonzero(table.lengths != lengths)
        first = int(wrong[0])
        raise MismatchError(
            f"this plan was built for other lengths: {len(wrong)} samples differ, the first is {table.ids[first]!r} "
            f"with {int(table.lengths[first])} tokens in the plan and {int(lengths[first])} in the data. {WAY_OUT}"
        )


def check_identity(plan: BatchPlan, tokenizer_hash: str) -> None:
    """Check that a plan was built for this tokenizer and row format. One hash covers both, so no data is read.

    Raises:
        MismatchError: The tokenizer or the row format differs.
    """
    expected = plan.table.tokenizer_hash
    if expected and tokenizer_hash and expected != tokenizer_hash:
        raise _other("tokenizer or row format", expected, tokenizer_hash)


def _other(what: str, expected: str, found: str, rows: str = "") -> MismatchError:
    other = "other" if what == "data" else "another"
    return MismatchError(
        f"this plan was built for {other} {what}: it expects {expected[:6]}.., this is {found[:6]}..{rows}. {WAY_OUT}"
    )


def _lengths(plan: BatchPlan, source: TokenSource) -> NDArray[np.int32] | None:
    """Return the lengths of the source's rows, or None if they need not be compared.

    For samples that are tokenised on the fly, this takes a pass over the data, which is skipped if the plan has hashes
    of its data and tokenizer.
    """
    if isinstance(source, TokenStore):
        return source.lengths
    known = plan.table.dataset_hash and plan.table.tokenizer_hash
    return source.measure() if isinstance(source, Samples) and not known else None
