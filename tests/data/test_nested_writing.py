"""Writing nested samples: whole or not at all, whatever stops the writer, and only what can be read back."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.nested import TARGETS, assert_holds, some_samples

from brim.core.errors import DataError, OptionError
from brim.data.nested.open import open_nested, write_nested
from brim.data.nested.structure import ID


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
from brim.data.nested import hdf5 as nested_hdf5
from brim.data.nested.open import write_nested
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["samples.h5", "samples"])
def test_a_writer_that_is_interrupted_stops_and_leaves_nothing(name, tmp_path):
    """Most of its time is spent inside h5py, where an interrupt would be lost."""
    assert [stopped_writer(tmp_path / name, signal.SIGINT, delay) for delay in (0, 0.03, 0.05, 0.1)] == [
        "interrupted\n"
    ] * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["samples.npz", "samples"])
def test_an_interrupt_between_opening_and_closing_a_member_is_an_interrupt(name, tmp_path, monkeypatch):
    def open_and_interrupt(archive, *arguments, real=zipfile.ZipFile.open, **options):
        member = real(archive, *arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return member

    monkeypatch.setattr(zipfile.ZipFile, "open", open_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_nested(tmp_path / name, some_samples(3))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_one_line(tmp_path):
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from brim.data.nested.open import write_nested\n"
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
        ([{ID: "a"}, {ID: "b"}, {ID: "a"}], "'a' comes twice: sample 0 and sample 2"),
        ([{"x": 1}, {"x": None}], "sample 1: x is None"),
        ([{"x": "\ud800"}], "sample 0: .* is not text"),
        ([{ID: "a"}, {ID: "\ud800"}], "sample 1: .* not valid text"),
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
