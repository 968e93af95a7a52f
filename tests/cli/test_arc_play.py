"""`brim arc play`: keys change the environment as the engines say, in a script, in a pipe and in a real terminal."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import DataError, OptionError
from brim.cli import TREE
from brim.cli.app import Group
from brim.cli.arc import keys, screen
from brim.cli.arc.board import board, needed
from brim.cli.arc.game import Game
from brim.envs.arc import ArcOperation, JaxArcTask, read_episodes, solution
from brim.envs.arc.tasks.family import FAMILY, family_tasks

PATIENCE = 60
"""Seconds after which a process that does not answer is a failure."""
PROGRAM = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); from brim.cli import main; main()"
"""The first terminal that the leader of a session opens becomes its own, so that Ctrl-C reaches it."""


def brim(*words):
    """Run a command in this process."""
    Group("brim", "", TREE).main(["arc", *map(str, words)], prog_name="brim", standalone_mode=False)


def small():
    grid = [[1, 1, 0], [0, 2, 0]]
    return JaxArcTask("small", train=[(grid, [[5] * 3] * 2), ([[3]], [[4]])], test=[([[6, 6]], [[7, 7]])])


def pressed(text, *, task=None, kind="train", pair=0):
    game = Game(small() if task is None else task, kind=kind, pair=pair)
    for key in keys.written(text):
        game.press(key)
    return game


def shown(game, width=80):
    return board(game, width=width, colour=False, palette="arc")


# The game


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("5", [[5, 1, 0], [0, 2, 0]]),
        ("<down><right>7", [[1, 1, 0], [0, 7, 0]]),
        ("vjl9", [[9, 9, 0], [9, 9, 0]]),
        ("v<right>v<down> 4", [[4, 4, 0], [0, 4, 0]]),
        (" l 8", [[8, 8, 0], [0, 2, 0]]),
        (" l l 8", [[8, 8, 8], [0, 2, 0]]),
        ("  l8", [[1, 8, 0], [0, 2, 0]]),
        ("a3", [[3, 3, 3], [3, 3, 3]]),
        ("a<escape>3", [[3, 1, 0], [0, 2, 0]]),
        ("f8", [[8, 8, 0], [0, 2, 0]]),
        ("afl<escape>f8", [[8, 8, 0], [0, 2, 0]]),
        ("L", [[0, 1, 1], [0, 0, 2]]),
        ("<shift-down>", [[0, 2, 0], [1, 1, 0]]),
        ("m", [[0, 1, 1], [0, 2, 0]]),
        ("M", [[0, 2, 0], [1, 1, 0]]),
        ("vjlr", [[0, 1, 0], [2, 1, 0]]),
        ("vjlR", [[1, 2, 0], [1, 0, 0]]),
        ("vlc<escape>hjp", [[1, 1, 0], [1, 1, 0]]),
        ("vlx<escape>hjp", [[0, 0, 0], [1, 1, 0]]),
        ("z", [[0, 0, 0], [0, 0, 0]]),
        (" z", [[0, 1, 0], [0, 2, 0]]),
        ("lg", [[1, 1]]),
        ("g5i", [[1, 1, 0], [0, 2, 0]]),
        ("a5e", [[1, 1, 0], [0, 2, 0]]),
        ("56u", [[5, 1, 0], [0, 2, 0]]),
        ("56<backspace>u", [[1, 1, 0], [0, 2, 0]]),
        ("n", [[3]]),
        ("b", [[3]]),
        ("t", [[6, 6]]),
        ("tt", [[1, 1, 0], [0, 2, 0]]),
        ("hhkk5", [[5, 1, 0], [0, 2, 0]]),
        ("ddd5", [[5, 1, 0], [0, 2, 0]]),
        ("?5", [[5, 1, 0], [0, 2, 0]]),
    ],
)
def test_keys_change_the_grid(text, grid):
    assert pressed(text).env.grid.tolist() == grid


@given(st.lists(st.sampled_from([key for key in keys.KEYS if key != "q"]), max_size=40))
def test_whatever_is_pressed_the_recorded_episodes_replay_and_the_view_fits(presses):
    game = Game(small(), kind="train", pair=0)
    for key in presses:
        game.press(key)
        lines = shown(game, needed(game)[0]).splitlines()
        assert len(lines) <= needed(game)[1]
        assert max(map(len, lines)) <= needed(game)[0]
    episodes = game.episodes()
    assert [one.episode for one in episodes] == list(range(len(episodes)))
    if episodes and not (game.over or game.steps == 0):
        assert np.array_equal(episodes[-1].frames[-1].grid, game.env.grid)
    assert all(one.terminated for one in episodes[:-1])


def test_undo_takes_back_every_step_one_by_one():
    game = pressed("5l6n7t8")
    for _ in range(6):
        game.press("u")
    assert game.env.grid.tolist() == small().train[0].input.tolist()
    assert game.episodes() == []
    game.press("u")
    assert game.message == "there is nothing to undo"


def test_a_step_that_cannot_be_applied_is_not_taken_and_one_that_changes_nothing_says_so():
    game = pressed("jjll5", pair=1)
    assert (game.steps, game.message) == (0, "FILL_5 was not applied: the cells are outside of the grid")
    assert pressed("1").message == "FILL_1 changed nothing"
    assert pressed("5").message == "FILL_5"


def test_after_the_submission_the_next_pair_or_the_same_begins_another_episode():
    game = pressed("a5<enter>")
    assert game.message == "solved in 2 steps: n next pair, e this pair again, q quit"
    game.press("5")
    assert game.message == "the episode is over: n next pair, e this pair again, q quit"
    for key in ["n", "enter", "e", "4", "enter"]:
        game.press(key)
    facts = [(one.kind, one.pair, one.episode, one.solved) for one in game.episodes()]
    assert facts == [("train", 0, 0, True), ("train", 1, 1, False), ("train", 1, 2, True)]


def test_every_family_is_solved_by_the_operations_of_its_solution():
    """The rectangles of the known solutions, typed as keys."""
    for task in family_tasks(len(FAMILY)):
        actions = solution(task, task.test[0].input)
        game = Game(task, kind="test", pair=0)
        numbers = {int(operation): key for key, operation in keys.OPERATIONS.items()}
        for operation, r1, c1, r2, c2 in zip(*(part.tolist() for part in actions), strict=True):
            game.press("escape")
            go(game, r1, c1)
            if operation in range(ArcOperation.FLOOD_FILL_0, ArcOperation.FLOOD_FILL_9 + 1):
                game.press("f")
                game.press(str(operation - ArcOperation.FLOOD_FILL_0))
                continue
            game.press("v")
            go(game, r2, c2)
            game.press(numbers[operation])
        assert game.episodes()[0].solved, task.id


def go(game, row, column):
    """Move the cursor to a cell."""
    rows, columns = row - game.cursor[0], column - game.cursor[1]
    for key in ["down" if rows > 0 else "up"] * abs(rows) + ["right" if columns > 0 else "left"] * abs(columns):
        game.press(key)


def test_the_view_shows_input_grid_cursor_and_selection_and_never_the_answer_of_a_test():
    drawn = shown(pressed("vl", kind="test"))
    assert "small  test pair 0  0 steps" in drawn
    assert "input  ->  grid 1x2\n6 6        6*6#.\n           . . .\n" in drawn
    assert "2 cells selected  clipboard empty" in drawn
    for text in ("", "d", "dd", "7", "<enter>"):
        last = shown(pressed(text, kind="test"))
        assert text == "7" or "7" not in last
    assert "grid" in shown(pressed(""), width=8)
    assert "input" not in shown(pressed(""), width=8)


def test_a_hostile_name_of_a_task_is_shown_and_cut_to_the_terminal():
    task = JaxArcTask("\x1b[2J\x07" + "x" * 300, train=[([[1]], [[2]])])
    lines = shown(Game(task, kind="train", pair=0)).splitlines()
    assert lines[0].startswith("\\x1b[2J\\x07xxx")
    assert len(lines[0]) == 80
    assert lines[0].endswith("...")
    with pytest.raises(DataError, match=r"^task \\x1b\[2J.* has no test pair 0; there are none$"):
        Game(task, kind="test", pair=0)


# Keys


def test_every_key_is_in_the_list_of_keys_and_in_the_help_of_the_command(capsys):
    brim_help = Group("brim", "", TREE)
    with pytest.raises(SystemExit):
        brim_help.main(["arc", "play", "--help"], prog_name="brim")
    text = capsys.readouterr().out
    listed = " ".join(name for name, _ in keys.HELP)
    for key in {*keys.OPERATIONS, *keys.OTHERS} - {"?"}:
        assert key.isdecimal() or key in listed.replace(",", " ").split() or key in "HJKL"
        assert key.isdecimal() or key in text.split("Keys:")[1].replace(",", " ").split() or key in "HJKL"


@given(st.lists(st.sampled_from(sorted(keys._SEQUENCES)), max_size=8), st.integers(0, 30))
def test_keys_are_the_same_wherever_the_terminal_divides_their_bytes(sequences, place):
    # An escape that another sequence follows at once is part of it, for any reader.
    sequences = [one for one in sequences if one != "\x1b"]
    text = "".join(sequences)
    whole = keys.typed(text).keys
    assert whole == [keys._SEQUENCES[one] for one in sequences]
    first = keys.typed(text[:place], complete=False)
    assert first.keys + keys.typed(first.rest + text[place:]).keys == whole


def test_unknown_sequences_are_one_key_and_a_lone_escape_is_a_key():
    assert keys.typed("\x1b[15~5\x1b").keys == ["\x1b[15~", "5", "escape"]
    game = pressed("")
    game.press("\x1b[15~")
    assert game.message == "\\x1b[15~ is not a key; ? lists them"


def test_an_unknown_key_in_a_script_is_refused_with_its_place_and_the_nearest_name():
    with pytest.raises(OptionError, match=r"^key 2 of --keys, 'entr', does nothing; .* Did you mean \"enter\"\?$"):
        keys.written("a<entr>")
    with pytest.raises(
        OptionError, match=r"^key 3 of stdin, 'y', does nothing; brim arc play --help lists the keys\.$"
    ):
        keys.known(["a", "5", "y"], "stdin")


# The command


def test_a_script_of_keys_plays_prints_the_end_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    brim("play", "mock", "--keys", "am<enter>n5q6", "--record", "mine.json")
    out = capsys.readouterr().out
    assert "episode 0  test pair 0: solved, 2 steps" in out
    assert "episode 1  test pair 0: not submitted, 1 step" in out
    assert "\x1b" not in out
    first, second = read_episodes("mine.json")
    assert (first.solved, first.steps, second.steps, second.terminated) == (True, 2, 1, False)
    brim("play", "mock", "--mode", "train", "--pair", 2, "--keys", "", "--record", "none.json", "--json")
    assert json.loads(capsys.readouterr().out) == {"task": "mock", "episodes": [], "record": None}
    assert not (tmp_path / "none.json").exists()


def test_keys_can_come_through_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"am\x1b[B\n")))
    brim("play", "mock", "--json")
    found = json.loads(capsys.readouterr().out)["episodes"]
    assert found == [{"kind": "test", "pair": 0, "steps": 2, "solved": True, "submitted": True}]


def test_wrong_choices_are_one_line_with_a_way_out(tmp_path):
    for name in ("one", "two"):
        content = {"train": [{"input": [[1]], "output": [[1]]}], "test": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(OptionError, match=r"holds 2 tasks; choose one with --task, such as --task 'one'$"):
        brim("play", tmp_path, "--keys", "q")
    with pytest.raises(DataError, match=r'there is no task .*tow.* Did you mean "two"\?'):
        brim("play", tmp_path, "--task", "tow", "--keys", "q")
    with pytest.raises(DataError, match="task one has no train pair 1; they are numbered from 0 to 0"):
        brim("play", tmp_path, "--task", "one", "--pair", 1, "--keys", "q")


# The terminal


@pytest.fixture
def terminal():
    """Both ends of a terminal of 80 columns and 24 lines."""
    ours, theirs = pty.openpty()
    resize(theirs, 80, 24)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def resize(terminal, columns, lines):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda: None, None),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
        (lambda: signal.raise_signal(signal.SIGTERM), SystemExit),
        (lambda: signal.raise_signal(signal.SIGHUP), SystemExit),
        (lambda: {}[0], KeyError),
    ],
    ids=["end", "SIGINT", "SIGTERM", "SIGHUP", "exception"],
)
def test_the_terminal_is_given_back_as_it_was_whatever_ends_the_game(terminal, monkeypatch, end, error):
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with open(os.dup(theirs)) as stdin, open(os.dup(theirs), "w") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        with nullcontext() if error is None else pytest.raises(error), screen.taken_terminal():
            assert not termios.tcgetattr(theirs)[3] & (termios.ECHO | termios.ICANON)
            end()
        monkeypatch.undo()
    assert termios.tcgetattr(theirs) == before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == handlers
    assert read_until(ours, screen.LEAVE) == screen.ENTER + screen.LEAVE


def read_until(ours, text):
    """Read what is written to a terminal until this appears."""
    end = time.monotonic() + PATIENCE
    seen = ""
    while text not in seen:
        ready = select.select([ours], [], [], max(0, end - time.monotonic()))[0]
        assert ready, f"no {text!r} in {seen[-2000:]!r}"
        seen += os.read(ours, 1 << 16).decode()
    return seen


class Player:
    """The command in a process of its own, with a terminal of its own."""

    def __init__(self, terminal, folder, *words):
        self.ours, theirs = terminal
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "arc", "play", *words],
            cwd=folder,
            env={**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )

    def until(self, text):
        """Return what is drawn from now on until this appears."""
        return read_until(self.ours, text)

    def press(self, text):
        os.write(self.ours, text.encode())


def test_a_person_plays_in_a_terminal_and_ctrl_c_keeps_what_was_recorded(terminal, tmp_path):
    before = termios.tcgetattr(terminal[1])
    player = Player(terminal, tmp_path, "mock", "--record", "mine.json")
    try:
        first = player.until("q quit")
        assert first.startswith(screen.ENTER)
        assert "48;2;255;133;27" in first
        player.press("am\r")
        assert "solved in 2 steps" in player.until("solved in 2 steps")
        player.press("n\x1b[B5")
        player.until("FILL_5")
        resize(terminal[1], 70, 24)
        player.until("needs a terminal of 75 columns and 17 lines, but it has 70 columns and 24 lines")
        player.press("\x03")
        assert screen.LEAVE in player.until("interrupted")
        assert player.process.wait(PATIENCE) == 130
    finally:
        player.process.kill()
        player.process.wait()
    assert termios.tcgetattr(terminal[1]) == before
    episodes = read_episodes(tmp_path / "mine.json")
    assert [(one.solved, one.steps) for one in episodes] == [(True, 2), (False, 1)]
    assert episodes[1].actions.selection[0].nonzero() == (1, 0)


def test_a_change_of_size_just_before_a_key_is_awaited_is_not_missed(monkeypatch):
    reader, writer = os.pipe()
    with open(reader) as stdin, screen.resizes() as resized:
        monkeypatch.setattr("sys.stdin", stdin)
        keys = screen.terminal_keys(resized)
        signal.raise_signal(signal.SIGWINCH)
        assert next(keys) is None
        os.write(writer, b"a\x1b")
        assert [next(keys), next(keys)] == ["a", "escape"]
        signal.raise_signal(signal.SIGWINCH)
        os.close(writer)
        assert list(keys) == [None]


def test_a_task_too_large_for_the_terminal_is_refused_with_both_sizes(terminal, tmp_path, monkeypatch):
    _, theirs = terminal
    grid = np.zeros((30, 30), np.uint8).tolist()
    (tmp_path / "large.json").write_text(json.dumps({"train": [{"input": grid, "output": grid}], "test": []}))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    with open(os.dup(theirs)) as stdin, open(os.dup(theirs), "w") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.__stdout__", stdout)
        with pytest.raises(
            OptionError,
            match="needs a terminal of 75 columns and 37 lines, but it has 80 columns and 24 lines; enlarge it",
        ):
            brim("play", tmp_path)
        monkeypatch.undo()
