"""Attempts in real processes that really run out of memory, die, hang and fail."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from brim import BrimError, OptionError
from brim.analyze.capacity.attempts import Attempts
from brim.analyze.capacity.memory import memory_available
from brim.analyze.capacity.search import Search, find_capacity

pytestmark = pytest.mark.slow  # processes that are killed, and waited for

MB = 10**6
LIMIT = 300 * MB
PATIENCE = 60


class Hoard:
    """A step of size n holds n MB."""

    def prepare(self, size):
        return lambda: np.ones(size * MB // 8).sum()

    def peak(self):
        return None

    def facts(self):
        return {"work": "hoard"}


class Device(Hoard):
    """Its memory is elsewhere."""

    def peak(self):
        return 77


class Clumsy(Hoard):
    """Sizes below 10 work; the others go wrong, each in its way."""

    def prepare(self, size):
        return super().prepare(size) if size < 10 else WAYS[size]


def no_memory():
    raise MemoryError("Unable to allocate 9 PiB")


def torch_no_memory():
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 "
        "bytes."
    )


def bug():
    raise ValueError("seventeen\nis not a size")


def our_error():
    raise OptionError("no such model")


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def leave():
    os._exit(3)


def hang():
    time.sleep(10 * PATIENCE)


WAYS = {
    10: no_memory,
    11: torch_no_memory,
    12: bug,
    13: our_error,
    14: kill_myself,
    15: segfault,
    16: hang,
    17: leave,
    18: lambda: time.sleep(0.02),
}


class BrokenFromTheStart(Hoard):
    def __init__(self):
        WAYS[int(os.environ["WAY"])]()


class Greedy(Hoard):
    def __init__(self):
        self.held = np.ones(LIMIT // 8 + 1)


class KilledOnce(Hoard):
    """The first time, by somebody else."""

    def prepare(self, size):
        if not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            kill_myself()
        return super().prepare(size)


def gone(pid):
    """Whether a process is no more. One that nobody has waited for would still be there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_what_exceeds_the_limit_is_killed_and_the_next_attempt_works():
    with Attempts(Hoard, memory=LIMIT) as attempt:
        first = attempt.pid
        assert attempt(5).fits
        assert attempt.pid == first
        too_much = attempt(2000)
        assert (too_much.why, too_much.detail) == ("out of memory", "above 300 MB")
        assert too_much.peak > LIMIT
        assert gone(first)
        again = attempt(20)
        assert again.fits
        assert 20 * MB < again.peak < LIMIT
        second = attempt.pid
        assert second != first
    assert gone(second)


def test_a_peak_is_of_one_attempt_and_not_of_those_before():
    with Attempts(Hoard, memory=2 * LIMIT) as attempt:
        large, small = attempt(200).peak, attempt(1).peak
    assert large - small > 150 * MB


def test_a_search_finds_how_much_a_process_may_hold():
    with Attempts(Hoard, memory=LIMIT) as attempt:
        capacity = find_capacity(attempt, Search(unit="MB", start=50, multiple=10), measured=attempt.facts)
        pid = attempt.pid
    assert pid is None or gone(pid)
    assert capacity.limit == "out of memory"
    assert 100 <= capacity.largest.size < 300
    assert capacity.largest.peak <= LIMIT
    assert capacity.bytes.per_unit == pytest.approx(MB, rel=0.3)
    assert capacity.measured["memory_limit"] == LIMIT
    assert capacity.measured["work"] == "hoard"


@pytest.mark.parametrize(
    ("way", "why", "detail"),
    [
        (10, "out of memory", "Unable to allocate 9 PiB"),
        (11, "out of memory", "can't allocate memory"),
        (14, "killed", "by SIGKILL"),
        (15, "killed", "by SIGSEGV"),
        (17, "killed", "ended with status 3"),
    ],
)
def test_a_failed_attempt_says_why_and_the_next_one_works(way, why, detail):
    with Attempts(Clumsy) as attempt:
        trial = attempt(way)
        assert (trial.fits, trial.why) == (False, why)
        assert detail in trial.detail
        assert attempt.pid is None
        assert attempt(1).fits


def test_a_child_that_hangs_is_too_slow_and_gone():
    with Attempts(Clumsy, patience=0.5) as attempt:
        pid = attempt.pid
        trial = attempt(16)
    assert (trial.why, trial.seconds) == ("too slow", None)
    assert gone(pid)


def test_steps_that_take_longer_than_they_may_are_too_slow():
    with Attempts(Clumsy, max_seconds=0.01, steps=5, patience=PATIENCE) as attempt:
        trial = attempt(18)
    assert trial.why == "too slow"
    assert trial.seconds >= 0.02


def test_an_error_that_is_not_about_memory_is_an_error_here():
    with Attempts(Clumsy) as attempt:
        pid = attempt.pid
        with pytest.raises(BrimError, match="the work failed with ValueError: seventeen is not a size") as raised:
            attempt(12)
        assert gone(pid)
        assert "in bug" in raised.value.__notes__[0]
        with pytest.raises(OptionError, match=r"^no such model$"):
            attempt(13)
        assert attempt(1).fits


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        (12, BrimError, "the work failed with ValueError: seventeen"),
        (13, OptionError, "no such model"),
        (10, OptionError, "too little to get ready"),
        (14, BrimError, "did not get ready: killed, by SIGKILL"),
    ],
)
def test_a_child_that_never_gets_ready_is_an_error(way, kind, message, monkeypatch):
    monkeypatch.setenv("WAY", str(way))
    attempts = Attempts(BrokenFromTheStart)
    with pytest.raises(kind, match=message):
        attempts.__enter__()
    assert attempts.pid is None


def test_too_little_memory_to_begin_with_is_a_wrong_option():
    with pytest.raises(OptionError, match="300 MB of memory are too little to get ready for the first attempt"):
        Attempts(Greedy, memory=LIMIT).__enter__()


def test_work_that_a_fresh_interpreter_cannot_find_is_an_error(monkeypatch):
    monkeypatch.setattr(Hoard, "__module__", "nowhere_to_be_found")
    monkeypatch.setitem(sys.modules, "nowhere_to_be_found", sys.modules[__name__])
    with pytest.raises(BrimError, match="No module named 'nowhere_to_be_found'"):
        Attempts(Hoard).__enter__()


def test_the_memory_of_a_device_is_not_the_host_s():
    with Attempts(Device, memory=1000) as attempt:
        assert attempt(10).peak == 77


def test_ctrl_c_leaves_no_process():
    with pytest.raises(KeyboardInterrupt):
        with Attempts(Clumsy) as attempt:
            pid = attempt.pid
            threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
            attempt(16)
    assert gone(pid)


def orphan(report):
    attempt = Attempts(Clumsy).__enter__()
    report.send(attempt.pid)
    attempt(16)


def test_a_killed_parent_leaves_no_orphan():
    mine, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context("spawn").Process(target=orphan, args=(theirs,))
    parent.start()
    assert mine.poll(PATIENCE)
    pid = mine.recv()
    assert not gone(pid)
    parent.kill()
    parent.join()
    deadline = time.monotonic() + PATIENCE
    while not gone(pid) and not is_zombie(pid):  # whoever adopted it may not have waited for it yet
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_the_child_offers_itself_to_the_kernel_first():
    with Attempts(Hoard) as attempt:
        with open(f"/proc/{attempt.pid}/oom_score_adj") as file:
            assert file.read().strip() == "1000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0}, "got 0"),
        ({"max_seconds": 0}, "got 0"),
        ({"steps": 0}, "got 0"),
        ({"max_seconds": float("nan")}, "got nan"),
    ],
)
def test_numbers_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Attempts(Hoard, **options)


def system(root, *, free, **files):
    """A machine's files below a directory."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {free // 1024} kB\n")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


V2 = "sys/fs/cgroup/a"
V1 = "sys/fs/cgroup/memory/a"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 8 * 2**30),
        ({"proc/self/cgroup": "0::/a/b"}, 8 * 2**30),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                f"{V2}/memory.max": 2**30,
                f"{V2}/memory.current": 500,
                f"{V2}/memory.stat": "inactive_file 200",
            },
            2**30 - 300,
        ),
        (
            {
                "proc/self/cgroup": "0::/a",
                f"{V2}/memory.max": "max",
                f"{V2}/memory.current": 1,
                f"{V2}/memory.stat": "",
            },
            8 * 2**30,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n0::/",
                f"{V1}/memory.limit_in_bytes": 2**29,
                f"{V1}/memory.usage_in_bytes": 2**28,
                f"{V1}/memory.stat": "cache 5\ntotal_inactive_file 7",
            },
            2**28 + 7,
        ),
    ],
)
def test_what_is_available_is_the_least_of_the_machine_and_its_cgroups(tmp_path, files, left):
    assert memory_available(system(tmp_path, free=8 * 2**30, **files)) == left


def test_what_is_available_here_is_a_part_of_the_memory():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory_available() <= total


def test_importing_the_attempts_loads_no_torch():
    check = "import sys, brim.analyze.capacity.attempts, brim.train.measured_step; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_child_that_somebody_else_killed_gets_a_second_attempt(tmp_path, monkeypatch):
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    with Attempts(KilledOnce, memory=LIMIT) as attempt:
        assert attempt(5).fits
    assert (tmp_path / "mark").exists()
