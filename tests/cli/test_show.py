"""Tables and progress as they are shown: at any width, and without a terminal."""

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.terminals import read_to_end

import brim.cli.show as show

HEADERS = st.sampled_from(["epoch", "microbatches", "meet again", "meet again, over all ranks", "shapes", "padding"])
NUMBERS = st.one_of(st.integers(0, 10**12), st.floats(0, 1).map("{:.2%}".format), st.just("-"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), width=st.integers(30, 120))
def test_no_number_and_no_word_of_a_header_is_ever_broken(data, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    headers = data.draw(st.lists(HEADERS, min_size=1, max_size=8, unique=True))
    rows = data.draw(st.lists(st.tuples(*[NUMBERS] * len(headers)), max_size=4))
    capsys.readouterr()
    show.show_table(headers, rows)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    shown = sorted(word for line in lines for word in line.split())
    cells = [f"{cell:,}" if isinstance(cell, int) else cell for row in rows for cell in row]
    words = [word for header in headers for word in header.split()]
    tables = [sorted([*cells, *words * times]) for times in (1, len(rows))]  # one header, or one in each block
    assert shown in tables


def test_a_table_that_is_too_wide_becomes_a_block_of_facts_for_each_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    show.show_table(["epoch", "microbatches", "tokens"], [[0, 12, 5_242_880_000], [1, 13, 7]], title="a plan")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    block = ["epoch         0", "microbatches  12", "tokens        5,242,880,000"]
    assert lines == ["a plan", *block, "", "epoch         1", "microbatches  13", "tokens        7"]


def test_cells_of_several_words_take_several_lines_before_that(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    show.show_table(["#", "rows", "samples"], [[0, 17, "one, two, three, four, five, six, seven"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["#", "rows", "samples"]
    assert len(lines) == 3


@pytest.mark.parametrize("total", [3, 0])
def test_a_bar_shows_no_count_before_there_is_one(total):
    """In a terminal, from the first picture on."""
    ours, theirs = pty.openpty()
    script = f"""
from brim.cli.show import counting_progress
with counting_progress("planning") as progress:
    progress._progress.refresh()
    progress(1, {total})
    progress._progress.refresh()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    ) as process:
        os.close(theirs)
        shown = read_to_end(ours)
    os.close(ours)
    assert process.returncode == 0
    assert "None" not in shown
    assert f"1/{total}" in shown


def test_a_long_search_is_told_without_a_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    with show.counting_progress("planning epochs") as progress:
        for second in range(6):
            now[0] = float(second)
            progress.searched(1000 - second, 900)
    assert capsys.readouterr().err.splitlines() == [
        "planning epochs, searching for patterns (packing: 998 rows, at least 900)",
        "planning epochs, searching for patterns (packing: 996 rows, at least 900)",
    ]
