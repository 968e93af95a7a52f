import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import (
    DataError,
    LengthError,
    OptionError,
    PackingConfig,
    PackingMode,
    Sample,
    compute_packing_metrics,
    create_segment_attention_mask,
    pack_sequences,
)

samples = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=12), max_size=12).map(
    lambda rows: [Sample(f"s{i}", [token for token, _ in row], [mask for _, mask in row]) for i, row in enumerate(rows)]
)


@given(samples, st.sampled_from(list(PackingMode)), st.booleans())
def test_packed_rows_hold_every_sample_whole_and_apart(samples, mode, pad):
    packed = pack_sequences(samples, PackingConfig(max_length=16, mode=mode, pad_to_max=pad), pad_id=7)
    found = {}
    for row in packed:
        assert row.length == (16 if pad else sum(row.sample_lengths))
        assert len(row.loss_mask) == len(row.segment_ids) == len(row.positions) == row.length
        assert row.cu_seqlens[-1] == sum(row.sample_lengths)
        for number, id in enumerate(row.sample_ids, 1):
            inside = slice(row.cu_seqlens[number - 1], row.cu_seqlens[number])
            assert (row.segment_ids[inside] == number).all()
            assert row.positions[inside].tolist() == list(range(row.sample_lengths[number - 1]))
            found[id] = (row.input_ids[inside].tolist(), row.loss_mask[inside].tolist())
        padding = row.segment_ids == 0
        assert padding.sum() == row.length - sum(row.sample_lengths)
        assert (row.input_ids[padding] == 7).all()
        assert not row.loss_mask[padding].any()
    expected = {
        sample.id: (sample.input_ids.tolist(), [0, *sample.loss_mask.tolist()[1:]][: sample.length])
        for sample in samples
    }
    assert found == expected
    metrics = compute_packing_metrics(packed)
    assert (metrics.num_rows, metrics.num_sequences) == (len(packed), len(samples))


@given(st.lists(st.integers(0, 3), max_size=12).map(sorted), st.booleans())
def test_the_mask_allows_exactly_the_own_segment(segments, causal):
    segments = np.array(segments, np.int32)
    mask = create_segment_attention_mask(segments, causal=causal)
    for query in range(len(segments)):
        for key in range(len(segments)):
            allowed = segments[query] == segments[key] != 0 and (key <= query or not causal)
            assert mask[query, key] == allowed


def test_masks_of_many_rows_and_as_numbers_to_add():
    mask = create_segment_attention_mask(np.array([[1, 1, 2], [1, 0, 0]]), kind="additive")
    assert mask.shape == (2, 3, 3)
    assert mask.dtype == np.float32
    assert (mask == 0).sum() == 3 + 1 + 1
    assert np.isfinite(mask).all()
    with pytest.raises(OptionError, match="kind must be boolean or additive, got 'bolean'"):
        create_segment_attention_mask(np.array([1]), kind="bolean")


def test_what_cannot_be_packed_is_named():
    with pytest.raises(LengthError, match="sample 'b' has 5 tokens and does not fit in a row of 4"):
        pack_sequences([Sample("a", [1], [1]), Sample("b", [1] * 5, [1] * 5)], PackingConfig(max_length=4))
    with pytest.raises(DataError, match="sample 'a' has segments of its own"):
        pack_sequences([Sample("a", [1, 2], [1, 1], segment_ids=[1, 2])])
