"""The ids of a planned microbatch are made when they are looked at, and nobody can tell."""

import copy
import pickle
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import cases

from brim import BatchPlan, CheckpointPosition, MicrobatchSpec


def eager(spec, plan):
    """The same microbatch, made of all its fields at once."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "samples"}
    return MicrobatchSpec(samples=tuple(plan.table.ids[row] for row in spec.indices.tolist()), **values)


def fresh(case, ranks=2):
    """The microbatches of all ranks, whose ids nobody has looked at, and the same microbatches made at once."""
    for epoch in range(case.plan.num_epochs):
        for rank in range(ranks):
            share = case.plan.shard(rank, ranks).get_epoch(epoch)
            for spec in share:
                assert "samples" not in vars(spec)
                yield spec, eager(spec, case.plan)


@given(cases())
def test_ids_that_are_made_late_are_those_that_are_made_at_once(case):
    for spec, whole in fresh(case):
        assert spec.packs == whole.packs
        assert spec.samples == whole.samples
        assert spec.samples is spec.samples
        assert [type(id) for id in spec.samples] == [type(id) for id in whole.samples]


@given(cases())
def test_they_are_equal_and_shown_alike_whoever_was_looked_at(case):
    for spec, whole in fresh(case):
        assert spec == whole
    for spec, whole in fresh(case):
        assert whole == spec
        assert repr(spec) == repr(whole)
        assert spec != replace(whole, samples=(*whole.samples, "another"))


WAYS = {
    "pickled": lambda spec: pickle.loads(pickle.dumps(spec)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "replaced": replace,
    "changed": lambda spec: spec.changed(),
}


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@given(case=cases(max_size=9))
@settings(max_examples=15)
def test_a_copy_has_the_same_ids_whether_they_were_looked_at_before(way, looked, case):
    for spec, whole in fresh(case):
        if looked:
            _ = spec.samples
        made = way(spec)
        assert made == whole
        assert made.samples == whole.samples


def test_a_pickled_microbatch_carries_its_own_ids_and_not_the_table():
    plan = BatchPlan.build({f"an-id-of-some-length-{i}": 5 for i in range(5000)})
    spec = plan.get_epoch(0)[0]
    whole = len(pickle.dumps(plan.table.ids))
    for _ in range(2):
        assert len(pickle.dumps(spec)) < whole / 2
        assert len(spec.samples) == len(spec.indices)


@given(cases())
def test_other_values_leave_ids_to_be_made_and_are_those_of_replace(case):
    for spec, whole in fresh(case):
        assert spec.changed(max_len=7, after=None) == replace(whole, max_len=7, after=None)
        assert spec.renumbered(3) == whole.renumbered(3)
        assert "samples" not in vars(spec)
        assert "samples" not in vars(spec.changed(max_len=7))


def test_a_microbatch_is_immutable_and_has_no_other_attributes():
    spec = BatchPlan.build({"a": 3, "b": 2}).get_epoch(0)[0]
    with pytest.raises(AttributeError, match="cannot assign to field 'samples'"):
        spec.samples = ()
    with pytest.raises(AttributeError, match="'MicrobatchSpec' object has no attribute 'ids'"):
        _ = spec.ids
    assert not hasattr(MicrobatchSpec.unplanned((1,), np.ones(1, np.int32), 1), "ids")
    assert not hasattr(object.__new__(MicrobatchSpec), "samples")


numbers = st.integers(0, 2**40)


@given(numbers, numbers, numbers, st.integers(1, 99), numbers)
def test_positions_that_skip_the_checks_are_those_that_are_checked(epoch, index, step, size, later):
    values = {
        "epoch": epoch,
        "microbatch_idx": index,
        "global_step": step,
        "microbatches_per_step": size,
        "fingerprint": "f",
    }
    checked = CheckpointPosition(**values)
    position = replace(checked, microbatch_idx=later).at(index)
    assert position == checked
    assert (hash(position), repr(position), asdict(position)) == (hash(checked), repr(checked), values)
    assert position.at_step(later) == replace(checked, global_step=later)
    assert position == checked
    assert pickle.loads(pickle.dumps(position)) == checked


@given(cases(), st.integers(1, 3))
def test_every_position_in_an_epoch_is_the_one_that_its_fields_say(case, ranks):
    for rank in range(ranks):
        share = case.plan.shard(rank, ranks)
        deal = share.deal(0)
        for number, spec in enumerate(share.get_epoch(0)):
            end = deal.round(number).end
            over = end == deal.length
            assert spec.after == CheckpointPosition(
                epoch=int(over),
                microbatch_idx=0 if over else end,
                microbatches_per_step=deal.step_size,
                fingerprint=case.plan.fingerprint,
            )
