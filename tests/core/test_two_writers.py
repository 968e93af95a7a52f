"""Several processes write one target, and some of them are killed: a reader sees the old or the new, whole, never
neither.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.writers import read, write

from brim.core import atomic, temporary
from brim.core.atomic import atomic_file, exchange, recover
from brim.core.errors import BrimError, OptionError
from brim.core.lock import locked
from brim.core.temporary import is_leftover


def without_leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


CHILD = """
import os, sys
from pathlib import Path
from brim.core import atomic
{prepare}
sys.path.insert(0, {here!r})
from support.writers import write
{body}
"""


def child(body: str, prepare: str = "") -> subprocess.Popen[bytes]:
    code = CHILD.format(prepare=prepare, here=str(Path(__file__).parents[1]), body=body)
    return subprocess.Popen([sys.executable, "-c", code])


def test_two_processes_that_replace_one_directory_leave_one_whole_version(tmp_path):
    target = tmp_path / "d"
    write(target, "first")
    body = "for turn in range(40): write(Path({!r}), {!r} + str(turn))"
    writers = [child(body.format(str(target), who)) for who in ("a", "b")]
    seen: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        handle = os.open(target, os.O_RDONLY)  # never "no such directory"
        os.close(handle)
        seen.add(os.readlink(target) if target.is_symlink() else "directory")
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == {"directory"}
    assert read(target) in ("a39", "b39")
    assert without_leftovers(tmp_path) == []


def test_two_processes_that_write_one_file_leave_one_whole_version(tmp_path):
    target = tmp_path / "f"
    body = """
from brim.core.atomic import atomic_file
for turn in range(200):
    with atomic_file({!r}) as file:
        file.write({!r})
        file.flush()
        file.write({!r})
"""
    sizes = {b"a": 100_000, b"b": 50_000}
    writers = [child(body.format(str(target), who, who * (size - 1))) for who, size in sizes.items()]
    while any(writer.poll() is None for writer in writers):
        if target.exists():
            data = target.read_bytes()
            assert data == data[:1] * sizes[data[:1]]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert without_leftovers(tmp_path) == []


KILLED_AT = """
left = [{at}]
def stopping(function, after):
    def call(*args, **options):
        if not after:
            left[0] -= 1
            if left[0] < 0: os._exit(9)
        result = function(*args, **options)
        if after:
            left[0] -= 1
            if left[0] < 0: os._exit(9)
        return result
    return call
for module, name in ((os, "rename"), (os, "fsync"), (os, "unlink"), (os, "rmdir"), (atomic, "exchange")):
    setattr(module, name, stopping(getattr(module, name), {after}))
"""
NO_EXCHANGE = "atomic.exchange = lambda one, other: False\n"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fallback", [False, True])
def test_killed_at_any_step_of_a_replacement_the_old_or_the_new_directory_is_there(tmp_path, after, fallback):
    outcomes: list[str] = []
    for at in range(40):
        target = tmp_path / f"d{at}"
        write(target, "old")
        prepare = (NO_EXCHANGE if fallback else "") + KILLED_AT.format(at=at, after=after)
        writer = child(f"write(Path({str(target)!r}), 'new')", prepare)
        status = writer.wait()
        if fallback:
            recover(target)
        outcomes.append(read(target))
        write(target, "again")
        assert read(target) == "again"
        assert without_leftovers(tmp_path) == []
        if status == 0:
            break
    else:
        pytest.fail("the writer was killed every time")
    assert outcomes[0] == "old"
    assert outcomes[-1] == "new"
    assert outcomes == sorted(outcomes, reverse=True)  # first only old ones, then only new ones
    assert len(outcomes) > 4


def test_a_rename_that_fails_puts_the_old_directory_back(tmp_path, monkeypatch):
    target = tmp_path / "d"
    write(target, "old")
    monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    rename = os.rename

    def failing(one, other):
        if Path(other) == target and str(one).endswith(".tmp") and not (target.exists() and any(target.iterdir())):
            raise OSError(5, "Input/output error")
        rename(one, other)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OptionError, match=r"cannot write .*d: Input/output error"):
        write(target, "new")
    monkeypatch.undo()
    assert read(target) == "old"
    assert without_leftovers(tmp_path) == []


def test_this_system_exchanges_directories_in_one_step(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange names")
    assert [(tmp_path / "a" / "b").exists(), (tmp_path / "b" / "a").exists()] == [True, True]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "nothing")


def test_a_link_to_a_directory_stays_and_the_directory_is_replaced(tmp_path):
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "real") == "new"


def test_a_lock_names_the_process_that_has_it(tmp_path):
    with locked(tmp_path / "x"):
        with pytest.raises(BrimError) as caught, locked(tmp_path / ".." / tmp_path.name / "x", name="x"):
            pass
        assert f"another process is writing x (process {os.getpid()}, since 20" in str(caught.value)
        with locked(tmp_path / "y") as waited:
            assert not waited
    assert list(tmp_path.iterdir()) == []


def test_a_lock_can_be_waited_for(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "x"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with pytest.raises(BrimError), locked(tmp_path / "x", wait=0.1):
        pass
    leave.set()
    with locked(tmp_path / "x", wait=60) as waited:
        assert waited in (True, False)  # the other thread may have been quick
    thread.join()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    body = (
        f"from brim.core.lock import locked\nwith locked({str(tmp_path / 'x')!r}): os.kill(os.getpid(), "
        f"{int(signal.SIGKILL)})"
    )
    assert child(body).wait() == -signal.SIGKILL
    assert without_leftovers(tmp_path) == [".x.lock"]
    with locked(tmp_path / "x"):
        pass
    assert without_leftovers(tmp_path) == []


def test_locks_exclude_each_other_between_processes(tmp_path):
    """Every process reads a number and writes the next one: without a lock, some would be lost."""
    (tmp_path / "n").write_text("0")
    body = f"""
from brim.core.lock import locked
path = Path({str(tmp_path / "n")!r})
for turn in range(100):
    with locked(path, wait=60):
        number = int(path.read_text())
        path.write_text(str(number + 1))
"""
    assert [process.wait() for process in [child(body) for _ in range(3)]] == [0, 0, 0]
    assert (tmp_path / "n").read_text() == "300"


def test_what_others_are_writing_is_not_cleaned_up(tmp_path, monkeypatch):
    with atomic_file(tmp_path / "x") as file:
        file.write(b"first")
        with atomic_file(tmp_path / "x") as other:
            other.write(b"second")
        assert len(without_leftovers(tmp_path)) == 1
    assert (tmp_path / "x").read_bytes() == b"first"  # the last one to finish wins
    elsewhere = tmp_path / ".x.00000000-1-00000000.tmp"
    elsewhere.touch()
    with atomic_file(tmp_path / "x"):
        pass
    assert elsewhere.exists()  # of another machine, whose processes cannot be seen
    os.utime(elsewhere, (time.time() - 2 * temporary.DAY,) * 2)
    with atomic_file(tmp_path / "x"):
        pass
    assert without_leftovers(tmp_path) == []


def test_a_large_directory_is_searched_for_leftovers_once(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary, "LARGE", 3)
    for number in range(5):
        (tmp_path / str(number)).touch()
    leftover = tmp_path / f".x.{temporary._host()}-{2**22 + 1}-00000000.tmp"  # no process has a number so high
    for there in (False, True):
        leftover.touch()
        with atomic_file(tmp_path / "x"):
            pass
        assert leftover.exists() == there


def test_long_names_can_be_written(tmp_path):
    for name in ("n" * 255, "ü" * 127):
        with atomic_file(tmp_path / name) as file:
            file.write(b"whole")
        assert (tmp_path / name).read_bytes() == b"whole"
        with locked(tmp_path / name):
            pass


def test_leftovers_are_known_by_their_names():
    assert all(map(is_leftover, [".x.tmp", ".x.0a-1-2b.tmp", ".x.lock", ".plan.old"]))
    assert not any(map(is_leftover, ["x.tmp", ".tokens.brim", ".x.journal", "plan"]))
