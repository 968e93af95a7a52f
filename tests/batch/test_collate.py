"""From a planned microbatch to arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import ARRAYS, assert_same, cases, naive

from brim import (
    BatchingConfig,
    BatchPlan,
    CollatedBatch,
    DataError,
    LengthCache,
    LengthError,
    MicrobatchSpec,
    MismatchError,
    OptionError,
    Sample,
    TokenStore,
    collate,
)
from brim.batch import default_collate, pad_sequences
from brim.batch.batch import IGNORED
from brim.batch.token_source import check_belongs
from brim.data.lengths import LengthEntry
from brim.data.rows.open import open_source
from brim.data.samples import Samples
from brim.data.synthetic import write_sample_data
from brim.data.tokenizer.base import load_tokenizer


def microbatches(plan, ranks=1):
    return [
        spec
        for rank in range(ranks)
        for epoch in range(plan.num_epochs)
        for spec in plan.shard(rank, ranks).iter_epoch(epoch)
    ]


@given(cases(), st.sampled_from([np.int32, np.int64]), st.booleans(), st.integers(1, 3))
def test_a_batch_is_what_a_loop_over_its_tokens_makes(case, dtype, flat, ranks):
    store = case.store
    for spec in microbatches(case.plan, ranks):
        batch = collate(spec, store, dtype=dtype, flat=flat)
        for name, expected in naive(spec, case.samples, case.pad_id, flat=flat).items():
            assert np.array_equal(getattr(batch, name), expected), name
        assert batch.tokens.dtype == batch.labels.dtype == batch.positions.dtype == dtype
        assert (batch.segment_ids.dtype, batch.loss_mask.dtype, batch.cu_seqlens.dtype) == (
            np.int32,
            np.uint8,
            np.int32,
        )
        assert batch.spec is spec
        assert (batch.ids, batch.epoch, batch.index, batch.bucket_id) == (
            spec.samples,
            spec.epoch,
            spec.index,
            spec.bucket_id,
        )
        assert (batch.after, batch.ends_step, batch.packed) == (spec.after, spec.ends_step, spec.packed)
        assert (batch.input_ids is batch.tokens, batch.sample_ids, batch.is_null) == (True, batch.ids, spec.is_null)


@given(cases(), st.booleans())
def test_no_label_crosses_a_segment(case, flat):
    """A model learns label t + 1 at token t: both are in the same segment, and padding is in none."""
    for spec in microbatches(case.plan):
        batch = collate(spec, case.store, flat=flat)
        learned = batch.labels != IGNORED
        assert not learned[:, :1].any()
        before, here = batch.segment_ids[:, :-1], batch.segment_ids[:, 1:]
        assert ((before == here) & (here != 0))[learned[:, 1:]].all()
        assert np.array_equal(batch.labels[learned], batch.tokens[learned])
        assert batch.num_loss_tokens == learned.sum()


@given(cases())
def test_every_token_comes_back_from_the_batches_of_an_epoch(case):
    cut = dict.fromkeys(case.plan.truncated(), case.plan.config.limit)
    for epoch in range(case.plan.num_epochs):
        pieces = {sample.id: {} for sample in case.samples}
        for spec in case.plan.iter_epoch(epoch):
            batch = collate(spec, case.store)
            tokens = batch.tokens[batch.segment_ids != 0]
            for id, start, first, last in zip(
                batch.ids, spec.starts, batch.cu_seqlens, batch.cu_seqlens[1:], strict=False
            ):
                pieces[id][int(start)] = tokens[first:last].tolist()
        for sample in case.samples:
            whole = [token for start in sorted(pieces[sample.id]) for token in pieces[sample.id][start]]
            assert whole == sample.input_ids.tolist()[: cut.get(sample.id)]


@given(cases(shortest=1), st.integers(1, 3))
def test_made_flat_is_collated_flat(case, ranks):
    for spec in microbatches(case.plan, ranks):
        assert_same(collate(spec, case.store).flat(), collate(spec, case.store, flat=True))
        assert_same(collate(spec, case.store, flat=True).flat(), collate(spec, case.store, flat=True))


@given(cases(shortest=1))
def test_the_fill_of_a_batch_is_that_of_its_plan(case):
    for spec in microbatches(case.plan, ranks=2):
        batch = collate(spec, case.store)
        assert (batch.fill.used, batch.fill.slots) == (spec.fill.used, spec.fill.slots)
        assert batch.longest == max(spec.lengths, default=0)
        assert batch.shape == ((1, 1) if spec.is_null else spec.shape) == (batch.batch_size, batch.max_len)


def test_an_empty_microbatch_is_one_token_of_padding():
    samples = [Sample(i, [7] * n, [1] * n) for i, n in enumerate([3, 2, 2])]
    plan = BatchPlan.build({s.id: s.length for s in samples}, BatchingConfig(token_budget=3))
    null = next(spec for rank in range(2) for spec in plan.shard(rank, 2).iter_epoch(0) if spec.is_null)
    for flat in (False, True):
        batch = collate(null, TokenStore.from_samples(samples, pad_id=9), flat=flat)
        assert batch.is_null
        assert [getattr(batch, name).tolist() for name in ARRAYS] == [[[9]], [[0]], [[0]], [[0]], [[IGNORED]], [0]]
        assert (batch.ids, batch.fill.slots, batch.longest) == ((), 0, 0)
        assert_same(batch.flat(), batch)


def test_a_pad_id_that_is_a_real_token_is_learned_where_it_is_real():
    """pad = eos: what counts follows from lengths, never from values."""
    samples = [Sample("a", [5, 0, 0], [0, 1, 1]), Sample("b", [0], [1])]
    plan = BatchPlan.build({"a": 3, "b": 1}, BatchingConfig(token_budget=6))
    batch = collate(plan.get_epoch(0)[0], TokenStore.from_samples(samples, pad_id=0))
    assert dict(zip(batch.ids, batch.labels.tolist(), strict=True)) == {"a": [IGNORED, 0, 0], "b": [IGNORED] * 3}
    assert batch.fill.used == 4


def test_tokens_made_on_the_fly_are_those_of_the_store(tmp_path):
    write_sample_data(tmp_path / "train.jsonl", 40)
    samples = Samples(open_source(tmp_path / "train.jsonl"), load_tokenizer("byte"))
    store = TokenStore.from_samples(samples, pad_id=256)
    table = LengthCache.from_lengths(LengthEntry(sample.id, sample.length) for sample in samples)
    plan = BatchPlan.build(table, BatchingConfig(token_budget=2000, overflow="split", overflow_max=300), num_epochs=2)
    for spec in microbatches(plan, ranks=3):
        assert_same(collate(spec, samples), collate(spec, store))


def test_only_two_types_of_numbers_and_the_own_data_are_taken():
    samples = [Sample("a", [1, 2, 3], [1, 1, 1]), Sample("b", [4], [1])]
    plan = BatchPlan.build({"a": 3, "b": 1}, BatchingConfig(token_budget=6))
    spec = plan.get_epoch(0)[0]
    with pytest.raises(OptionError, match="dtype must be int32 or int64, got int16"):
        collate(spec, TokenStore.from_samples(samples), dtype=np.int16)
    with pytest.raises(MismatchError, match="asks for up to 3 tokens of rows that are shorter"):
        collate(spec, TokenStore.from_samples([Sample("a", [1], [1]), samples[1]]))
    with pytest.raises(MismatchError, match="asks for row 1, the data has 1 rows"):
        collate(spec, TokenStore.from_samples(samples[:1]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset_hash": "other" * 2}, "built for other data: it expects data-1.., this is othero.."),
        ({"tokenizer_hash": "other"}, "built for another tokenizer or row format: it expects byte.., this is other.."),
        (
            {"lengths": [3, 2]},
            "built for other lengths: 1 samples differ, the first is 'b' with 1 tokens in the plan and 2 in the data",
        ),
        ({"lengths": [3]}, "built for other data: it has 2 samples, the data 1"),
    ],
)
def test_a_plan_of_something_else_is_refused(change, words):
    change = {"dataset_hash": "data-1", "tokenizer_hash": "byte", "lengths": [3, 1]} | change
    entries = [LengthEntry("a", 3), LengthEntry("b", 1)]
    plan = BatchPlan.build(LengthCache.from_lengths(entries, dataset_hash="data-1", tokenizer_hash="byte"))
    lengths = change.pop("lengths")
    store = TokenStore.from_samples([Sample(i, [1] * n, [1] * n) for i, n in enumerate(lengths)], **change)
    with pytest.raises(MismatchError) as caught:
        check_belongs(plan, store)
    assert words in str(caught.value)
    assert "Rebuild it" in str(caught.value)


def test_unknown_hashes_are_no_reason_to_refuse():
    plan = BatchPlan.build({"a": 1})
    check_belongs(plan, TokenStore.from_samples([Sample("a", [1], [1])], dataset_hash="data", tokenizer_hash="byte"))


rows = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=9), min_size=1, max_size=9)


@given(rows, st.integers(0, 5), st.integers(0, 3), st.sampled_from([np.int32, np.int64]))
def test_default_collate_puts_a_sample_in_each_row(rows, more, pad_id, dtype):
    samples = [Sample(f"s{i}", [token for token, _ in row], [mask for _, mask in row]) for i, row in enumerate(rows)]
    longest = max(map(len, rows))
    batch = default_collate(samples, longest + more, pad_id, dtype=dtype)
    assert isinstance(batch, CollatedBatch)
    assert batch.tokens.dtype == dtype
    assert batch.tokens.tolist() == [s.input_ids.tolist() + [pad_id] * (longest + more - s.length) for s in samples]
    assert batch.segment_ids.tolist() == [[1] * s.length + [0] * (longest + more - s.length) for s in samples]
    assert batch.loss_mask[:, 1:].tolist() == [
        (s.loss_mask.tolist() + [0] * (longest + more + 1 - s.length))[1 : longest + more] for s in samples
    ]
    assert batch.cu_seqlens.tolist() == np.cumsum([0, *(s.length for s in samples)]).tolist()
    assert batch.ids == tuple(s.id for s in samples)
    assert default_collate(samples, pad_id=pad_id).max_len == longest


def test_default_collate_cuts_nothing_off():
    samples = [Sample("a", [1], [1]), Sample("b", [1, 2, 3], [1, 1, 1])]
    with pytest.raises(LengthError, match="sample 'b' has 3 tokens and does not fit in 2; raise max_len"):
        default_collate(samples, 2)
    with pytest.raises(DataError, match="there are no samples"):
        default_collate([])


@given(st.lists(st.lists(st.integers(-9, 9), max_size=7), max_size=7), st.integers(-1, 1), st.integers(0, 3))
def test_pad_sequences_is_a_loop_over_rows(sequences, pad, more):
    longest = max(map(len, sequences), default=0)
    padded = pad_sequences(sequences, pad, longest + more, np.int64)
    assert padded.dtype == np.int64
    assert padded.shape == (len(sequences), longest + more)
    assert padded.tolist() == [row + [pad] * (longest + more - len(row)) for row in sequences]
    assert pad_sequences([np.array(row, np.int16) for row in sequences], pad).tolist() == [
        row + [pad] * (longest - len(row)) for row in sequences
    ]


def test_a_batch_without_a_plan_has_a_spec_that_makes_it_again():
    samples = [Sample("b", [1, 2, 3], [1, 1, 0]), Sample("a", [4], [1])]
    batch = default_collate(samples, max_len=5, pad_id=9)
    spec = batch.spec
    assert (spec.samples, spec.shape, spec.fill, spec.packs) == (("b", "a"), (2, 5), batch.fill, None)
    assert (batch.epoch, batch.index, batch.after, batch.ends_step, batch.packed) == (0, 0, None, True, False)
    assert_same(collate(spec, TokenStore.from_samples(samples), pad_id=9), batch)
    in_one_row = MicrobatchSpec.unplanned(spec.samples, spec.lengths, 4, packed=True)
    assert in_one_row.packs == (("b", "a"),)
    assert collate(in_one_row, TokenStore.from_samples(samples)).segment_ids.tolist() == [[1, 1, 1, 2]]


def test_pad_sequences_cuts_nothing_off():
    with pytest.raises(LengthError, match="a sequence of 3 does not fit in 2"):
        pad_sequences([[1], [1, 2, 3]], max_length=2)


def test_a_changed_batch_is_another_batch():
    batch = default_collate([Sample("a", [1, 2], [1, 1])])
    other = replace(batch, tokens=batch.tokens + 1)
    assert batch.tokens.tolist() == [[1, 2]]
    assert other.tokens.tolist() == [[2, 3]]
    assert other.ids is batch.ids


def test_a_plan_made_by_hand_is_compared_with_samples_that_are_tokenised_on_the_fly(tmp_path):
    """A row that has grown would be cut in silence: its plan has no hash to tell."""
    (tmp_path / "rows.jsonl").write_text('{"text": "four"}\n{"text": "seven tokens"}\n')
    samples = Samples(open_source(tmp_path / "rows.jsonl"), load_tokenizer("byte"))
    check_belongs(BatchPlan.build({0: 5, 1: 13}), samples)
    with pytest.raises(
        MismatchError, match="1 samples differ, the first is 1 with 5 tokens in the plan and 13 in the data"
    ):
        check_belongs(BatchPlan.build({0: 5, 1: 5}), samples)
