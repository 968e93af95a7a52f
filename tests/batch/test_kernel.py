"""The compiled kernel of collation against its twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import assert_same, cases

from brim import BatchingConfig, BatchPlan, DataError, OptionError, TokenStore
from brim.batch import collate as collation
from brim.batch.batch import IGNORED


def stored_as(store, dtype):
    """The same samples with tokens of another type, in the middle of a larger column as they are in a mapped file."""
    tokens = np.concatenate([[7, 7, 7], store.tokens]).astype(dtype)
    learned = np.concatenate([np.ones(3, np.uint8), store.learned])
    return TokenStore(tokens, learned, store.starts + 3, store.lengths, pad_id=store.pad_id)


@given(
    cases(),
    st.sampled_from([np.uint16, np.uint32, np.int32, np.int64]),
    st.sampled_from([np.int32, np.int64]),
    st.booleans(),
)
def test_the_kernel_agrees_with_its_twin(case, source, dtype, flat):
    store = stored_as(case.store, source)
    for rank in range(2):
        for spec in case.plan.shard(rank, 2).iter_epoch(0):
            fast = collation.collate(spec, store, dtype=dtype, flat=flat)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(collation, "kernel", None)
                slow = collation.collate(spec, store, dtype=dtype, flat=flat)
            assert_same(fast, slow)


def test_the_kernel_is_compiled_here():
    """`make test` has a C compiler; without this the comparison above would compare the twin with itself."""
    assert collation.kernel is not None


def laid_out(**changed):
    """Two rows of up to four tokens: [5 6 7 .] and [8 9 | 5]."""
    arrays = {
        "source": np.array([5, 6, 7, 8, 9], np.uint16),
        "learned": np.ones(5, np.uint8),
        "begin": np.array([0, 3, 0], np.int64),
        "lengths": np.array([3, 2, 1], np.int32),
        "row_ptr": np.array([0, 1, 3], np.int64),
        "kind": "H",
        "rows": 2,
        "width": 4,
        "pad_id": 1,
        "ignored": IGNORED,
        "tokens": np.empty((2, 4), np.int32),
        "segment_ids": np.empty((2, 4), np.int32),
        "positions": np.empty((2, 4), np.int32),
        "loss_mask": np.empty((2, 4), np.uint8),
        "labels": np.empty((2, 4), np.int32),
        "cu_seqlens": np.empty(4, np.int32),
    } | changed
    return arrays | {"counts": collation.kernel.lay_out(*arrays.values())}


def test_the_kernel_fills_every_slot():
    arrays = laid_out()
    assert arrays["tokens"].tolist() == [[5, 6, 7, 1], [8, 9, 5, 1]]
    assert arrays["segment_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 2, 0]]
    assert arrays["positions"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert arrays["loss_mask"].tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    assert arrays["labels"].tolist() == [[-100, 6, 7, -100], [-100, 9, -100, -100]]
    assert arrays["cu_seqlens"].tolist() == [0, 3, 5, 6]
    assert arrays["counts"] == (6, 3, 3)  # tokens, the longest, trained on


FOURTH = {"begin": np.array([0, 3, 0, 0], np.int64), "cu_seqlens": np.zeros(5, np.int32)}


@pytest.mark.parametrize(
    "changed",
    [
        {"begin": np.array([0, 4, 0], np.int64)},  # reads behind the tokens
        {"begin": np.array([0, -1, 0], np.int64)},
        {"begin": np.array([0, 2**63 - 1, 0], np.int64)},
        {"begin": np.array([0, 3], np.int64)},
        {"learned": np.ones(4, np.uint8)},
        {"lengths": np.array([5, 2, 1], np.int32)},  # wider than its row
        {"lengths": np.array([3, 4, 1], np.int32)},
        {"lengths": np.array([-1, 2, 1], np.int32)},
        {"row_ptr": np.array([0, 1, 4], np.int64)},  # a sequence that is not there
        {"row_ptr": np.array([1, 0, 3], np.int64)},
        {"row_ptr": np.array([0, 1, 2, 3], np.int64)},  # more rows than there are
        {"row_ptr": np.array([], np.int64)},
        {"rows": 3},
        {"rows": -2, "width": -4},
        {"rows": 2**62, "width": 4},
        {"width": 3},
        {"width": 0},
        {"width": -4},
        {"kind": "d"},
        {"tokens": np.zeros((2, 4), np.int64)},  # one is wide, the others are not
        {"labels": np.zeros((2, 3), np.int32)},
        {"segment_ids": np.zeros((2, 4), np.int16)},
        {"loss_mask": np.zeros((1, 4), np.uint8)},
        {"cu_seqlens": np.zeros(3, np.int32)},
        {"lengths": np.array([3, 2, 1, -1], np.int32), **FOURTH},  # in no row, but in the sum
        {"lengths": np.array([3, 2, 1, 2**31 - 1], np.int32), **FOURTH},
    ],
    ids=str,
)
def test_the_kernel_touches_nothing_outside_of_its_arrays(changed):
    with pytest.raises(ValueError, match="do not fit"):
        laid_out(**changed)


def test_masks_and_pad_ids_of_other_types_are_refused_by_kernel_and_twin():
    store = TokenStore(np.arange(5, dtype=np.uint16), np.ones(5, np.uint8), np.array([0]), np.array([5], np.int32))
    plan = BatchPlan.build({"a": 5}, BatchingConfig(token_budget=8))

    class Wide:
        """A source of its own whose mask is of int32."""

        pad_id = 0

        def spans(self, rows, starts, lengths):
            return store.spans(rows, starts, lengths)._replace(learned=np.ones(5, np.int32))

    (spec,) = plan.get_epoch(0)
    for kernel in (collation.kernel, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collation, "kernel", kernel)
            with pytest.raises(DataError, match="the loss mask is of int32; a token source has a mask of uint8"):
                collation.collate(spec, Wide())
            for pad_id in (2**31, -(2**31) - 1, 2**40):
                with pytest.raises(OptionError, match=f"pad_id must be an integer of 32 bits, got {pad_id}"):
                    collation.collate(spec, store, pad_id=pad_id)
