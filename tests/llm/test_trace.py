import os
import resource
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.llm import trace as trace_module
from brim.llm.trace import HEADER, Trace, read_trace

texts = st.text(st.characters(codec=None, exclude_categories=()))  # halves of surrogate pairs, too
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
events = st.lists(st.dictionaries(texts, values, max_size=4), max_size=6)


@settings(max_examples=40, deadline=None)
@given(events, events)
def test_events_come_back_in_order_also_when_a_trace_is_appended_to(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    for some in (first, second):
        with Trace(path) as trace:
            for event in some:
                trace.write(event)
        assert (trace.events, trace.lost) == (len(some), 0)
    assert list(read_trace(path)) == first + second
    assert path.read_bytes().startswith(HEADER)
    assert path.read_bytes().count(b'"format":"brim.llm-trace/1"') == 1


def test_an_event_is_written_as_it_was_when_it_was_given(tmp_path):
    event = {"number": np.float32(0.5), "of": [1]}
    with Trace(tmp_path / "t.jsonl") as trace:
        trace.write(event)
        event["of"].append(2)
        with pytest.raises(TypeError):
            trace.write({"object": object()})
    assert list(read_trace(tmp_path / "t.jsonl")) == [{"number": 0.5, "of": [1]}]


def test_events_reach_the_file_without_closing_by_time_or_by_size(tmp_path, monkeypatch):
    for name, value in (("INTERVAL", 0.01), ("FULL", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(trace_module, "INTERVAL", 3600.0)
            patch.setattr(trace_module, name, value)
            with Trace(tmp_path / name) as trace:
                trace.write({"text": "x" * 200})
                poll = threading.Event()
                while not list(read_trace(tmp_path / name)):
                    poll.wait(0.005)


def test_only_the_owner_can_read_a_trace_whatever_the_umask_and_a_wider_one_is_narrowed(tmp_path):
    path = tmp_path / "new" / "t.jsonl"
    before = os.umask(0)
    try:
        for _ in range(2):
            with Trace(path):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o644)
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "contents", [b"notes\n", b"{}\n", b"[1]\n", b'{"format": "other/1"}\n', b"\xff\xfe", b"x" * 10**6]
)
def test_another_file_is_refused_and_left_as_it_is(tmp_path, contents):
    path = tmp_path / "notes"
    path.write_bytes(contents)
    path.chmod(0o644)
    for use in (Trace, lambda path: list(read_trace(path))):
        with pytest.raises(DataError, match="notes is not a trace of brim; choose another file"):
            use(path)
    assert path.read_bytes() == contents
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_trace_of_another_version_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(HEADER.replace(b"/1", b"/2"))
    for use in (Trace, lambda path: list(read_trace(path))):
        with pytest.raises(DamagedError, match=r"has the format 'brim\.llm-trace/2', and this version of brim reads"):
            use(path)


def test_places_that_cannot_be_written_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path, message in {
        tmp_path: "Is a directory",
        tmp_path / "pipe": "not a regular file",
        tmp_path / "file" / "t.jsonl": "is a file",
    }.items():
        with pytest.raises(OptionError, match=f"cannot write .*{message}"):
            Trace(path)
    with pytest.raises(DataError, match=r"cannot read .*none: No such file"):
        list(read_trace(tmp_path / "none"))


def test_a_torn_last_line_is_skipped_by_readers_and_removed_by_the_next_writer(tmp_path):
    path = tmp_path / "t.jsonl"
    with Trace(path) as trace:
        for number in range(3):
            trace.write({"number": number, "text": "x" * 100_000})
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 50_000, len(whole) - 90_000):
        path.write_bytes(whole[:size])
        assert [event["number"] for event in read_trace(path)] == [0, 1]
        with Trace(path) as trace:
            trace.write({"number": 7})
        assert [event["number"] for event in read_trace(path)] == [0, 1, 7]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(HEADER + b'{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(DamagedError, match=r"t\.jsonl:3: the line is not a JSON object"):
        list(read_trace(path))


def test_two_writers_of_one_trace_are_kept_apart(tmp_path):
    with Trace(tmp_path / "t.jsonl"), pytest.raises(BrimError, match="being written by another process or pool"):
        Trace(tmp_path / "t.jsonl")
    Trace(tmp_path / "t.jsonl").close()


def test_a_closed_trace_says_so_and_closing_twice_is_fine(tmp_path):
    trace = Trace(tmp_path / "t.jsonl")
    trace.close()
    trace.close()
    with pytest.raises(BrimError, match="is closed"):
        trace.write({})


def test_a_full_disk_loses_whole_lines_and_is_told_once_at_the_end(tmp_path):
    path = tmp_path / "t.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    trace = Trace(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        for number in range(200):
            trace.write({"number": number, "text": "x" * 10_000})
        with pytest.raises(
            BrimError, match=r"\d+ of 200 events could not be written to the trace .*t\.jsonl: File too"
        ):
            trace.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    trace.close()
    found = [event["number"] for event in read_trace(path)]
    assert len(found) == 200 - trace.lost
    assert path.read_bytes().endswith(b"\n")


def test_a_killed_writer_leaves_a_readable_trace_that_can_be_appended_to(tmp_path):
    program = """
import itertools, sys
from brim.llm.trace import Trace
trace = Trace(sys.argv[1])
for number in itertools.count():
    trace.write({"number": number, "text": "x" * 1000})
    if number % 1000 == 0:
        print(number, flush=True)
    if number == 20_000:
        sys.stdin.read()
"""
    path = tmp_path / "t.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(5):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    child.stdin.close()
    count = sum(1 for _ in read_trace(path))
    with Trace(path) as trace:
        trace.write({"number": count})
    assert [event["number"] for event in read_trace(path)] == list(range(count + 1))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_the_child_gets_an_error_and_does_not_keep_the_trace_locked(tmp_path):
    trace = Trace(tmp_path / "t.jsonl")
    trace.write({"from": "parent"})
    until, end = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(end)
            with pytest.raises(BrimError, match=r"opened by process .*, before a fork"):
                trace.write({"from": "child"})
            trace.close()
            os.read(until, 1)  # the child is still there when the parent opens the trace again
            code = 0
        finally:
            os._exit(code)
    os.close(until)
    trace.close()
    Trace(tmp_path / "t.jsonl").close()
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0
    assert list(read_trace(tmp_path / "t.jsonl")) == [{"from": "parent"}]
