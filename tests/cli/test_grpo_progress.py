"""The live table of `brim train grpo`, and its lines where there is no terminal."""

import math
import os
import pty
import re
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.grpo_runs import STEPS, create_run
from support.terminals import read_to_end

from brim.cli.train.grpo_progress import ALWAYS, COLUMNS, LINES, ROWS, Running, grpo_progress, table_of

RUN = create_run(30)
CONFIG = SimpleNamespace(kl_coef=0.1, eval_prompts=64)


def drawn(what, width=160, height=40):
    """What is shown on a terminal of this size, line by line."""
    console = Console(width=width, height=height, file=StringIO(), record=True)
    console.print(what)
    return console.export_text().splitlines()


def running(reports=RUN.rollouts, *, has_reference=True, is_evaluated=True, clock=lambda: 0.0):
    found = Running(has_reference=has_reference, is_evaluated=is_evaluated, clock=clock)
    for one in reports:
        found.on_rollout(one)
    return found


def names(lines):
    return re.split(r"  +", lines[0].strip())


def test_the_table_has_a_row_for_each_of_the_last_rollouts_and_a_line_below_it():
    head, *rows, state = drawn(running())
    assert names([head]) == [column.name for column in COLUMNS]
    assert len(rows) == ROWS
    last = RUN.rollouts[-1]
    assert rows[-1].split()[:4] == ["30", "120/120", f"{last.reward:.3f}", f"{last.pass_rate:.0%}"]
    cells = [column.cell(last) for column in COLUMNS]
    assert rows[-1].split() == [cell for cell in cells if cell]
    assert f"{last.evaluation.reward:.3f}" in rows[-1]
    assert state.startswith("rolling out")


def test_columns_that_a_run_cannot_have_are_left_out():
    assert "KL" not in names(drawn(running(has_reference=False)))
    assert "held-out" not in names(drawn(running(is_evaluated=False)))
    without = [replace(one, pass_rate=None, entropy=None) for one in RUN.rollouts]
    assert not {"pass", "entropy"} & set(names(drawn(running(without))))


@given(st.integers(1, 200), st.integers(1, 30))
@settings(max_examples=40)
def test_a_table_is_never_wider_than_the_terminal_and_drops_the_least_important_columns(width, rows):
    evaluated = [replace(one, evaluation=RUN.before) for one in RUN.rollouts[:rows]]
    lines = drawn(table_of(COLUMNS, evaluated, width), width=width)
    assert max(map(len, lines)) <= width
    least = sum(len(column.name) + 2 for column in COLUMNS if column.importance == ALWAYS)
    if width > least:
        kept = names(lines)
        dropped = [column for column in COLUMNS if column.name not in kept]
        assert all(one.importance < other.importance for one in dropped for other in COLUMNS if other not in dropped)
        assert not any("…" in line for line in lines)


def test_a_low_terminal_shows_fewer_rollouts():
    assert len(drawn(running(), height=8)) == 1 + 5 + 1
    assert len(drawn(running(), height=2)) == 1 + 1 + 1


def test_the_state_says_what_happens_now():
    found = running([])
    assert found.state() == "starting"
    found.on_evaluation(64)
    assert found.state() == "evaluating 64 tasks"
    found.on_attempt(64, 64)
    assert found.state() == "evaluating 64/64"
    found.on_attempt(1, 128)
    assert found.state() == "rolling out 1/128"
    found.on_attempt(37, 128)
    assert found.state() == "rolling out 37/128"
    found.on_step(SimpleNamespace(step=3, steps=120))
    assert found.state() == "training: step 3/120"
    found.on_evaluation(64)
    found.on_attempt(5, 64)
    assert found.state() == "evaluating 5/64"
    found.on_rollout(RUN.rollouts[0])
    assert found.state().startswith("rolling out, ETA")
    found.on_attempt(1, 128)
    assert found.state().startswith("rolling out 1/128, ETA")


def test_the_remaining_time_is_that_of_the_last_rollouts_and_runs_down():
    now = [100.0]
    found = running([replace(one, seconds=10.0) for one in RUN.rollouts[:20]], clock=lambda: now[0])
    assert "ETA 1:40" in found.state()  # 10 rollouts of 10 seconds
    now[0] += 40
    assert "ETA 1:00" in found.state()
    now[0] += 4000
    assert "ETA" not in found.state()
    assert "ETA 4:50" in running([replace(RUN.rollouts[0], seconds=10.0)]).state()
    stuck = [replace(one, step=0, version=0) for one in RUN.rollouts[:3]]
    assert "ETA" not in running(stuck).state()


def test_weights_of_a_server_that_lag_behind_do_not_change_the_remaining_time():
    lagging = [replace(one, seconds=10.0, version=max(0, one.version - 20)) for one in RUN.rollouts[:20]]
    assert "ETA 1:40" in running(lagging).state()


def test_the_last_evaluation_stays_in_sight():
    evaluation = RUN.rollouts[9].evaluation
    found = running([*RUN.rollouts[:10], *(replace(one, evaluation=None) for one in RUN.rollouts[10:])])
    assert f"held-out {evaluation.reward:.3f} at step {10 * STEPS}" in found.state()
    assert "held-out" not in names(drawn(found))


def test_a_line_tells_the_last_rollout():
    line = running(RUN.rollouts[:20]).line()
    last = RUN.rollouts[19]
    for part in ("rollout 20", "step 80/120", f"reward {last.reward:.3f}", f"KL {last.kl:.3f}", "ETA"):
        assert part in line
    assert len(line) < 200
    assert "ETA" not in running().line()


@given(st.integers(1, 400), st.integers(1, 9))
@settings(max_examples=40)
def test_a_run_without_a_terminal_is_told_in_about_twenty_lines_with_its_first_and_last_rollout(rollouts, steps):
    found = Running(has_reference=True, is_evaluated=True, clock=lambda: 0.0)
    told = []
    for at in range(1, rollouts + 1):
        found.on_rollout(replace(RUN.rollouts[0], rollout=at, step=at * steps, steps=rollouts * steps))
        if found.is_line_due():
            told.append(at)
    assert len(told) <= LINES + 1
    assert (told[0], told[-1]) == (1, rollouts)


def test_numbers_that_are_tiny_or_not_finite_fit_into_their_column():
    odd = replace(RUN.rollouts[0], reward=math.nan, entropy=math.inf, kl=2e-6)
    text = " ".join(drawn(running([odd])))
    for part in (" nan ", " inf ", " 2e-06 "):
        assert part in text
    empty = replace(
        RUN.rollouts[0],
        reward=None,
        groups=0,
        attempts=0,
        fill=None,
        train_tokens=0,
        seconds=0.0,
        rollout_seconds=0.0,
        reward_seconds=0.0,
        train_seconds=0.0,
    )
    assert drawn(running([empty]))[1].split()[:2] == ["1", "4/120"]


@pytest.mark.torch
def test_without_a_terminal_lines_go_to_stderr_and_quiet_tells_nothing(capfd):
    with grpo_progress(CONFIG, quiet=False) as hooks:
        hooks.on_message("[bold]a message[/bold]")
        for one in RUN.rollouts:
            hooks.on_attempt(1, 2)
            hooks.on_step(SimpleNamespace(step=1, steps=2))
            hooks.on_rollout(one)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("[bold]a message[/bold]\n")
    assert LINES - 1 <= len(err.splitlines()) - 1 <= LINES + 1
    with grpo_progress(CONFIG, quiet=True) as hooks:
        hooks.on_message("nothing")
        assert hooks.on_rollout is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.torch
def test_on_a_terminal_the_table_is_drawn_and_removed_at_the_end(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with grpo_progress(CONFIG, quiet=False) as hooks:
            hooks.on_message("[bold]a message[/bold]")
            hooks.on_evaluation(64)
            hooks.on_rollout(RUN.rollouts[0])
    shown = read_to_end(ours)
    os.close(ours)
    assert "[bold]a message[/bold]" in shown
    assert "4/120" in shown
    assert "rolling out" in shown
