"""Nested batches: what is stacked, what is padded, what the masks say, and who may not share a batch."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nested import nested_samples, normal, same

from brim import (
    BucketSampler,
    DataError,
    MismatchError,
    OptionError,
    collate_compressed_batch,
    nested_collate,
    structure_of,
)
from brim.data.nested.structure import PINNED, outline


def at(tree, path):
    for part in path.split("/"):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree


def of_one_structure(samples):
    first = structure_of(samples[0])
    return [sample for sample in samples if structure_of(sample) == first]


@given(nested_samples(), st.sampled_from([1, 4]))
def test_every_sample_is_in_its_row_and_the_masks_say_where(samples, multiple):
    samples = of_one_structure(samples)
    batch = nested_collate(samples, pad_to_multiple=multiple)
    assert len(batch) == len(batch.ids) == len(samples)
    for row, sample in enumerate(samples):
        parts = outline(sample)
        for place, (path, leaf) in enumerate(zip(parts.structure.leaves, parts.leaves, strict=True)):
            data, lengths, mask = (at(tree, path) for tree in (batch.data, batch.lengths, batch.masks))
            if path not in parts.structure.arrays:
                assert lengths is None
                assert mask is None
                assert same(data[row], leaf)
                continue
            assert lengths[row] == len(leaf)
            assert mask[row].tolist() == [True] * len(leaf) + [False] * (mask.shape[1] - len(leaf))
            assert same(data[row, : len(leaf)], leaf)
            assert not data[row, len(leaf) :].any()
            longest = max(len(outline(other).leaves[place]) for other in samples)
            assert data.shape[1] == mask.shape[1] == -(-longest // multiple) * multiple


@given(nested_samples(max_size=20), st.integers(1, 6), st.booleans())
def test_every_batch_of_a_bucket_sampler_has_one_structure_and_every_sample_comes_once(samples, batch_size, shuffle):
    sampler = BucketSampler(samples, batch_size, shuffle, rank=0, world_size=1)
    expected, batches = len(sampler), list(sampler)
    assert expected == len(batches)
    assert sorted(row for rows in batches for row in rows) == list(range(len(samples)))
    for rows in batches:
        assert 0 < len(rows) <= batch_size
        assert len({structure_of(samples[row]) for row in rows}) == 1
        assert len(nested_collate([samples[row] for row in rows])) == len(rows)


@given(nested_samples(max_size=12), st.integers(1, 4), st.integers(30, 200))
def test_over_ranks_every_sample_comes_once_and_a_budget_is_a_bound(samples, world_size, budget):
    samples = [{**sample, "tail": np.zeros(2)} for sample in samples]
    ranks = [
        BucketSampler(samples, token_budget=budget, overflow="skip", rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    batches = [rows for rank in ranks for rows in rank]
    left_out = set(ranks[0].plan.skipped())
    ids = [ranks[0].plan.table.ids[row] for rows in batches for row in rows]
    assert sorted([*ids, *left_out], key=str) == sorted(ranks[0].plan.table.ids, key=str)
    for rows in batches:
        assert nested_collate([samples[row] for row in rows]).fill.slots <= budget


@given(nested_samples(min_size=2), st.randoms(use_true_random=False))
def test_a_batch_of_mixed_structure_names_two_samples_that_differ(samples, random):
    named = [{**sample, "id": f"s{number}"} for number, sample in enumerate(samples)]
    random.shuffle(named)
    structures = {sample["id"]: structure_of(sample) for sample in named}
    if len(set(structures.values())) == 1:
        assert len(nested_collate(named)) == len(named)
        return
    with pytest.raises(MismatchError) as error:
        nested_collate(named)
    first, second = re.match(r"samples '(s\d+)' and '(s\d+)' have different structures", str(error.value)).groups()
    assert structures[first] != structures[second]


def test_what_differs_is_said_with_its_place():
    def mixed(one, other):
        with pytest.raises(MismatchError) as error:
            nested_collate([{"id": "a", **one}, {"id": "b", **other}])
        return str(error.value)

    steps = np.zeros(3)
    assert "stages has 1 items in the first and 2 in the second" in mixed(
        {"stages": [steps]}, {"stages": [steps, steps]}
    )
    assert "x/y is only in the second" in mixed({"x": {}}, {"x": {"y": 1}})
    assert "x is float64[*] in the first and float64[*, 2] in the second" in mixed(
        {"x": steps}, {"x": np.zeros((3, 2))}
    )
    assert "compression_depth is 1 in the first and 2 in the second" in mixed(
        {"compression_depth": 1}, {"compression_depth": 2}
    )
    assert "x is [] in the first and float64[*] in the second" in mixed({"x": []}, {"x": steps})


def test_nothing_makes_a_batch_of_nothing():
    assert len(nested_collate([])) == 0
    assert nested_collate([]).fill.slots == 0
    assert collate_compressed_batch([]) == {"compression_stages": [], "num_compression_stages": 0, "id": []}


def test_a_pad_value_must_be_one_that_the_array_can_hold():
    batch = nested_collate([{"x": np.zeros(1, np.int16)}, {"x": np.zeros(3, np.int16)}], pad_value=-7)
    assert batch.data["x"][0].tolist() == [0, -7, -7]
    assert batch.data["x"].dtype == np.int16
    with pytest.raises(OptionError, match=r"pad_value 0\.5 is not a int16, which x holds"):
        nested_collate([{"x": np.zeros(1, np.int16)}], pad_value=0.5)
    for value, dtype in ((300, np.uint8), (-1, np.uint8), (float("nan"), np.int64), (2, np.bool_)):
        with pytest.raises(OptionError, match=f"pad_value {value!r} is not a"):
            nested_collate([{"x": np.zeros(1, dtype)}], pad_value=value)
    assert np.isnan(nested_collate([{"x": np.zeros(1)}, {"x": np.zeros(2)}], pad_value=float("nan")).data["x"][0, 1])
    with pytest.raises(OptionError, match="pad_to_multiple must be at least 1, got 0"):
        nested_collate([{"x": np.zeros(1)}], pad_to_multiple=0)


def stage(steps, start=1):
    return {"states": np.arange(start, start + 2 * steps).reshape(steps, 2), "rewards": np.ones(steps, np.float32)}


def compressed(number, *stages, context=4):
    return {
        "id": f"h{number}",
        "num_compression_stages": len(stages),
        "compression_stages": [stage(n) for n in stages],
        "context": stage(context),
    }


def test_a_compressed_batch_is_padded_inside_its_stages_and_nowhere_else():
    batch = collate_compressed_batch([compressed(0, 3, 5), compressed(1, 4, 2, context=1)])
    assert batch["num_compression_stages"] == 2
    assert batch["id"] == ["h0", "h1"]
    first, second = batch["compression_stages"]
    assert first["states"].shape == (2, 4, 2)
    assert second["states"].shape == (2, 5, 2)
    assert batch["context"]["states"].shape == (2, 4, 2)
    assert first["lengths"].tolist() == [3, 4]
    assert second["mask"].tolist() == [[True] * 5, [True, True, False, False, False]]
    assert torch.equal(first["states"][0, :3], torch.from_numpy(stage(3)["states"]))
    assert not first["states"][0, 3:].any()
    assert first["rewards"].dtype == torch.float32


def test_a_batch_without_stages_has_none():
    batch = collate_compressed_batch([compressed(0), compressed(1)])
    assert batch["compression_stages"] == []
    assert batch["num_compression_stages"] == 0


def test_other_depths_are_refused_and_lies_about_the_depth_too():
    with pytest.raises(MismatchError, match="samples 'h0' and 'h2' have different structures"):
        collate_compressed_batch([compressed(0, 3), compressed(1, 4), compressed(2, 3, 3)])
    with pytest.raises(MismatchError, match="sample 'h0' says num_compression_stages 2 and has 1"):
        collate_compressed_batch([{**compressed(0, 3), "num_compression_stages": 2}])
    with pytest.raises(DataError, match=r"compression_stages of sample 0 is not among its keys \(x\)"):
        collate_compressed_batch([{"x": np.zeros(3)}])
    with pytest.raises(DataError, match="compression_stages of sample 0 is no list"):
        collate_compressed_batch([{"compression_stages": {}}])


@pytest.mark.parametrize("sizes", [(3, 3), (3, 4)])
def test_keys_depend_on_the_structure_and_not_on_lengths_that_happen_to_be_equal(sizes):
    batch = collate_compressed_batch([{"compression_stages": [], "q": np.ones(sizes[0]), "t": np.ones(sizes[1])}])
    assert set(batch) == {
        "compression_stages",
        "num_compression_stages",
        "id",
        "q",
        "q_lengths",
        "q_mask",
        "t",
        "t_lengths",
        "t_mask",
    }
    assert batch["t_lengths"].tolist() == [sizes[1]]


def test_arrays_of_a_stage_must_be_equally_long_and_keys_are_not_overwritten():
    uneven = {"id": "b", "compression_stages": [{"states": np.ones((3, 2)), "rewards": np.ones(2)}]}
    even = {"id": "a", "compression_stages": [{"states": np.ones((3, 2)), "rewards": np.ones(3)}]}
    with pytest.raises(
        DataError, match="the arrays of compression_stages/0 differ in length in sample 'b': 'states' has 3, others 2"
    ):
        collate_compressed_batch([even, uneven])
    with pytest.raises(DataError, match="compression_stages/0 has a key 'mask', where what is told of 'x' would go"):
        collate_compressed_batch([{"compression_stages": [{"x": np.ones(3), "mask": 1}]}])
    with pytest.raises(DataError, match="the sample has a key 'x_mask'"):
        collate_compressed_batch([{"compression_stages": [], "x": np.ones(3), "x_mask": 1}])


def test_stages_share_no_memory():
    batch = nested_collate([{"stages": [{"x": np.ones(2)}, {"x": np.ones(2)}], "x": np.ones(2)}])
    batch.masks["stages"][0]["x"][:] = False
    batch.lengths["stages"][0]["x"][:] = 0
    for other in (batch.masks["stages"][1]["x"], batch.masks["x"]):
        assert other.all()
    assert batch.lengths["stages"][1]["x"].tolist() == batch.lengths["x"].tolist() == [2]
    sample = {"x": np.ones(3)}
    nested_collate([sample]).data["x"][:] = 5
    assert sample["x"].tolist() == [1, 1, 1]


@given(nested_samples())
def test_tensors_hold_what_the_arrays_hold(samples):
    plain = [
        {key: value for key, value in sample.items() if not isinstance(value, dict | list) and key not in PINNED}
        for sample in samples
    ]
    samples = of_one_structure([{**sample, "compression_stages": []} for sample in plain])
    batch, tensors = nested_collate(samples), collate_compressed_batch(samples)
    assert tensors["id"] == list(batch.ids)
    for name, value in normal(samples[0]).items():
        if isinstance(value, np.ndarray):
            assert same(tensors[name].numpy(), batch.data[name])
            if value.ndim:
                assert same(tensors[f"{name}_mask"].numpy(), batch.masks[name])
