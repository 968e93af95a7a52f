"""The memory of batches: given, aligned, used again in turn, and never before it is said to be."""

import itertools
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import ARRAYS, assert_same, cases
from support.runs import CUT, PACKED, PADDED, make_plan, make_store

from brim import OptionError
from brim.batch import collate as collation
from brim.batch.buffers import ALIGNMENT, Buffers, allocate
from brim.batch.collate import arrange, collate
from brim.batch.torch import TENSORS, PlanBatchSampler, PlanLoader, TokenDataset, loader

STORE = make_store()


@given(cases(), st.sampled_from([np.int32, np.int64]), st.booleans())
def test_a_batch_in_given_memory_is_the_batch_in_its_own(case, dtype, flat):
    blocks = []

    def memory(size):
        blocks.append(allocate(size))
        blocks[-1].fill(0xAB)
        return blocks[-1]

    for spec in case.plan.iter_epoch(0):
        batch = collate(spec, case.store, dtype=dtype, flat=flat, buffers=memory)
        assert_same(batch, collate(spec, case.store, dtype=dtype, flat=flat))
        for one, other in itertools.combinations((getattr(batch, name) for name in ARRAYS), 2):
            assert not np.may_share_memory(one, other)
        for name in ARRAYS:
            array = getattr(batch, name)
            assert np.may_share_memory(array, blocks[-1]) or not array.size
            assert array.ctypes.data % ALIGNMENT == 0
    assert len(blocks) == len(case.plan.get_epoch(0))


@given(
    cases(),
    st.sampled_from([np.dtype(np.int32), np.dtype(np.int64)]),
    st.booleans(),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_what_the_kernel_counts_is_what_its_twin_counts_also_in_a_larger_shape(case, dtype, flat, more):
    for rank in range(2):
        for spec in case.plan.shard(rank, 2).iter_epoch(0):
            batch = collate(spec, case.store, flat=flat)
            shape = (batch.shape[0] + more[0], batch.shape[1] + more[1])
            fast = arrange(spec, case.store, dtype=dtype, flat=flat, shape=shape)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(collation, "kernel", None)
                slow = arrange(spec, case.store, dtype=dtype, flat=flat, shape=shape)
            for one, other in zip(fast, slow, strict=True):
                assert np.array_equal(one, other)
            assert fast[6:] == slow[6:] == (batch.fill.used, batch.longest, batch.num_loss_tokens)
            assert all(type(count) is int for count in (*fast[6:], *slow[6:]))
            assert fast.tokens.shape == shape
            assert np.array_equal(fast.tokens[: batch.shape[0], : batch.shape[1]], batch.tokens)
            assert int((fast.segment_ids != 0).sum()) == batch.fill.used


@given(st.integers(1, 5), st.lists(st.integers(1, 300), min_size=1, max_size=30))
def test_a_block_comes_again_after_all_others_unless_it_is_too_small(count, sizes):
    buffers = Buffers(count, allocate)
    given = [buffers(size) for size in sizes]
    for number, (block, size) in enumerate(zip(given, sizes, strict=True)):
        assert len(block) >= size
        assert block.ctypes.data % ALIGNMENT == 0
        before = given[number - count] if number >= count else None
        if before is not None and len(before) >= size:
            assert block is before
        else:
            assert all(block is not other for other in given[:number])


def test_there_must_be_a_buffer():
    with pytest.raises(OptionError, match="at least 1 buffer, got 0"):
        Buffers(0, allocate)


def content(batch):
    """All that a batch holds, as it is now."""
    return [getattr(batch, name).tolist() for name in TENSORS] + [
        getattr(batch, field.name) for field in fields(batch) if field.name not in TENSORS
    ]


@pytest.mark.parametrize("config", [PADDED, PACKED, CUT], ids=["padded", "packed", "cut"])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_with_reuse_a_batch_stays_intact_until_the_batch_after_the_next_is_asked_for(config, prefetch):
    plan = make_plan(STORE, config, microbatches_per_step=2, num_epochs=2)
    plain, reusing = loader(plan, STORE), loader(plan, STORE, prefetch=prefetch, reuse=True)
    changed = 0
    for _ in range(2):
        wanted = [content(batch) for batch in plain]
        kept = []
        for number, batch in enumerate(reusing):
            kept.append(batch)
            for back in (number - 1, number):
                assert back < 0 or content(kept[back]) == wanted[back]
        changed += sum(content(batch) != want for batch, want in zip(kept, wanted, strict=True))
    assert changed  # that memory was used again


def test_without_reuse_batches_may_be_kept():
    plan = make_plan(STORE)
    wanted = [content(batch) for batch in loader(plan, STORE)]
    assert [content(batch) for batch in list(loader(plan, STORE))] == wanted


def test_another_iteration_leaves_the_batches_of_the_one_before_alone():
    loading = loader(make_plan(STORE), STORE, reuse=True)
    batch = next(iter(loading))
    before = content(batch)
    assert sum(1 for _ in loading) > 4
    assert content(batch) == before


def test_reuse_is_refused_where_it_would_overwrite_what_was_handed_out():
    plan = make_plan(STORE, microbatches_per_step=3)
    with pytest.raises(OptionError, match="leave it out, or num_workers=1"):
        loader(plan, STORE, reuse=True, num_workers=1)
    with pytest.raises(OptionError, match="a step has 3 batches, and with reuse only the last 2 are intact"):
        loader(plan, STORE, reuse=True).steps()
    plan = make_plan(STORE, microbatches_per_step=2)
    wanted = [content(batch) for batch in loader(plan, STORE)]
    assert [content(batch) for step in loader(plan, STORE, reuse=True).steps() for batch in step] == wanted


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_an_allocator_gives_the_memory_of_the_tensors_as_pinned_memory_is_given(flat, reuse):
    """Each tensor has the storage of its block, by which torch knows the copies from it that are under way."""
    plan = make_plan(STORE, PACKED if flat else PADDED)
    blocks = []

    def given_memory(size):
        blocks.append(torch.empty(size + 128, dtype=torch.uint8)[64 : 64 + size])
        return blocks[-1]

    sampler = PlanBatchSampler(plan, rank=0, world_size=1)
    loading = PlanLoader(TokenDataset(STORE, flat=flat), sampler, prefetch=2, reuse=reuse, allocate=given_memory)
    number = 0
    for batch, plain in zip(loading, loader(plan, STORE, flat=flat), strict=True):
        number += 1
        assert content(batch) == content(plain)
        assert [getattr(batch, name).dtype for name in TENSORS] == [getattr(plain, name).dtype for name in TENSORS]
        storages = {block.untyped_storage().data_ptr() for block in blocks}
        assert {getattr(batch, name).untyped_storage().data_ptr() for name in TENSORS} <= storages
    assert number > 4
    assert len(blocks) < number if reuse else len(blocks) == number


def test_memory_that_begins_at_an_odd_place_is_refused():
    plan = make_plan(STORE)
    sampler = PlanBatchSampler(plan, rank=0, world_size=1)
    odd = PlanLoader(TokenDataset(STORE), sampler, allocate=lambda size: torch.empty(size + 3, dtype=torch.uint8)[3:])
    with pytest.raises(OptionError, match="does not begin at a multiple of 8 bytes"):
        next(iter(odd))


def test_pinned_memory_is_asked_for_only_where_there_is_an_accelerator(monkeypatch):
    plan = make_plan(STORE)
    asked = []

    def pinned(size):
        asked.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr("brim.batch.torch.pinned", pinned)
    monkeypatch.setattr("brim.batch.torch.has_accelerator", lambda: False)
    wanted = [content(batch) for batch in loader(plan, STORE, pin_memory=True)]
    assert not asked
    monkeypatch.setattr("brim.batch.torch.has_accelerator", lambda: True)
    assert [content(batch) for batch in loader(plan, STORE, pin_memory=True)] == wanted
    assert len(asked) == len(wanted)


@settings(max_examples=25)
@given(cases(), st.integers(0, 3), st.integers(0, 6))
def test_a_loader_that_reuses_resumes_as_any_other(case, prefetch, done):
    plain = loader(case.plan, case.store)
    for _ in itertools.islice(plain, done):
        pass
    again = loader(case.plan, case.store, prefetch=prefetch, reuse=True)
    again.load_state_dict(plain.state_dict())
    plain.load_state_dict(plain.state_dict())
    if plain.epoch < case.plan.num_epochs:
        assert [content(batch) for batch in again] == [content(batch) for batch in plain]
    assert again.state_dict() == plain.state_dict()
