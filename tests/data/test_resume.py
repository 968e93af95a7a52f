"""Builds that are killed, stopped, crossed or continued: nothing that can happen to one changes a byte of its
result.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError
from brim.data.lengths import LengthCache
from brim.data.measure import build_lengths
from brim.data.synthetic import sample_rows, write_sample_data


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class StoppedError(Exception):
    """Raised in the middle of a build."""


def stop_after(blocks):
    """A progress callback that ends the build when some blocks have been measured."""
    calls = iter(range(blocks + 1))

    def progress(*_):
        if next(calls) == blocks:
            raise StoppedError

    return progress


def journal_of(output):
    return output.parent / f".{output.name}.journal"


RUN = """
import sys
from brim.data.measure import build_lengths
data, output, workers = sys.argv[1:]

def progress(rows, *_):
    print(rows, flush=True)
    sys.stdin.readline()

build_lengths(data, output, "byte", workers=int(workers), progress=progress)
"""


def start(data, output, workers):
    """A build that stops after every block until it is given a line."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", RUN, data, output, str(workers)], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    )


def let_run(process, blocks):
    for _ in range(blocks):
        assert process.stdout.readline()
        process.stdin.write(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "name"), [(1, "out.jsonl"), (2, "out.lengths")])
def test_killed_again_and_again_it_continues_and_ends_with_the_same_bytes(tmp_path, workers, name):
    data, output = tmp_path / "train.jsonl", tmp_path / name
    write_sample_data(data, 10_000)
    for kill_after in (2, 2, 3):
        process = start(data, output, workers)
        let_run(process, kill_after)
        process.send_signal(signal.SIGKILL)  # somewhere in the next block
        # The workers hold the other end of stderr: this returns when the last of them is gone.
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert not output.exists()
        assert journal_of(output).exists()
    built = build_lengths(data, output, workers=workers)
    assert built.resumed > 0
    build_lengths(data, tmp_path / f"fresh-{name}", workers=1)
    assert output.read_bytes() == (tmp_path / f"fresh-{name}").read_bytes()
    assert not journal_of(output).exists()


def test_ctrl_c_ends_it_and_its_workers_and_the_journal_stays(tmp_path):
    data, output = tmp_path / "train.jsonl", tmp_path / "out"
    write_sample_data(data, 10_000)
    process = start(data, output, 2)
    let_run(process, 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.decode().strip().splitlines()[-1] == "KeyboardInterrupt"
    assert build_lengths(data, output).resumed > 0


def children():
    """Of this process: whatever other tests have left running is among them."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_the_next_run_continues(tmp_path):
    before = children()
    write_sample_data(tmp_path / "train.jsonl", 10_000)

    def kill_a_worker(rows, *_):
        if rows:
            for child in children() - before:
                os.kill(child, signal.SIGKILL)

    with pytest.raises(BrimError, match="worker process was killed by SIGKILL"):
        build_lengths(tmp_path / "train.jsonl", tmp_path / "out", workers=2, progress=kill_a_worker)
    assert build_lengths(tmp_path / "train.jsonl", tmp_path / "out").resumed > 0


@pytest.fixture
def stopped(data, tmp_path, small_blocks):
    """A build that ended in the middle, and the bytes that an uninterrupted one gives."""
    build_lengths(data, tmp_path / "whole")
    with pytest.raises(StoppedError):
        build_lengths(data, tmp_path / "out", progress=stop_after(9))
    return journal_of(tmp_path / "out").read_bytes(), (tmp_path / "whole").read_bytes()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_journal_cut_or_damaged_anywhere_never_changes_the_result(data, tmp_path, stopped, chance):
    journal, whole = stopped
    at = chance.draw(st.integers(0, len(journal) - 1))
    damaged = chance.draw(st.sampled_from([journal[:at], journal[:at] + bytes([journal[at] ^ 1]) + journal[at + 1 :]]))
    output = tmp_path / "out"
    output.unlink(missing_ok=True)
    journal_of(output).write_bytes(damaged)
    build_lengths(data, output)
    assert output.read_bytes() == whole


def test_a_whole_journal_is_continued_and_not_measured_again(data, tmp_path, stopped):
    seen = []
    built = build_lengths(data, tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    assert built.resumed == seen[0][0] > 0
    assert (tmp_path / "out").read_bytes() == stopped[1]


@pytest.mark.slow
def test_a_journal_of_another_tokenizer_or_other_data_is_discarded(data, tmp_path, stopped):
    assert build_lengths(data, tmp_path / "out", "gpt2").resumed == 0
    (tmp_path / "out").unlink()
    journal_of(tmp_path / "out").write_bytes(stopped[0])
    rows = list(sample_rows(200))
    data.write_bytes(lines([{**rows[0], "response": "changed"}, *rows[1:]]))
    assert build_lengths(data, tmp_path / "out").resumed == 0


def test_a_journal_outlives_that_the_data_grows_while_nothing_runs(data, tmp_path, stopped):
    write_sample_data(data, 300)
    with pytest.raises(StoppedError):
        build_lengths(data, tmp_path / "out", progress=stop_after(12))
    write_sample_data(data, 320)
    assert build_lengths(data, tmp_path / "out").resumed > 0
    build_lengths(data, tmp_path / "fresh")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_a_build_that_adds_rows_can_be_stopped_and_continued_too(data, tmp_path, small_blocks):
    build_lengths(data, tmp_path / "out")
    write_sample_data(data, 400)
    with pytest.raises(StoppedError):
        build_lengths(data, tmp_path / "out", progress=stop_after(5))
    assert len(LengthCache.load(tmp_path / "out")) == 200
    built = build_lengths(data, tmp_path / "out")
    assert built.reused == 200
    assert built.resumed > 0
    build_lengths(data, tmp_path / "fresh")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_two_builds_of_one_output_do_not_mix(data, tmp_path):
    def second(*_):
        with pytest.raises(BrimError, match="another process is writing"):
            build_lengths(data, tmp_path / "out")

    assert len(build_lengths(data, tmp_path / "out", progress=second).cache) == 200
