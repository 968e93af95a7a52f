"""Nested samples in Parquet: what a type means, and what has no meaning."""

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.nested import assert_holds

from brim.core.errors import DataError
from brim.data.nested.open import open_nested
from brim.data.nested.structure import ID

READS_MISSING_BLOCKS = int(pa.__version__.split(".")[0]) >= 26
"""Before version 26, pyarrow refuses to read a file in which an array of fixed size is missing."""
NUMBERS = {
    "int32": pa.int32(),
    "float64": pa.float64(),
    "uint8": pa.uint8(),
    "bool": pa.bool_(),
    "float16": pa.float16(),
}


def arrow_types() -> st.SearchStrategy[pa.DataType]:
    numbers = st.sampled_from(list(NUMBERS.values()))
    blocks = st.builds(pa.list_, numbers, st.integers(1, 3))
    blocks |= st.builds(pa.list_, blocks, st.just(2))
    arrays = st.builds(pa.list_, numbers | blocks)
    leaves = numbers | arrays | blocks | st.sampled_from([pa.string(), pa.binary(), pa.large_list(pa.int64())])

    def nest(inside):
        fields = st.dictionaries(st.sampled_from("abc"), inside, min_size=1, max_size=3)
        return (
            st.builds(pa.list_, inside)
            | st.builds(pa.list_, inside, st.just(2))
            | fields.map(lambda found: pa.struct(list(found.items())))
        )

    return st.recursive(leaves, nest, max_leaves=4)


def is_number(kind) -> bool:
    return kind in [*NUMBERS.values(), pa.int64()]


def is_block(kind) -> bool:
    return is_number(kind) or (pa.types.is_fixed_size_list(kind) and is_block(kind.value_type))


def is_any_list(kind) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def draw_value(kind, rng, *, nulls: bool):
    """A Python value of an Arrow type; None only where it leaves a key out."""
    if nulls and rng.random() < 0.2:
        return None
    if is_number(kind):
        return (
            bool(rng.integers(2))
            if kind == pa.bool_()
            else np.float16(rng.integers(9))
            if kind == pa.float16()
            else int(rng.integers(9))
        )
    if pa.types.is_struct(kind):
        return {field.name: draw_value(field.type, rng, nulls=nulls) for field in kind}
    if is_any_list(kind):
        count = kind.list_size if pa.types.is_fixed_size_list(kind) else int(rng.integers(4))
        inside = nulls and pa.types.is_struct(kind.value_type)
        values = [draw_value(kind.value_type, rng, nulls=False) for _ in range(count)]
        return (
            [{key: value if rng.random() < 0.8 else None for key, value in item.items()} for item in values]
            if inside
            else values
        )
    return "é" * int(rng.integers(4)) if kind == pa.string() else b"\0" * int(rng.integers(4))


def meaning(kind, value):
    """What a value of an Arrow type is as a nested value: the definition, by the table in the docs."""
    if pa.types.is_struct(kind):
        return {field.name: meaning(field.type, value[field.name]) for field in kind if value[field.name] is not None}
    if is_any_list(kind) and is_block(kind.value_type):
        sizes, inner = [], kind.value_type
        while not is_number(inner):
            sizes.append(inner.list_size)
            inner = inner.value_type
        return np.array(value, inner.to_pandas_dtype()).reshape(len(value), *sizes)
    if is_any_list(kind):
        return [meaning(kind.value_type, item) for item in value]
    return np.array(value, kind.to_pandas_dtype())[()] if is_number(kind) else value


def depth_is_whole(columns):
    """A depth that is a number must be an integer: it tells structures apart."""
    depth = columns.get("compression_depth", pa.int64())
    return not (pa.types.is_floating(depth) or pa.types.is_boolean(depth))


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["x", "y", "stages", "compression_depth"]), arrow_types(), min_size=1).filter(
        depth_is_whole
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_parquet_means_what_its_types_say(columns, sizes, nulls, seed):
    assume(READS_MISSING_BLOCKS or not nulls or "fixed_size_list" not in str([*columns.values()]))
    rng = np.random.default_rng(seed)
    rows = [{name: draw_value(kind, rng, nulls=nulls) for name, kind in columns.items()} for _ in range(sum(sizes))]
    schema = pa.schema(list(columns.items()))
    samples = [
        {name: meaning(columns[name], value) for name, value in row.items() if value is not None} for row in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        for part, size in enumerate(sizes):
            first = sum(sizes[:part])
            arrays = [
                pa.array([row[name] for row in rows[first : first + size]], kind) for name, kind in columns.items()
            ]
            pq.write_table(
                pa.Table.from_arrays(arrays, schema=schema), Path(folder) / f"part-{part}.parquet", row_group_size=2
            )
        source = open_nested(folder)
        assert_holds(source, samples)
        assert_holds(pickle.loads(pickle.dumps(source)), samples)


def test_parquet_ids_come_from_a_column(tmp_path):
    pq.write_table(pa.table({"id": ["a", "b"], "x": [[1], [2, 3]], "key": [7, 8]}), tmp_path / "a.parquet")
    assert open_nested(tmp_path / "a.parquet")[1].items() >= {ID: "b", "key": 8}.items()
    pq.write_table(pa.table({"x": [[1], [2, 3]], "key": [7, 8]}), tmp_path / "a.parquet")
    assert [sample[ID] for sample in open_nested(tmp_path / "a.parquet", id_field="key")] == [7, 8]
    assert list(open_nested(tmp_path / "a.parquet").ids) == [0, 1]
    with pytest.raises(DataError, match=r"no column 'kay' .*Did you mean \"key\""):
        open_nested(tmp_path / "a.parquet", id_field="kay")


MISSING_BLOCK = "row 0: an array in 'x' has a null" if READS_MISSING_BLOCKS else "cannot be read as Parquet"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0], [None]]), "row 1: an array in 'x' has a null"),
        (pa.array([[[1], None], []]), "row 0: a list in 'x' has a null"),
        (pa.array([[{"a": [1]}], [{"a": [1]}, {"a": [None]}]]), "row 1: an array in 'x/a' has a null"),
        (pa.array([[[1, 2], None], []], pa.list_(pa.list_(pa.int64(), 2))), MISSING_BLOCK),
        (pa.array([[1, None], None], pa.list_(pa.int64(), 2)), MISSING_BLOCK),
        (pa.array([1, 2], pa.timestamp("us")), r"column 'x' is of type timestamp\[us\]"),
        (pa.array([None, None], pa.decimal128(5)), "column 'x' is of type decimal128"),
        (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), "column 'x' is of type map"),
    ],
)
def test_what_parquet_cannot_say_as_a_sample_names_the_column_and_the_row(column, message, tmp_path):
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    source = open_nested(tmp_path / "a.parquet")
    for ask in (lambda: source[0], lambda: source.table):
        with pytest.raises(DataError, match=message):
            ask()


PAIR = [pa.array([1, 2]), pa.array([3, 4])]
TWINS = pa.StructArray.from_arrays(PAIR, names=["x", "x"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.Table.from_arrays(PAIR, names=["x", "x"]), "a.parquet has the column 'x' more than once"),
        (pa.Table.from_arrays(PAIR, names=[ID, ID]), "a.parquet has the column 'id' more than once"),
        (pa.table({ID: [5, 6], "s": TWINS}), "a.parquet: row 0: s has the column 'x'; keys come once"),
        (
            pa.table({"s": pa.ListArray.from_arrays([0, 1, 2], TWINS)}),
            "a.parquet: row 0: s has the column 'x'; keys come once",
        ),
    ],
)
def test_a_column_that_comes_twice_is_one_line(table, message, tmp_path):
    pq.write_table(table, tmp_path / "a.parquet")
    for ask in (lambda source: source[0], lambda source: source.table):
        with pytest.raises(DataError, match=message):
            ask(open_nested(tmp_path / "a.parquet"))


def test_words_of_a_dictionary_are_words(tmp_path):
    pq.write_table(
        pa.table({"x": pa.array(["a", "b", "a"]).dictionary_encode(), "y": pa.array([[], [], []])}),
        tmp_path / "a.parquet",
    )
    assert_holds(open_nested(tmp_path / "a.parquet"), [{"x": word, "y": []} for word in "aba"])
