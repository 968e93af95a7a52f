import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.atomic import atomic_directory, atomic_file, check_target
from brim.core.columns import Columns, write_columns
from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.fingerprint import fingerprint

FORMAT = "brim.test/1"
CONTENTS = {"a": np.arange(1000, dtype=np.int32), "b": np.array([2**40, -1]), "empty": np.empty(0, np.int64)}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.brim"
    write_columns(path, FORMAT, {"rows": 3, "name": "é"}, CONTENTS)
    return path


def test_columns_come_back_as_they_were(file):
    columns = Columns(file, FORMAT)
    assert columns.meta == {"rows": 3, "name": "é"}
    assert list(columns) == list(CONTENTS)
    for name, array in CONTENTS.items():
        assert np.array_equal(columns[name], array)
        assert columns[name].dtype == array.dtype
        assert not columns[name].flags.writeable


def test_columns_travel_to_another_process_as_their_path(file):
    again = pickle.loads(pickle.dumps(Columns(file, FORMAT)))
    assert np.array_equal(again["a"], CONTENTS["a"])


@pytest.mark.slow
def test_a_truncated_file_is_refused_at_every_length(file):
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(BrimError):
            Columns(file, FORMAT)


@given(st.data())
def test_a_flipped_bit_never_changes_what_is_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flip") / "x.brim"
    write_columns(path, FORMAT, {"rows": 3}, CONTENTS)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        columns = Columns(path, FORMAT)
        read = {name: columns[name] for name in columns}
    except BrimError:
        return
    assert columns.meta == {"rows": 3}
    assert all(np.array_equal(read[name], array) for name, array in CONTENTS.items())


def test_opening_reads_no_column_and_using_one_checks_it(file):
    raw = bytearray(file.read_bytes())
    raw[64] ^= 1
    file.write_bytes(raw)
    columns = Columns(file, FORMAT)
    assert np.array_equal(columns["b"], CONTENTS["b"])
    with pytest.raises(DamagedError, match="column 'a' is damaged"):
        columns["a"]


def test_other_kinds_versions_and_files_are_named(file, tmp_path):
    with pytest.raises(DataError, match=r"is not a brim\.plan file"):
        Columns(file, "brim.plan/1")
    with pytest.raises(DamagedError, match=r"version brim\.test/1, this brim reads brim\.test/2"):
        Columns(file, "brim.test/2")
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="is empty"):
        Columns(tmp_path / "empty", FORMAT)
    with pytest.raises(DataError, match="No such file"):
        Columns(tmp_path / "nothing", FORMAT)
    with pytest.raises(DataError, match="directory"):
        Columns(tmp_path, FORMAT)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "x"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(target) as file:
        file.write(b"new")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


KILLED = """
import os, signal, sys
from brim.core.atomic import atomic_file
with atomic_file(sys.argv[1]) as file:
    file.write(b"new")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_write_leaves_the_old_file_and_the_next_write_cleans_up(tmp_path):
    target = tmp_path / "x"
    target.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    with atomic_file(target) as file:
        file.write(b"new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_appears_whole_and_replaces_only_its_own_kind(tmp_path):
    target = tmp_path / "d"

    def ours(path: Path) -> bool:
        return (path / "mark").exists()

    for text in ("one", "two"):
        with atomic_directory(target, replaces=ours) as beside:
            assert beside != target
            (beside / "mark").write_text(text)
    assert (target / "mark").read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]
    (target / "mark").unlink()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(OptionError, match="holds other files"), atomic_directory(target, replaces=ours):
        pass
    assert (target / "thesis.tex").exists()
    with (
        pytest.raises(OptionError, match="a file is in the way"),
        atomic_directory(target / "thesis.tex", replaces=ours),
    ):
        pass


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    with (
        pytest.raises(OptionError, match=r"cannot write .*x: No space left on device"),
        atomic_file(tmp_path / "x") as file,
    ):
        with open("/dev/full", "wb", buffering=0) as full:
            file.write(b"a part")
            full.write(b"the rest")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(OptionError, match=r"cannot write .*file/x: .*file is a file"),
        atomic_file(tmp_path / "file" / "x"),
    ):
        pass
    with pytest.raises(OptionError, match="it is a directory"), atomic_file(tmp_path):
        pass


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), values),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), values),
)
def test_fingerprints_are_equal_exactly_when_the_parts_are(left, right):
    same = fingerprint(**left) == fingerprint(**right)
    assert same == (repr(sorted(left.items())) == repr(sorted(right.items())))
    assert fingerprint(**left) == fingerprint(**dict(reversed(left.items())))


def test_fingerprints_tell_arrays_apart_by_type_shape_and_numbers():
    arrays = [np.arange(4), np.arange(4, dtype=np.int32), np.arange(4).reshape(2, 2), np.arange(5), np.arange(4)[::-1]]
    assert len({fingerprint(x=array) for array in arrays}) == len(arrays)
    assert fingerprint(x=np.arange(4, dtype=">i8")) == fingerprint(x=np.arange(4, dtype="<i8"))
    assert fingerprint(x=np.arange(8)[::2]) == fingerprint(x=np.array([0, 2, 4, 6]))


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere" / "file")
    with atomic_file(link) as file:
        file.write(b"whole")
    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"whole"


def test_what_would_be_in_the_way_is_said_beforehand(tmp_path):
    (tmp_path / "file").touch()
    check_target(tmp_path / "new" / "x")
    with pytest.raises(OptionError, match="it is a directory"):
        check_target(tmp_path)
    with pytest.raises(OptionError, match="file is a file"):
        check_target(tmp_path / "file" / "x" / "y")


def test_a_pipe_is_written_into_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        with atomic_file(pipe) as file:
            file.write(b"whole")
        assert reader.stdout.read() == b"whole"
    assert pipe.is_fifo()
