"""Sources of nested samples: what is written comes back, files of other people are read, and the table needs no
contents.
"""

import os
import pickle
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nested import TARGETS, assert_holds, nested_samples, normal, same, some_samples, write_groups

from brim.core.errors import DataError
from brim.data.nested import hdf5 as nested_hdf5
from brim.data.nested import npz as nested_npz
from brim.data.nested.open import open_nested, write_nested
from brim.data.nested.structure import ID


@pytest.mark.slow
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


@pytest.mark.slow
@settings(max_examples=25)
@given(nested_samples(min_size=2))
def test_the_fingerprint_is_of_the_samples_and_not_of_the_files(samples):
    with tempfile.TemporaryDirectory() as folder:
        prints = set()
        for name, options in (
            ("a.h5", {}),
            ("b.h5", {}),
            ("a.npz", {}),
            ("a", {"shard_samples": 1}),
            ("b", {"shard_samples": 3}),
        ):
            write_nested(Path(folder) / name, samples, **options)
            prints.add(open_nested(Path(folder) / name).fingerprint)
        assert len(prints) == 1
        ids = [sample.get(ID, number) for number, sample in enumerate(samples)]
        turned = [{**sample, ID: id} for sample, id in zip(samples, ids, strict=True)][::-1]
        write_nested(Path(folder) / "turned.h5", turned)
        assert open_nested(Path(folder) / "turned.h5").fingerprint not in prints


@pytest.mark.slow
def test_samples_that_do_not_fit_in_the_buffer_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(nested_hdf5, "BUFFER_BYTES", 2000)
    held = []
    monkeypatch.setattr(
        nested_hdf5, "_append", lambda *parts, real=nested_hdf5._append: (held.append(parts), real(*parts))
    )
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
    assert sorted(file.name for file in (tmp_path / "shards").iterdir()) == [
        f"shard-0000{number}.npz" for number in range(5)
    ]
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


def flat_keys(value, path: str = "") -> dict:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, inside in pairs:
        found |= flat_keys(inside, f"{path}{key}/") if isinstance(inside, dict | list) else {f"{path}{key}": inside}
    return found


def can_be_told(value, *, empty: bool) -> bool:
    """A dict of numbers is a list in these files, bytes are text, and nothing can be in an NPZ file that is empty."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return not isinstance(value, bytes) and (not isinstance(value, str) or "\0" not in value)
    listed = isinstance(value, dict) and bool(value) and set(value) == {str(number) for number in range(len(value))}
    return (bool(inside) or empty) and not listed and all(can_be_told(each, empty=empty) for each in inside)


def lists_of(value, path: tuple = ()) -> set[tuple]:
    """Where lists are that have something in them."""
    if isinstance(value, list):
        return {path for _ in value[:1]}.union(*(lists_of(each, (*path, "any")) for each in value))
    return (
        set().union(*(lists_of(each, (*path, key)) for key, each in value.items()))
        if isinstance(value, dict)
        else set()
    )


def settled(value, lists: set[tuple], path: tuple = ()):
    """The same, with a list for what is empty where others have lists, and else a dict."""
    if isinstance(value, dict | list) and not value:
        return [] if path in lists else {}
    if isinstance(value, list):
        return [settled(each, lists, (*path, "any")) for each in value]
    return (
        {key: settled(each, lists, (*path, key)) for key, each in value.items()} if isinstance(value, dict) else value
    )


PLAIN = ("x", "y", "states", "stages", "0", "a b", "é")


@settings(max_examples=60)
@given(nested_samples(keys=PLAIN, ids=False))
def test_every_group_of_a_file_is_a_sample(samples):
    samples = [
        {ID: f"ep{number}", **normal(sample)}
        for number, sample in enumerate(samples)
        if can_be_told(normal(sample), empty=True)
    ]
    samples = samples or some_samples(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        write_groups(path, samples, root="/train")
        source, lists = open_nested(path, root="/train"), set().union(*map(lists_of, samples))
        wanted = [settled(sample, lists) for sample in samples]
        assert same(open_nested(path, root="/train")[-1], wanted[-1])
        assert_holds(source, wanted)
        assert_holds(pickle.loads(pickle.dumps(source)), wanted)


def test_an_empty_group_is_an_empty_list_where_any_sample_has_a_list(tmp_path):
    samples = [
        {ID: "ep0", "compression_stages": [], "info": {}},
        {
            ID: "ep1",
            "compression_stages": [{"s": np.zeros(2), "sub": []}, {"s": np.zeros(1), "sub": [{"t": np.zeros(3)}]}],
            "info": {},
        },
        {ID: "ep2", "compression_stages": [], "info": {"x": np.zeros(1)}},
    ]
    write_groups(tmp_path / "a.h5", samples)
    for rows in ((0, 1, 2), (2, 1, 0)):
        source = open_nested(tmp_path / "a.h5")
        for again in (source, pickle.loads(pickle.dumps(source))):
            assert all(same(again[row], samples[row]) for row in rows)
    assert_holds(open_nested(tmp_path / "a.h5"), samples)
    write_groups(tmp_path / "b.h5", samples[::2])
    assert_holds(open_nested(tmp_path / "b.h5"), [{**sample, "compression_stages": {}} for sample in samples[::2]])


def test_a_sample_beside_broken_ones_is_read(tmp_path):
    """The file is searched for lists, and what cannot be followed there is the trouble of the sample it is in."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("ep0/stages")
        file["ep1/gone"], file["ep2/gone"] = h5py.SoftLink("/none"), h5py.ExternalLink("none.h5", "/none")
        file.create_group(b"ep3/\xff")
        file.create_group("ep4/stages/0")["x"] = np.zeros(1)
    source = open_nested(tmp_path / "a.h5")
    assert source[0] == {ID: "ep0", "stages": []}
    for row, message in (
        (1, "'ep1': gone is a link .* '/none'"),
        (2, "'ep2': gone is a link .* 'none.h5:/none'"),
        (3, "not UTF-8"),
    ):
        with pytest.raises(DataError, match=message):
            source[row]


@pytest.mark.parametrize(
    ("name", "put", "message"),
    [
        (
            "ep1",
            lambda file: file.__setitem__("ep1", h5py.SoftLink("/none")),
            r"/ep1 is a link that leads nowhere: to '/none'",
        ),
        (
            "ep1",
            lambda file: file.__setitem__("ep1", h5py.ExternalLink("b.h5", "/x")),
            r"/ep1 is a link that leads nowhere: to 'b.h5:/x'",
        ),
        ("bytes", lambda file: file.create_group(b"ep\xff"), r"has the name b'ep\\xff' in it, which is not UTF-8"),
        (
            "bytes inside",
            lambda file: file["ep0"].create_group(b"\xff"),
            r"sample 'ep0': .* b'\\xff' in it, which is not UTF-8",
        ),
        (
            "attribute",
            lambda file: file["ep0"].attrs.create(b"\xff", 1),
            r"sample 'ep0': .* b'\\xff' in it, which is not UTF-8",
        ),
        (
            "text",
            lambda file: file["ep0"].__setitem__("t", np.bytes_(b"\xff")),
            "sample 'ep0': t is text that is not UTF-8",
        ),
        (
            "id",
            lambda file: file["ep0"].attrs.create("id", np.bytes_(b"\xff")),
            "sample 'ep0': the id .* is not text in UTF-8",
        ),
        (
            "ids",
            lambda file: file["ep0"].__setitem__("id", np.arange(3)),
            "sample 'ep0': the id of a sample is of type ndarray",
        ),
        ("float", lambda file: file["ep0"].__setitem__("id", 2.5), "sample 'ep0': the id of a sample is 2.5"),
    ],
)
def test_what_is_not_a_sample_in_hdf5_is_called_what_it_is(name, put, message, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("ep0")["x"] = np.zeros(2)
        put(file)
    for ask in (lambda source: source[0], lambda source: source.table):
        with pytest.raises(DataError, match=message) as raised:
            ask(open_nested(tmp_path / "a.h5"))
        assert str(raised.value).count("a.h5") == 1
        assert "\n" not in str(raised.value)


def test_the_id_in_a_file_keeps_its_type(tmp_path):
    for number, id in enumerate((30, np.int16(20), np.uint64(10))):
        np.savez(tmp_path / f"{number}.npz", id=id, x=np.zeros(2))
    source = open_nested(tmp_path)
    assert list(source.ids) == [sample[ID] for sample in source] == list(source.table.ids) == [30, 20, 10]
    np.savez(tmp_path / "other.npz", id=b"forty", x=np.zeros(2))
    assert list(open_nested(tmp_path).ids) == ["30", "20", "10", "forty"]


@pytest.mark.parametrize(
    ("id", "what"),
    [
        (np.arange(3), "of type ndarray"),
        (np.array(["a", "b"]), "of type ndarray"),
        (2.5, "2.5"),
        (True, "True"),
        (np.datetime64("2020-01-01"), "of type date"),
    ],
)
def test_an_id_is_text_or_an_integer(id, what, tmp_path):
    np.savez(tmp_path / "a.npz", id=id, x=np.zeros(2))
    with pytest.raises(DataError, match=rf"a\.npz: the id of a sample is {what}; an id is a string or an integer"):
        open_nested(tmp_path / "a.npz")


def test_an_id_that_is_not_text_is_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", id=np.array("\ud800"), x=np.zeros(2))
    name = os.fsdecode(b"ep\xff.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    os.rename(tmp_path / "b.npz", tmp_path / name)
    for file in (tmp_path / "a.npz", tmp_path / name):
        with pytest.raises(DataError, match="is not text in UTF-8"):
            open_nested(file)


@settings(max_examples=60)
@given(nested_samples(keys=PLAIN, ids=False))
def test_every_other_npz_file_is_a_sample(samples):
    samples = [
        {ID: f"ep{number}", **normal(sample)}
        for number, sample in enumerate(samples)
        if can_be_told(normal(sample), empty=False)
    ]
    samples = samples or some_samples(2)
    with tempfile.TemporaryDirectory() as folder:
        for sample in samples:
            np.savez(
                Path(folder) / f"{sample[ID]}.npz",
                **flat_keys({key: value for key, value in sample.items() if key != ID}),
            )
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
    assert_holds(
        source,
        [{ID: "5", "x": np.zeros(2)}, {ID: "6", "x": np.zeros(4)}, {ID: "one", "x": np.arange(6.0).reshape(3, 2)}],
    )


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
    monkeypatch.setattr(
        nested_npz._Archive, "__getitem__", lambda archive, name: (read.append(name), real(archive, name))[1]
    )
    assert len(source.table) == 40
    assert any(name.endswith(".ends") for name in read)
    assert not any(nested_npz.LEAF.fullmatch(name) for name in read)
