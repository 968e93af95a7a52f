"""Sources of nested samples: what is written comes back, the table needs no contents, and processes do not disturb each other."""

import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_cases import fill, nested_samples, normal, same

from brim.core.errors import BrimError, DamagedError, DataError, MismatchError, OptionError
from brim.data import nested_hdf5, nested_npz
from brim.data.axes import measure_structures
from brim.data.nested import open_nested, write_nested
from brim.data.structure import ID

TARGETS = {"hdf5": "samples.h5", "npz": "samples.npz", "shards": "samples"}
TEMPLATES = (
    {"x": ("array", "float32", (3,)), "stages": [{"s": ("array", "int64", ())}], "text": ("text",), "r": ("scalar", "float64")},
    {"x": ("array", "float32", (3,)), "stages": [{"s": ("array", "int64", ())}] * 2, "text": ("text",), "r": ("scalar", "float64")},
)


def some_samples(count: int = 40) -> list[dict]:
    rng = np.random.default_rng(7)
    return [{ID: f"ep{number}", **fill(TEMPLATES[number % 2], rng)} for number in range(count)]


def assert_holds(source, samples: list[dict]) -> None:
    """The samples, in their order, under their ids, and their table."""
    ids = [sample.get(ID, number) for number, sample in enumerate(samples)]
    assert len(source) == len(samples)
    assert list(source.ids) == ids
    for row, sample in enumerate(samples):
        found = source[row]
        assert found.pop(ID) == ids[row]
        assert same(found, normal(sample))
    assert_tables_agree(source.table, measure_structures(samples))
    assert source.table.dataset_hash == source.fingerprint != ""


def assert_tables_agree(found, wanted) -> None:
    assert np.array_equal(found.lengths, wanted.lengths)
    assert np.array_equal(found.groups, wanted.groups)
    assert found.group_names == wanted.group_names
    assert (found.axes is None and wanted.axes is None) or np.array_equal(found.axes, wanted.axes)
    assert list(found.ids) == list(wanted.ids)
    assert found.source == wanted.source


@pytest.mark.parametrize("kind", TARGETS)
@given(nested_samples(), st.integers(1, 4))
def test_what_is_written_comes_back_in_its_order_under_its_ids(kind, samples, shard):
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / TARGETS[kind]
        write_nested(target, iter(samples), **({"shard_samples": shard} if kind == "shards" else {}))
        source = open_nested(target)
        assert_holds(source, samples)
        again = pickle.loads(pickle.dumps(source))
        assert again.fingerprint == source.fingerprint
        assert_holds(again, samples)


@settings(max_examples=25)
@given(nested_samples(min_size=2))
def test_the_fingerprint_is_of_the_samples_and_not_of_the_files(samples):
    with tempfile.TemporaryDirectory() as folder:
        prints = set()
        for name, options in (("a.h5", {}), ("b.h5", {}), ("a.npz", {}), ("a", {"shard_samples": 1}), ("b", {"shard_samples": 3})):
            write_nested(Path(folder) / name, samples, **options)
            prints.add(open_nested(Path(folder) / name).fingerprint)
        assert len(prints) == 1
        ids = [sample.get(ID, number) for number, sample in enumerate(samples)]
        turned = [{**sample, ID: id} for sample, id in zip(samples, ids, strict=True)][::-1]
        write_nested(Path(folder) / "turned.h5", turned)
        assert open_nested(Path(folder) / "turned.h5").fingerprint not in prints


def test_samples_that_do_not_fit_in_the_buffer_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(nested_hdf5, "BUFFER_BYTES", 2000)
    held = []
    monkeypatch.setattr(nested_hdf5, "_append", lambda *parts, real=nested_hdf5._append: (held.append(parts), real(*parts)))
    samples = some_samples(100)
    write_nested(tmp_path / "samples.h5", samples)
    assert len(held) > 5
    assert_holds(open_nested(tmp_path / "samples.h5"), samples)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_writer_keeps_what_a_reused_array_held(kind, tmp_path):
    buffer = np.zeros(3)

    def samples():
        for number in range(5):
            buffer[:] = number
            yield {"x": buffer}

    write_nested(tmp_path / TARGETS[kind], samples())
    assert [sample["x"][0] for sample in open_nested(tmp_path / TARGETS[kind])] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_sample_may_be_changed_without_changing_the_next_reading(kind, tmp_path):
    write_nested(tmp_path / TARGETS[kind], some_samples())
    source = open_nested(tmp_path / TARGETS[kind])
    first = source[3]
    first["x"][:] = 0
    first["stages"].clear()
    assert same(source[3], {**normal(some_samples()[3]), ID: "ep3"})


def test_a_source_is_rewritten_from_itself_and_into_another_format(tmp_path):
    write_nested(tmp_path / "a.h5", some_samples())
    write_nested(tmp_path / "a.h5", open_nested(tmp_path / "a.h5"))
    write_nested(tmp_path / "shards/", open_nested(tmp_path / "a.h5"), shard_samples=7)
    write_nested(tmp_path / "shards/", open_nested(tmp_path / "shards"), shard_samples=9)
    assert sorted(file.name for file in (tmp_path / "shards").iterdir()) == [f"shard-0000{number}.npz" for number in range(5)]
    assert_holds(open_nested(tmp_path / "shards"), some_samples())


def test_progress_counts_the_samples(tmp_path):
    seen = []
    write_nested(tmp_path / "a.h5", [{"x": 1}] * 2500, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_rows_count_from_either_end_and_no_further(tmp_path):
    write_nested(tmp_path / "a.h5", some_samples(3))
    source = open_nested(tmp_path / "a.h5")
    assert source[-1][ID] == source[np.int64(2)][ID] == "ep2"
    for row in (3, -4):
        with pytest.raises(IndexError, match=r"row -?\d of 3"):
            source[row]


# HDF5 and NPZ as people have them.


def write_groups(path: Path, samples: list[dict], root: str = "/") -> None:
    with h5py.File(path, "w") as file:
        for number, sample in enumerate(samples):
            put(file.require_group(root).create_group(sample.get(ID, f"ep{number}")), sample)


def put(group, value: dict | list) -> None:
    for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inside, dict | list):
            put(group.create_group(str(key)), inside)
        elif key != ID:
            group[str(key)] = inside


def flat_keys(value, path: str = "") -> dict:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, inside in pairs:
        found |= flat_keys(inside, f"{path}{key}/") if isinstance(inside, dict | list) else {f"{path}{key}": inside}
    return found


def has_nothing_empty(value) -> bool:
    """An empty group says neither dict nor list, and a dict of numbers is a list: these files cannot tell."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return not isinstance(value, bytes) and (not isinstance(value, str) or "\0" not in value)
    listed = isinstance(value, dict) and set(value) == {str(number) for number in range(len(value))}
    return bool(inside) and not listed and all(map(has_nothing_empty, inside))


PLAIN = ("x", "y", "states", "stages", "0", "a b", "é")


@settings(max_examples=60)
@given(nested_samples(keys=PLAIN, ids=False))
def test_every_group_of_a_file_is_a_sample(samples):
    samples = [{ID: f"ep{number}", **normal(sample)} for number, sample in enumerate(samples) if has_nothing_empty(normal(sample))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        write_groups(path, samples or some_samples(2), root="/train")
        source = open_nested(path, root="/train")
        assert_holds(source, samples or some_samples(2))
        assert_holds(pickle.loads(pickle.dumps(source)), samples or some_samples(2))


@settings(max_examples=60)
@given(nested_samples(keys=PLAIN, ids=False))
def test_every_other_npz_file_is_a_sample(samples):
    samples = [{ID: f"ep{number}", **normal(sample)} for number, sample in enumerate(samples) if has_nothing_empty(normal(sample))]
    samples = samples or some_samples(2)
    with tempfile.TemporaryDirectory() as folder:
        for sample in samples:
            np.savez(Path(folder) / f"{sample[ID]}.npz", **flat_keys({key: value for key, value in sample.items() if key != ID}))
        source = open_nested(folder)
        assert_holds(source, samples)
        assert_holds(pickle.loads(pickle.dumps(source)), samples)


def test_names_are_in_natural_order(tmp_path):
    names = [f"ep{number}" for number in (0, 1, 2, 9, 10, 11, 100)]
    (tmp_path / "npz").mkdir()
    for name in sorted(names):
        np.savez_compressed(tmp_path / "npz" / f"{name}.npz", x=np.zeros(3))
    write_groups(tmp_path / "a.h5", [{ID: name, "x": np.zeros(3)} for name in sorted(names)])
    assert list(open_nested(tmp_path / "npz").ids) == list(open_nested(tmp_path / "a.h5").ids) == names


def test_attributes_are_keys_and_an_id_inside_is_the_id(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        first = file.create_group("ep0")
        first.attrs["reward"], first.attrs["task"], first.attrs["id"] = 1.5, "stack", 17
        first["name"] = "text"
        first.create_group("inner").attrs["n"] = np.int16(3)
    source = open_nested(tmp_path / "a.h5")
    assert source[0] == {"id": "17", "reward": 1.5, "task": "stack", "name": "text", "inner": {"n": 3}}
    assert list(source.ids) == ["17"]
    np.savez(tmp_path / "b.npz", id=np.array("hello"), x=np.zeros(2))
    assert open_nested(tmp_path / "b.npz")[0][ID] == open_nested(tmp_path / "b.npz").ids[0] == "hello"


def test_shards_and_files_of_one_sample_share_a_directory(tmp_path):
    write_nested(tmp_path / "many.npz", [{ID: 5, "x": np.zeros(2)}, {ID: 6, "x": np.zeros(4)}])
    np.savez(tmp_path / "one.npz", x=np.asfortranarray(np.arange(6.0).reshape(3, 2)).astype(">f8"))
    source = open_nested(tmp_path)
    assert_holds(source, [{ID: "5", "x": np.zeros(2)}, {ID: "6", "x": np.zeros(4)}, {ID: "one", "x": np.arange(6.0).reshape(3, 2)}])


def test_the_table_reads_no_arrays(tmp_path):
    """A terabyte that was never written: what has to be read of it to know its length is not there."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file.create_group(f"ep{number}").create_dataset("x", (10**9 + number, 250), "float32", chunks=(1, 250))
    source = open_nested(tmp_path / "a.h5")
    assert source.table.lengths.tolist() == [10**9, 10**9 + 1, 10**9 + 2]


def test_the_table_of_shards_reads_no_leaves(tmp_path, monkeypatch):
    write_nested(tmp_path / "shards", some_samples(), shard_samples=9)
    source, read = open_nested(tmp_path / "shards"), []
    real = nested_npz._Archive.__getitem__
    monkeypatch.setattr(nested_npz._Archive, "__getitem__", lambda archive, name: (read.append(name), real(archive, name))[1])
    assert len(source.table) == 40
    assert any(name.endswith(".ends") for name in read)
    assert not any(nested_npz.LEAF.fullmatch(name) for name in read)


# Parquet.

NUMBERS = {"int32": pa.int32(), "float64": pa.float64(), "uint8": pa.uint8(), "bool": pa.bool_(), "float16": pa.float16()}


def arrow_types() -> st.SearchStrategy[pa.DataType]:
    numbers = st.sampled_from(list(NUMBERS.values()))
    blocks = st.builds(pa.list_, numbers, st.integers(1, 3))
    blocks |= st.builds(pa.list_, blocks, st.just(2))
    arrays = st.builds(pa.list_, numbers | blocks)
    leaves = numbers | arrays | blocks | st.sampled_from([pa.string(), pa.binary(), pa.large_list(pa.int64())])

    def nest(inside):
        fields = st.dictionaries(st.sampled_from("abc"), inside, min_size=1, max_size=3)
        return (
            st.builds(pa.list_, inside) | st.builds(pa.list_, inside, st.just(2)) | fields.map(lambda found: pa.struct(list(found.items())))
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
            bool(rng.integers(2)) if kind == pa.bool_() else np.float16(rng.integers(9)) if kind == pa.float16() else int(rng.integers(9))
        )
    if pa.types.is_struct(kind):
        return {field.name: draw_value(field.type, rng, nulls=nulls) for field in kind}
    if is_any_list(kind):
        count = kind.list_size if pa.types.is_fixed_size_list(kind) else int(rng.integers(4))
        inside = nulls and pa.types.is_struct(kind.value_type)
        values = [draw_value(kind.value_type, rng, nulls=False) for _ in range(count)]
        return [{key: value if rng.random() < 0.8 else None for key, value in item.items()} for item in values] if inside else values
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


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["x", "y", "stages", "compression_depth"]), arrow_types(), min_size=1),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_parquet_means_what_its_types_say(columns, sizes, nulls, seed):
    rng = np.random.default_rng(seed)
    rows = [{name: draw_value(kind, rng, nulls=nulls) for name, kind in columns.items()} for _ in range(sum(sizes))]
    schema = pa.schema(list(columns.items()))
    samples = [{name: meaning(columns[name], value) for name, value in row.items() if value is not None} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        for part, size in enumerate(sizes):
            first = sum(sizes[:part])
            arrays = [pa.array([row[name] for row in rows[first : first + size]], kind) for name, kind in columns.items()]
            pq.write_table(pa.Table.from_arrays(arrays, schema=schema), Path(folder) / f"part-{part}.parquet", row_group_size=2)
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


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0], [None]]), "row 1: an array in 'x' has a null"),
        (pa.array([[[1], None], []]), "row 0: a list in 'x' has a null"),
        (pa.array([[{"a": [1]}], [{"a": [1]}, {"a": [None]}]]), "row 1: an array in 'x/a' has a null"),
        (pa.array([[[1, 2], None], []], pa.list_(pa.list_(pa.int64(), 2))), "row 0: an array in 'x' has a null"),
        (pa.array([[1, None], None], pa.list_(pa.int64(), 2)), "row 0: an array in 'x' has a null"),
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


def test_words_of_a_dictionary_are_words(tmp_path):
    pq.write_table(pa.table({"x": pa.array(["a", "b", "a"]).dictionary_encode(), "y": pa.array([[], [], []])}), tmp_path / "a.parquet")
    assert_holds(open_nested(tmp_path / "a.parquet"), [{"x": word, "y": []} for word in "aba"])


# Processes.


@pytest.fixture
def everything(tmp_path):
    """One data set in every format."""
    samples = some_samples()
    write_nested(tmp_path / "a.h5", samples)
    write_nested(tmp_path / "shards", samples, shard_samples=9)
    write_groups(tmp_path / "groups.h5", samples)
    rows = [
        {**sample, "x": sample["x"].tolist(), "stages": [{"s": stage["s"].tolist()} for stage in sample["stages"]]} for sample in samples
    ]
    block = pa.list_(pa.list_(pa.float32(), 3))
    stages = pa.list_(pa.struct([("s", pa.list_(pa.int64()))]))
    schema = pa.schema([(ID, pa.string()), ("x", block), ("stages", stages), ("text", pa.string()), ("r", pa.float64())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "a.parquet", row_group_size=9)
    return [open_nested(tmp_path / name) for name in ("a.h5", "shards", "groups.h5", "a.parquet")], samples


@pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")  # on a machine with fewer cores
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 about threads of the parent
@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (4, "fork"), (2, "spawn"), (1, "forkserver")])
def test_workers_read_what_the_parent_reads(workers, start, everything):
    from torch.utils.data import ConcatDataset, DataLoader

    sources, samples = everything
    assert all(source[row][ID] == f"ep{row}" for source in sources for row in (0, 17, 39))  # the parent has its files open
    rows = random.Random(3).sample(range(len(sources) * len(samples)), len(sources) * len(samples))
    batches = [rows[first : first + 8] for first in range(0, len(rows), 8)]
    loader = DataLoader(ConcatDataset(sources), batch_sampler=batches, num_workers=workers, collate_fn=list, multiprocessing_context=start)
    found = list(loader)
    assert [len(batch) for batch in found] == [len(batch) for batch in batches]
    wanted = [{ID: sample[ID], **normal(sample)} for sample in samples]
    for batch, numbers in zip(found, batches, strict=True):
        assert all(same(sample, wanted[number % len(samples)]) for sample, number in zip(batch, numbers, strict=True))
    assert all(same(source[5], wanted[5]) for source in sources)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 about threads of the parent
def test_a_child_starts_with_nothing_open(everything):
    sources, _ = everything
    assert all(source[0] and source._here for source in sources)
    if not (child := os.fork()):
        os._exit(any(source._here for source in sources))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(source._here for source in sources)


def test_a_source_pickles_as_little_more_than_its_path(everything):
    sources, _ = everything
    for source in sources:
        source.table, source[0]
        assert len(pickle.dumps(source)) < 2000


def test_a_file_that_was_replaced_is_not_read_as_the_old_one(tmp_path):
    write_nested(tmp_path / "a.h5", some_samples(4))
    source = pickle.dumps(open_nested(tmp_path / "a.h5"))
    write_nested(tmp_path / "a.h5", some_samples(5))
    with pytest.raises(MismatchError, match="other samples than when it was opened"):
        pickle.loads(source)[0]


# Damage.


@pytest.mark.parametrize("name", ["a.h5", "a.npz"])
@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_flipped_byte_or_a_cut_is_noticed_or_harmless(damaged_case, name, seed):
    (data, wanted, folder), rng = damaged_case(name), random.Random(seed)
    at = rng.randrange(len(data))
    hurt = data[:at] if rng.random() < 0.2 else data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]
    (folder / name).write_bytes(hurt)
    try:
        source = open_nested(folder / name)
        found = list(source)
        assert len(source.table) == len(found)
    except BrimError as error:
        told = str(error)
    else:
        assert all(map(same, found, wanted))
        return
    assert told.startswith(str(folder / name))
    assert "\n" not in told


@pytest.fixture(scope="module")
def damaged_case(tmp_path_factory):
    folder, samples, files = tmp_path_factory.mktemp("hurt"), some_samples(12), {}

    def case(name):
        if name not in files:
            write_nested(folder / f"whole-{name}", samples)
            files[name] = (folder / f"whole-{name}").read_bytes()
        return files[name], [{ID: sample[ID], **normal(sample)} for sample in samples], folder

    return case


def test_a_damaged_array_names_its_sample_and_spares_the_others(tmp_path):
    samples = [{ID: f"ep{number}", "x": np.full(20_000, number, np.float32)} for number in range(5)]
    write_nested(tmp_path / "a.h5", samples)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[data.find(np.full(100, 3, np.float32).tobytes()) + 30_000] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    source = open_nested(tmp_path / "a.h5")
    with pytest.raises(DamagedError, match=r"a\.h5: sample 'ep3' \(row 3\) is damaged"):
        source[3]
    assert source.table.lengths.tolist() == [20_000] * 5
    assert same(source[1]["x"], samples[1]["x"])


def test_truncated_parquet_is_one_line(tmp_path):
    pq.write_table(pa.table({"x": [[1.0, 2.0]] * 50}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for size in (6, len(data) // 2, len(data) - 1):
        (tmp_path / "a.parquet").write_bytes(data[:size])
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            open_nested(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.h5", b"", "is empty"),
        ("a.h5", b"no such thing", "is not an HDF5 file"),
        ("a.h5", b"PAR1....", "is by its content a file of parquet"),
        ("a.npz", b"no such thing", "is not an NPZ file"),
        ("a.parquet", b"no such thing", "cannot be read as Parquet"),
        ("a.txt", b"words", r"unknown kind of file '.txt'; nested samples are read from .h5"),
    ],
)
def test_a_file_of_another_kind_is_one_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BrimError, match=message) as raised:
        open_nested(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert name in str(raised.value)


def test_what_is_not_a_data_set_says_what_would_be(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_nested(tmp_path / "none.h5")
    with pytest.raises(DataError, match="a directory that is not a data set"):
        open_nested(tmp_path)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        pass
    with pytest.raises(DataError, match="no samples"):
        open_nested(tmp_path / "a.h5")
    with pytest.raises(DataError, match=r"did you mean .*a\.h5"):
        open_nested(tmp_path)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(DataError, match="/x is not a group"):
        open_nested(tmp_path / "a.h5")
    with pytest.raises(DataError, match="no group '/train'; at its top are: x"):
        open_nested(tmp_path / "a.h5", root="/train")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("ep0")["up"] = h5py.SoftLink("/")
    with pytest.raises(DataError, match="without end"):
        open_nested(tmp_path / "a.h5")[0]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("ep0")["words"] = ["a", "b"]
    for ask in (lambda source: source[0], lambda source: source.table):
        with pytest.raises(DataError, match=r"sample 'ep0': words is object"):
            ask(open_nested(tmp_path / "a.h5"))


def test_another_version_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["format"] = "brim.nested/7"
    np.savez(tmp_path / "a.npz", format=np.frombuffer(b"brim.nested/7", np.uint8))
    for name in ("a.h5", "a.npz"):
        with pytest.raises(DamagedError, match=r"version brim\.nested/7, this brim reads brim\.nested/1"):
            open_nested(tmp_path / name)


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], object))
    for ask in (lambda source: source[0], lambda source: source.table):
        with pytest.raises(DataError, match="'x' holds Python objects, which are never loaded"):
            ask(open_nested(tmp_path / "a.npz"))


def test_keys_that_contradict_each_other_are_refused(tmp_path):
    for keys in (["a", "a/b"], ["a/b", "a"], ["a//b"], ["/a"]):
        np.savez(tmp_path / "a.npz", **{key: np.zeros(2) for key in keys})
        with pytest.raises(DataError, match="is not a path of keys"):
            open_nested(tmp_path / "a.npz")[0]


# Writing.


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError])
def test_an_error_leaves_what_was_there(kind, error, tmp_path):
    def broken():
        yield from some_samples(5)
        raise error("enough")

    target = tmp_path / TARGETS[kind]
    for before in (0, 1):
        with pytest.raises(error):
            write_nested(target, broken())
        assert len(list(tmp_path.iterdir())) == before
        write_nested(target, some_samples(3))
    assert_holds(open_nested(target), some_samples(3))


ENDLESS = """
import itertools, signal, sys, numpy as np
from brim.data import nested_hdf5
from brim.data.nested import write_nested
signal.signal(signal.SIGINT, signal.default_int_handler)
nested_hdf5.BUFFER_BYTES = 100_000
def samples():
    for number in itertools.count():
        if number == 500: print('busy', flush=True)
        yield {'x': np.zeros(300 + number % 50), 'y': 't' * (number % 7), 'z': [np.zeros(2)] * (number % 3)}
try:
    write_nested(sys.argv[1], samples(), **({} if sys.argv[1].endswith('.h5') else {'shard_samples': 50}))
except KeyboardInterrupt:
    print('interrupted')
"""


def stopped_writer(target: Path, how: signal.Signals, delay: float = 0) -> str:
    """What a process that writes without end has to say after a signal."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(target)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "busy\n"
        time.sleep(delay)
        os.kill(writer.pid, how)
        try:
            return writer.communicate(timeout=60)[0]
        finally:
            writer.kill()


@pytest.mark.parametrize("name", ["samples.h5", "samples"])
def test_a_writer_that_is_killed_leaves_the_old_data_set(name, tmp_path):
    stopped_writer(tmp_path / name, signal.SIGKILL)
    assert not (tmp_path / name).exists()
    write_nested(tmp_path / name, some_samples(3))
    stopped_writer(tmp_path / name, signal.SIGKILL)
    assert_holds(open_nested(tmp_path / name), some_samples(3))
    write_nested(tmp_path / name, some_samples(4))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["samples.h5", "samples"])
def test_a_writer_that_is_interrupted_stops_and_leaves_nothing(name, tmp_path):
    """Most of its time is spent inside h5py, where an interrupt would be lost."""
    assert [stopped_writer(tmp_path / name, signal.SIGINT, delay) for delay in (0, 0.03, 0.05, 0.1)] == ["interrupted\n"] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_one_line(tmp_path):
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from brim.data.nested import write_nested\n"
        "from brim.core.errors import OptionError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "for target in sys.argv[1:]:\n"
        "    try: write_nested(target, ({'x': np.random.rand(10_000)} for _ in range(2000)))\n"
        "    except OptionError as error: print(error)\n"
    )
    targets = [str(tmp_path / name) for name in ("a.h5", "a.npz", "shards")]
    done = subprocess.run([sys.executable, "-c", program, *targets], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(targets)
    assert all(line.startswith(f"cannot write {tmp_path}") for line in done.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", TARGETS)
def test_samples_that_cannot_be_kept_apart_or_batched_are_refused(kind, tmp_path):
    target = tmp_path / TARGETS[kind]
    for samples, message in (
        ([], "no samples"),
        ([{ID: "a"}, {ID: "b"}, {ID: "a"}], "'a' comes twice: samples 0 and 2"),
        ([{"x": 1}, {"x": None}], "sample 1: x is None"),
        ([{"x": "\ud800"}], "sample 0: .* is not text"),
        ([{ID: 1.5}], "sample 0: the id of a sample is 1.5"),
    ):
        with pytest.raises(DataError, match=message):
            write_nested(target, samples, **({"shard_samples": 1} if kind == "shards" else {}))
    assert list(tmp_path.iterdir()) == []


def test_targets_that_are_a_mistake_are_refused(tmp_path):
    for name, options, message in (
        ("a.parquet", {}, "one type for all rows"),
        ("a.jsonl", {}, "'.jsonl' is not a format that is written"),
        ("a.h5", {"shard_samples": 3}, "shard_samples=3 is for a directory"),
        ("a", {"shard_samples": 0}, "shard_samples must be at least 1"),
    ):
        with pytest.raises(OptionError, match=message):
            write_nested(tmp_path / name, some_samples(2), **options)
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "shard-00000.npz", x=np.zeros(2))
    with pytest.raises(OptionError, match="will not replace"):
        write_nested(tmp_path / "other", some_samples(2))
    with pytest.raises(OptionError, match="root='/a' is the group of an HDF5 file"):
        open_nested(tmp_path / "other", root="/a")
    with pytest.raises(OptionError, match="id_field='a' is a column of Parquet"):
        open_nested(tmp_path / "other", id_field="a")
