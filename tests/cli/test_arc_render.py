"""`brim arc render`: tasks and episodes in the terminal, in pictures and in pages; and `brim arc rollout --record`."""

import io
import json
import re
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from brim import DamagedError, DataError, OptionError
from brim.cli import TREE, main
from brim.cli.app import Group
from brim.cli.arc.drawing import has_colour, print_drawing
from brim.cli.terminal import Terminal
from brim.envs.arc import create_mock_task, draw_episode, draw_task, read_episodes, rgb_episode, rgb_task

HOSTILE = "\x1b[31mred\u202e"


def brim(*words):
    """Run a command in this process."""
    Group("brim", "", TREE).main(["arc", *map(str, words)], prog_name="brim", standalone_mode=False)


def typed(line):
    brim(*line.split())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with tasks/, which has two, and episodes.json, which has three; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("tasks").mkdir()
    content = json.dumps(
        {"train": [{"input": [[1, 2]], "output": [[2, 1]]}], "test": [{"input": [[3]], "output": [[7]]}]}
    )
    for name in ("one", HOSTILE):
        Path("tasks", f"{name}.json").write_text(content)
    line = "rollout --data tasks --envs 3 --steps 6 --max-episode-steps 3 --engine numpy --record episodes.json"
    brim(*line.split(), "--record-limit", 3)
    return tmp_path


def pixels(path):
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


# Recording


def test_rollout_records_as_many_episodes_as_asked_for_and_they_replay(here, capsys):
    episodes = read_episodes("episodes.json")
    assert len(episodes) == 3
    assert all(one.frames[-1].grid.size for one in episodes)
    capsys.readouterr()
    typed("rollout --data mock --envs 2 --steps 4 --max-episode-steps 4 --engine numpy --record all.json")
    assert "all.json, all 2 episodes" in capsys.readouterr().out
    typed("rollout --data mock --envs 2 --steps 3 --operations 0-9 --engine numpy --record none.json")
    assert "nothing: no episode ended" in capsys.readouterr().out
    assert not Path("none.json").exists()
    with pytest.raises(click.UsageError, match="--record-limit needs --record"):
        typed("rollout --data mock --record-limit 3")


def test_recorded_episodes_have_the_outcomes_that_the_report_counts(here, capsys):
    line = "rollout --data mock --envs 4 --steps 40 --max-episode-steps 9 --engine numpy --record all.json -o all.jsonl"
    brim(*line.split())
    recorded = sorted((one.env, one.episode, one.steps, one.solved, one.truncated) for one in read_episodes("all.json"))
    reported = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    names = ("env", "episode", "steps", "solved", "truncated")
    assert recorded == sorted(tuple(one[name] for name in names) for one in reported)


# Drawing


def test_without_an_output_a_task_or_an_episode_is_printed_without_escapes_to_a_pipe(here, capsys):
    capsys.readouterr()
    brim("render", "tasks", "--task", "one")
    assert capsys.readouterr().out.strip() == draw_task(tasks_one(), colour=False)
    brim("render", "tasks", "--task", "one", "--no-answers")
    assert "7" not in capsys.readouterr().out
    brim("render", "episodes.json", "--episode", 1)
    assert capsys.readouterr().out.strip() == draw_episode(read_episodes("episodes.json")[1], colour=False)


def tasks_one():
    from brim.envs.arc.tasks.files import read_tasks

    return read_tasks("tasks/one.json")[0]


def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch, capsys):
    task = create_mock_task()
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert not has_colour(Terminal())
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    # Rich keeps the escapes of a style that it has seen, so each terminal gets a palette of its own.
    for term, depth, name, escape in (
        ("xterm", "truecolor", "arc", ";48;2;0;116;217m"),
        ("xterm-256color", "", "colour-blind", ";48;5;"),
    ):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLORTERM", depth)
        print_drawing(partial(draw_task, task, palette=name))
        out = capsys.readouterr().out
        assert escape in out
        assert re.sub(r"\x1b\[[0-9;]*m", "", out).startswith("mock: 3 demonstrations")
    monkeypatch.setenv("TERM", "dumb")
    print_drawing(partial(draw_task, task))
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm")
    assert has_colour(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(Terminal())
    print_drawing(partial(draw_task, task))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".png", ".svg", ".txt", ".ans", ".html"])
def test_an_output_of_each_format_is_written_and_replaced_only_if_it_is_ours(here, suffix, capsys):
    for source in (["mock"], ["episodes.json", "--episode", "0"]):
        output = Path(f"picture{suffix}")
        output.write_text("mine")
        with pytest.raises(OptionError, match=f"will not replace picture{suffix}: it is not a picture of this command"):
            brim("render", *source, "-o", output)
        brim("render", *source, "-o", output, "--force")
        first = output.read_bytes()
        brim("render", *source, "-o", output)
        assert output.read_bytes() == first


def test_pictures_have_the_chosen_palette_and_cells(here):
    brim("render", "mock", "-o", "task.png", "--palette", "colour-blind", "--cell", 7)
    assert np.array_equal(pixels("task.png"), rgb_task(create_mock_task(), palette="colour-blind", cell=7))
    brim("render", "episodes.json", "--episode", 2, "-o", "episode.png")
    episode = read_episodes("episodes.json")[2]
    assert np.array_equal(pixels("episode.png"), rgb_episode(episode))
    brim("render", "episodes.json", "--episode", episode.id, "-o", "same.png")
    assert Path("same.png").read_bytes() == Path("episode.png").read_bytes()
    brim("render", "episodes.json", "--episode", 2, "-o", "episode.gif", "--delay", 0.1)
    with Image.open(io.BytesIO(Path("episode.gif").read_bytes())) as image:
        assert (image.n_frames, image.info["duration"]) == (episode.steps + 1, 100)


def test_pages_show_all_episodes_of_a_file_and_all_tasks_of_a_data_set(here, capsys):
    capsys.readouterr()
    brim("render", "episodes.json", "-o", "replay.html", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["shows"] == [one.id for one in read_episodes("episodes.json")]
    assert shown["bytes"] == Path("replay.html").stat().st_size
    assert "Episodes of episodes.json" in Path("replay.html").read_text()
    brim("render", "tasks", "-o", "browse.html")
    assert "2 tasks" in capsys.readouterr().out
    assert "Tasks of tasks" in Path("browse.html").read_text()
    for page in ("replay.html", "browse.html"):
        assert not set(Path(page).read_text()) & {"\x1b", "\u202e"}


# Refusals


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("tasks", OptionError, r"tasks holds 2 tasks; choose one with --task, such as .* -o FILE\.html$"),
        ("tasks --task on", DataError, r"there is no task 'on' in tasks.* Did you mean \"one\"\?$"),
        ("episodes.json", OptionError, r"holds 3 episodes; choose one with --episode N, from 0 to 2, or write a page"),
        ("episodes.json --episode 3", DataError, r"no episode '3' in episodes\.json; they are numbered from 0 to 2"),
        ("episodes.json --episode one#0.9", DataError, r"no episode 'one#0\.9' .* Did you mean \"one#"),
        ("mock -o a.pgn", OptionError, r"ends with '\.pgn', but should end with .*\.html\. Did you mean \"\.png\"\?$"),
        ("mock -o a.gif", OptionError, r"a GIF shows the steps of an episode; write a task or a state as \.png or"),
        ("nowhere.json", DataError, r"^nowhere\.json does not exist$"),
        ("mock --palette colorblind", click.BadParameter, r"Did you mean \"colour-blind\"\?"),
        ("mock --cell 5", click.UsageError, r"--cell has no effect on the terminal"),
        ("mock --delay 1 -o a.png", click.UsageError, r"--delay has no effect on a \.png file"),
        ("mock --no-answers -o a.html", click.UsageError, r"--answers/--no-answers has no effect on a page"),
        ("mock --palette arc -o a.html", click.UsageError, r"--palette has no effect on a page"),
        ("mock --json", click.UsageError, r"--json reports what was written; give an output with -o"),
        ("mock --episode 0", click.UsageError, r"--episode needs a file of episodes, but mock holds tasks"),
        ("nothing.json --episode 0", DataError, r"nothing\.json does not exist"),
        ("tasks --task one --ids one", click.UsageError, r"leave out --ids and --max-size"),
        ("episodes.json --task one", click.UsageError, r"--task chooses tasks, but episodes\.json holds episodes"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(here, line, error, message):
    before = sorted(here.iterdir())
    with pytest.raises(error) as raised:
        brim("render", *line.split())
    said = raised.value.format_message() if isinstance(raised.value, click.ClickException) else str(raised.value)
    assert re.search(message, said)
    assert "\n" not in said
    assert sorted(here.iterdir()) == before


def test_episodes_of_another_version_and_altered_ones_are_refused(here):
    content = Path("episodes.json").read_text()
    Path("newer.json").write_text(content.replace("brim.arc-episodes/1", "brim.arc-episodes/2"))
    with pytest.raises(DamagedError, match=r"newer\.json is of version brim\.arc-episodes/2, this brim reads brim"):
        brim("render", "newer.json", "--episode", 0)
    Path("altered.json").write_text(content.replace('"steps', '"stops').replace('"reward":', '"reward": 1'))
    with pytest.raises(DamagedError, match=r"altered\.json"):
        brim("render", "altered.json", "--episode", 0)


def test_hostile_names_are_shown_in_drawings_reports_and_errors_and_never_obeyed(here, monkeypatch, capsys):
    said = []
    for words, status in (
        (["--ids", HOSTILE], 0),
        (["--ids", HOSTILE, "-o", "a.txt"], 0),
        (["--task", f"{HOSTILE[:-1]}x"], 2),
    ):
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["brim", "arc", "render", "tasks", *words])
        with pytest.raises(SystemExit) as raised:
            main()
        assert raised.value.code == status
        said.append("".join(capsys.readouterr()))
    assert "\\x1b[31mred\\u202e: 1 demonstration" in said[0]
    assert "task \\x1b[31mred\\u202e" in said[1]
    assert 'Did you mean "\\x1b[31mred\\u202e"?' in said[2]
    for text in (*said, Path("a.txt").read_text()):
        assert not set(text) & {"\x1b", "\u202e"}
