"""Files of nested samples in a world of other processes: workers read them, someone replaces them, or damages them."""

import os
import pickle
import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nested import assert_holds, normal, same, some_samples, write_groups

from brim.core.errors import BrimError, DamagedError, DataError, MismatchError
from brim.data.nested.open import open_nested, write_nested
from brim.data.nested.structure import ID

NAMES = ("a.h5", "shards", "groups.h5", "a.parquet", "files")


def write_everything(folder: Path, samples: list[dict]) -> None:
    """One data set in every format."""
    (folder / "files").mkdir(parents=True)
    write_nested(folder / "a.h5", samples)
    write_nested(folder / "shards", samples, shard_samples=9)
    write_groups(folder / "groups.h5", samples)
    for number, sample in enumerate(samples):
        stages = {f"stages/{place}/s": stage["s"] for place, stage in enumerate(sample["stages"])}
        np.savez(folder / "files" / f"{number}.npz", **stages, **{key: sample[key] for key in (ID, "x", "text", "r")})
    rows = [
        {**sample, "x": sample["x"].tolist(), "stages": [{"s": stage["s"].tolist()} for stage in sample["stages"]]}
        for sample in samples
    ]
    block = pa.list_(pa.list_(pa.float32(), 3))
    stages = pa.list_(pa.struct([("s", pa.list_(pa.int64()))]))
    schema = pa.schema(
        [(ID, pa.string()), ("x", block), ("stages", stages), ("text", pa.string()), ("r", pa.float64())]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "a.parquet", row_group_size=9)


@pytest.fixture
def everything(tmp_path):
    # NPZ of others cannot have it.
    samples = [{**sample, "text": sample["text"].replace("\0", "")} for sample in some_samples()]
    write_everything(tmp_path / "all", samples)
    return [open_nested(tmp_path / "all" / name) for name in NAMES], samples


# On a machine with fewer cores.
@pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 about threads of the parent
@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (1, "spawn"), (1, "forkserver")])
def test_workers_read_what_the_parent_reads(workers, start, everything):
    from torch.utils.data import ConcatDataset, DataLoader

    sources, samples = everything
    # The parent has its files open.
    assert all(source[row][ID] == f"ep{row}" for source in sources for row in (0, 17, 39))
    rows = random.Random(3).sample(range(len(sources) * len(samples)), len(sources) * len(samples))
    batches = [rows[first : first + 8] for first in range(0, len(rows), 8)]
    loader = DataLoader(
        ConcatDataset(sources),
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=list,
        multiprocessing_context=start,
    )
    found = list(loader)
    assert [len(batch) for batch in found] == [len(batch) for batch in batches]
    wanted = [{ID: sample[ID], **normal(sample)} for sample in samples]
    for batch, numbers in zip(found, batches, strict=True):
        assert all(same(sample, wanted[number % len(samples)]) for sample, number in zip(batch, numbers, strict=True))
    assert all(same(source[5], wanted[5]) for source in sources)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 about threads of the parent
def test_a_child_starts_with_nothing_open(everything):
    sources, _ = everything
    assert all(source[0] and (source._here or source.path.name == "files") for source in sources)
    if not (child := os.fork()):
        os._exit(any(source._here for source in sources))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(source._here or source.path.name == "files" for source in sources)


def test_a_source_pickles_as_little_more_than_its_path(everything):
    sources, _ = everything
    for source in sources:
        source.table, source[0]
        assert len(pickle.dumps(source)) < 2000 + 200 * len(getattr(source, "_files", []))


def replace(path: Path, other: Path, *, in_place: bool) -> None:
    if path.is_dir():
        for file in path.iterdir():
            replace(file, other / file.name, in_place=in_place)
    elif in_place:
        path.write_bytes(other.read_bytes())
    else:
        os.replace(other, path)


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_replaced_is_not_read_as_the_old_one(name, in_place, everything, tmp_path):
    """Other samples of the same sizes under the same ids, so that nothing else gives them away."""
    sources, samples = everything
    others = [{**sample, "x": sample["x"][::-1], "r": -sample["r"]} for sample in samples]
    write_everything(tmp_path / "other", others)
    source = sources[NAMES.index(name)]
    sent, first = pickle.dumps(source), source[0]
    if in_place:
        source._here.clear()  # HDF5 gives a process that opens a file twice the same handle, and what it remembers
    replace(tmp_path / "all" / name, tmp_path / "other" / name, in_place=in_place)
    for ask in (lambda copy: copy[0], lambda copy: copy[39], lambda copy: copy.table):
        with pytest.raises(MismatchError, match=r"changed or replaced since; open the data set again$") as raised:
            ask(pickle.loads(sent))
        assert "\n" not in str(raised.value)
    if in_place or name in ("shards", "files"):
        with pytest.raises(MismatchError, match="open the data set again"):
            source[39]
    else:
        assert same([source[0], source[39]], [first, {ID: "ep39", **normal(samples[39])}])
    assert_holds(open_nested(tmp_path / "all" / name), others)


def test_rows_of_parquet_that_were_written_over_are_not_read_as_the_old_ones(tmp_path):
    """The file is open, and knows where its row groups are; the others are just as long."""
    for number, name in enumerate(("a", "b")):
        table = pa.table({"x": np.arange(40.0) + 100 * number})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=20, use_dictionary=False, compression="none")
    source = open_nested(tmp_path / "a.parquet")
    assert source[0]["x"] == 0
    replace(tmp_path / "a.parquet", tmp_path / "b.parquet", in_place=True)
    assert source[1]["x"] == 1
    with pytest.raises(MismatchError, match="changed or replaced since; open the data set again"):
        source[20]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_gone_is_one_line(name, everything, tmp_path):
    sources, _ = everything
    sent = pickle.dumps(sources[NAMES.index(name)])
    shutil.move(tmp_path / "all" / name, tmp_path / "away")
    for ask in (lambda: pickle.loads(sent)[0], lambda: pickle.loads(sent).table):
        with pytest.raises(DataError, match="does not exist any more; open the data set again"):
            ask()


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
