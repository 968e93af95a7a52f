"""Structures of nested samples, and the tables that are made of them."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from support.nested import nested_samples, normal, same

from brim import BucketSampler, DataError, LengthCache, OptionError, structure_of
from brim.data import measure_structures
from brim.data.nested.lengths import axes_by_name, charge_axes
from brim.data.nested.structure import Structure, difference, outline


def deep(levels):
    sample = {}
    for _ in range(levels):
        sample = {"a": sample}
    return sample


def stage(steps, **more):
    return {"states": np.zeros((steps, 2), np.float32), "actions": np.zeros(steps, np.int64), **more}


@given(nested_samples())
def test_a_sample_taken_apart_and_put_together_is_the_same(samples):
    for sample in samples:
        parts = outline(sample)
        again = parts.structure.assemble(parts.leaves)
        assert same(again, {key: value for key, value in normal(sample).items() if key != "id"})
        assert outline(again).structure == parts.structure
        assert len(parts.leaves) == len(parts.structure.leaves)


@given(nested_samples())
def test_structures_are_equal_if_and_only_if_their_texts_and_their_json_are(samples):
    structures = [structure_of(sample) for sample in samples]
    for one in structures:
        assert Structure.from_json(one.to_json()) == one
        for other in structures:
            assert (one == other) == (one.text == other.text) == (one.to_json() == other.to_json())
            if one != other:
                assert difference(one, other) != ""


@given(nested_samples())
def test_the_table_has_a_group_for_each_structure_and_lengths_that_add_up(samples):
    table = measure_structures(samples)
    for row, sample in enumerate(samples):
        for other, rival in enumerate(samples):
            assert (table.groups[row] == table.groups[other]) == (structure_of(sample) == structure_of(rival))
    assert len(table.group_names) == len(set(table.group_names)) == len({structure_of(sample) for sample in samples})
    if table.axes is not None:
        assert np.array_equal(table.axes.sum(axis=1), table.lengths)
    arrays = {row: outline(sample).lengths for row, sample in enumerate(samples)}
    for row, lengths in arrays.items():
        assert set(table.entry(row).axes or (table.entry(row).length,)) - {0} == set(lengths) - {0}
        assert table.lengths[row] <= sum(lengths)
    by_name = axes_by_name(table)
    assert np.array_equal(np.sum([*by_name.values(), np.zeros(len(samples), int)], axis=0), table.lengths)


def test_what_is_ragged_and_what_is_not():
    structure = structure_of(
        {
            "id": "a",
            "x": np.zeros((3, 2)),
            "n": 5,
            "ok": True,
            "name": "text",
            "stages": [[1, 2], np.zeros(0)],
            "none": [],
        }
    )
    assert (
        structure.text == "{n: int64, name: text, none: [], ok: bool, stages: [int64[*], float64[*]], x: float64[*, 2]}"
    )
    assert structure.arrays == ("stages/0", "stages/1", "x")
    assert (
        structure_of({"x": np.zeros((9, 2))})
        == structure_of({"x": np.zeros((1, 2))})
        != structure_of({"x": np.zeros((9, 3))})
    )
    assert structure_of({"x": np.zeros(3, np.float32)}) != structure_of({"x": np.zeros(3)})
    assert structure_of({"x": torch.zeros(3)}) == structure_of({"x": np.zeros(3, np.float32)})
    assert structure_of({"x": []}) != structure_of({"x": np.zeros(0)})
    assert structure_of({"compression_depth": 1}) != structure_of({"compression_depth": 2})
    assert structure_of({"deeper": {"compression_depth": 1}}) == structure_of({"deeper": {"compression_depth": 2}})


def test_names_say_what_tells_structures_apart():
    samples = [{"stages": [np.zeros(2)] * count} for count in (10, 2, 0)]
    assert measure_structures(samples).group_names == ("stages=0", "stages=2", "stages=10")
    assert structure_of({"a": np.zeros(3)}).name == "{a: float64[*]}"
    alike = [{"stages": [np.zeros(2)]}, {"stages": [np.zeros((2, 2))]}]
    names = measure_structures(alike).group_names
    assert all(name.startswith("stages=1 #") for name in names)
    long = structure_of({f"key_{number}": np.zeros(1) for number in range(40)}).name
    assert len(long) < 70
    assert "#" in long


def test_arrays_of_a_dict_that_are_always_equally_long_run_along_one_axis():
    samples = [
        {"compression_stages": [stage(3), stage(5)], "context": stage(4)},
        {"compression_stages": [stage(4), stage(4)], "context": stage(9)},
    ]
    table = measure_structures(samples)
    assert table.source["structures"][0]["axes"] == ["compression_stages/0", "compression_stages/1", "context"]
    assert table.axes.tolist() == [[3, 5, 4], [4, 4, 9]]
    apart = measure_structures([{"a": np.zeros(3), "b": np.zeros(3)}, {"a": np.zeros(3), "b": np.zeros(4)}])
    assert apart.source["structures"][0]["axes"] == ["a", "b"]
    assert apart.axes.tolist() == [[3, 3], [3, 4]]
    together = measure_structures([{"a": np.zeros(3), "b": np.zeros(3)}])
    assert (together.axes, together.lengths.tolist()) == (None, [3])
    stages = measure_structures([{"stages": [np.zeros(3), np.zeros(3)]}])  # items of a list are never one axis
    assert stages.axes.tolist() == [[3, 3]]


def test_axes_of_mixed_structures_are_aligned_by_name():
    table = measure_structures(
        [{"stages": [np.zeros(3)], "tail": {"x": np.zeros(7)}}, {"stages": [], "tail": {"x": np.zeros(5)}}]
    )
    found = {name: column.tolist() for name, column in axes_by_name(table).items()}
    assert found == {"tail/x": [7, 5], "stages/0": [3, 0]}


def test_the_order_of_the_samples_decides_neither_names_nor_codes():
    samples = [{"id": number, "stages": [np.zeros(number)] * (number % 3)} for number in range(9)]
    table, turned = measure_structures(samples), measure_structures(samples[::-1])
    assert table.group_names == turned.group_names
    assert table.groups.tolist() == turned.groups.tolist()[::-1]


def test_a_data_set_may_know_its_table_or_its_samples():
    class Known:
        table = LengthCache.from_lengths({"a": 3})

        def __len__(self):
            raise AssertionError("not gone through")

    class Listed:
        samples = [{"compression_depth": depth} for depth in (0, 2, 0)]  # noqa: RUF012

        def __len__(self):
            return 3

        def __getitem__(self, row):
            return {"compression_depth": (0, 2, 0)[row], "x": np.zeros(row + 1)}

    class Otherwise(Listed):
        samples = [{"compression_depth": 7}]  # noqa: RUF012  not one for each

    assert measure_structures(Known()) is Known.table
    assert measure_structures(Listed()).groups.tolist() == [0, 1, 0]
    assert measure_structures(Listed()).lengths.tolist() == [0, 0, 0]
    assert measure_structures(Listed(), read=True).lengths.tolist() == [1, 2, 3]
    assert measure_structures(Otherwise()).lengths.tolist() == [1, 2, 3]
    assert BucketSampler(Listed(), token_budget=4, rank=0, world_size=1).plan.table.lengths.tolist() == [1, 2, 3]
    assert sorted(map(len, BucketSampler(Listed(), 2, rank=0, world_size=1))) == [1, 2]
    with pytest.raises(OptionError, match="no arrays that a token_budget of 9 could bound; give batch_size"):
        BucketSampler([{"goal": 3}], token_budget=9)
    seen = []
    measure_structures([{"x": np.zeros(1)}] * 2500, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1000, 2500), (2000, 2500), (2500, 2500)]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"a": {"b": None}}, "sample 1: a/b is None, which cannot be batched: leave the key out"),
        ({"a": object()}, "a is a object"),
        ({"a": np.array(["x"])}, "a is an array of <U1"),
        ({"a": np.array([None])}, "a is an array of object"),
        ({"a": np.array([1.0], np.longdouble)}, "a is an array of float128"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, "a is a masked array"),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, "a cannot be made an array"),
        ({"a": [2**63, -1]}, "a holds integers that do not fit 64 bits together"),
        ({"a": [2**70]}, "a is an array of object"),
        ({"compression_depth": 1.0}, "compression_depth is 1.0; it tells structures apart, and is an integer"),
        ({"compression_depth": True}, "compression_depth is True"),
        ({"id": "\ud800"}, "which is not valid text"),
        (deep(3000), "nested too deeply"),
        ({"a": {1: 2}}, "a has the key 1"),
        ({"a/b": 2}, "the sample has the key 'a/b'"),
        ({"id": 1.5}, "the id of a sample is 1.5"),
        ([1, 2], "a nested sample is a dict, not a list"),
    ],
)
def test_what_cannot_be_batched_is_named(sample, said):
    with pytest.raises(DataError) as error:
        measure_structures([{"x": 1}, sample])
    assert said in str(error.value)


def test_an_id_that_comes_twice_is_an_error():
    with pytest.raises(DataError, match="id 'a' comes twice: sample 0 and sample 2"):
        measure_structures([{"id": "a"}, {"id": "b"}, {"id": "a"}])


@pytest.mark.parametrize("text", ["", "[]", '["dict",[["a",["array"]]]]', "null", json.dumps(["dict", 5])])
def test_what_is_not_a_structure_is_refused(text):
    with pytest.raises(DataError, match="not a structure"):
        Structure.from_json(text)


def test_a_step_counts_for_what_it_costs():
    samples = [{"compression_stages": [stage(3)] * depth, "context": stage(5)} for depth in (0, 1, 2)]
    table = measure_structures(samples)
    charged = charge_axes(table, {"context": 7})
    assert charged.lengths.tolist() == [35, 38, 41]
    assert charge_axes(table, {"compression_stages": 2}).lengths.tolist() == [5, 11, 17]
    assert charge_axes(table, {"compression_stages": 2, "compression_stages/1": 10}).lengths.tolist() == [
        5,
        11,
        5 + 6 + 30,
    ]
    assert charge_axes(table, {"context": 2}, pad_to_multiple=4).lengths.tolist() == [16, 20, 24]
    assert charged.groups is table.groups
    assert charged.fingerprint != table.fingerprint
    for costs, said in (
        ({"contxt": 2}, "axis_costs has 'contxt'.* Did you mean \"context\"?"),
        ({"context": 0}, "must be an integer from 1 on, got 0"),
        ({"context": 2**31}, "and at most 2147483647 is possible"),
    ):
        with pytest.raises(OptionError, match=said):
            charge_axes(table, costs)
    with pytest.raises(OptionError, match="whose axes have names"):
        charge_axes(LengthCache.from_lengths({"a": 3}), {"x": 2})


@pytest.mark.parametrize("multiple", [1, 4])
def test_a_budget_is_held_against_costs(multiple):
    random = np.random.default_rng(1)
    samples = [
        {
            "stages": [np.zeros(int(random.integers(1, 9)))] * (number % 3),
            "context": np.zeros(int(random.integers(1, 9))),
        }
        for number in range(200)
    ]

    def cost(rows):
        longest = {"context": 0}
        for row in rows:
            longest["context"] = max(longest["context"], len(samples[row]["context"]))
            for number, part in enumerate(samples[row]["stages"]):
                longest[number] = max(longest.get(number, 0), len(part))
        padded = {name: -(-size // multiple) * multiple for name, size in longest.items()}
        return len(rows) * sum(size * (6 if name == "context" else 1) for name, size in padded.items())

    batches = list(BucketSampler(samples, token_budget=400, axis_costs={"context": 6}, pad_to_multiple=multiple))
    assert sorted(row for rows in batches for row in rows) == list(range(200))
    assert max(map(cost, batches)) <= 400
    assert max(map(cost, BucketSampler(samples, token_budget=400, pad_to_multiple=multiple))) > 400


def test_arrays_are_taken_as_this_machine_has_them():
    array = np.arange(3, dtype=">i4")
    (leaf,) = outline({"x": array}).leaves
    assert leaf.dtype == np.int32
    assert leaf.dtype.isnative
    assert leaf.tolist() == [0, 1, 2]
    assert structure_of({"x": array}) == structure_of({"x": array.astype(np.int32)})
    (leaf,) = outline({"x": torch.ones(2, requires_grad=True)}).leaves
    assert leaf.tolist() == [1, 1]
    assert structure_of({"x": 2**63}) == structure_of({"x": np.uint64(5)})


def test_a_key_called_sample_is_not_the_axis_at_the_top():
    table = measure_structures([{"x": np.zeros(9), "y": np.zeros(9), "sample": {"a": np.zeros(3), "b": np.zeros(3)}}])
    assert dict(zip(table.source["structures"][0]["axes"], table.axes[0].tolist(), strict=True)) == {
        "sample": 3,
        "/": 9,
    }
    assert charge_axes(table, {"/": 2}).lengths.tolist() == [21]


def test_many_structures_survive_a_file_of_lines(tmp_path):
    table = measure_structures([{"stages": [np.zeros(2)] * count} for count in range(13)])
    table.save(tmp_path / "lengths.jsonl")
    read = LengthCache.load(tmp_path / "lengths.jsonl")
    assert read.fingerprint == table.fingerprint
    assert read.group_names == table.group_names == tuple(f"stages={count}" for count in range(13))


def test_axes_that_are_no_list_are_refused(tmp_path):
    (tmp_path / "lengths.jsonl").write_text('{"sample_id": "a", "length": 5, "axes": 5}\n')
    with pytest.raises(DataError, match="sample 'a' has the axes 5, which is not a list of lengths"):
        LengthCache.load(tmp_path / "lengths.jsonl")
