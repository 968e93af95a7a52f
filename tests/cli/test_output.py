"""Commands replace their own earlier outputs and nothing else, and take every option once."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from brim import BatchingConfig, BatchPlan, LengthCache, LengthEntry, OptionError
from brim.cli import TREE, lazarus, show
from brim.cli.app import Group
from brim.cli.bench import _check_files
from brim.data import write_sample_data


def brim(*words):
    """Run a command in this process."""
    Group("brim", "", TREE).main([str(word) for word in words], prog_name="brim", standalone_mode=False)


def commands(tree, *path):
    for name, (_, second) in tree.items():
        if isinstance(second, str):
            yield (*path, name)
        else:
            yield from commands(second, *path, name)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with train.jsonl, lengths.brim and plan/, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    write_sample_data("train.jsonl", 50)
    table = LengthCache.from_entries([LengthEntry(f"s{at}", 10 + at) for at in range(50)])
    table.save("lengths.brim")
    BatchPlan.build(table, BatchingConfig(token_budget=512)).save("plan")
    return tmp_path


WRITERS = {
    "sample-data -n 5 -o": "mine.jsonl",
    "plan report -p plan -o": "mine.html",
    "plan report -p plan --format png -o": "mine.png",
    "plan analyze -l lengths.brim -o": "mine.json",
    "gym run -t byte --mock -n 2 -q -o": "buffer.json",
    "gym run -t byte --mock -n 2 -q --output": "buffer.brim",
    "demo -n 50 --steps 0 --report": "demo.html",
    "arc rollout --data mock --envs 2 --engine numpy -o": "episodes.jsonl",
    "arc rollout --data mock --envs 2 --engine numpy --record": "episodes.json",
    "arc play mock --keys 5 --record": "played.json",
    "arc render mock -o": "task.png",
}

ASKING = {
    "llm map -i train.jsonl -m any --server http://127.0.0.1:9 -o": "answers.jsonl",
    "llm embed -i train.jsonl -m hash --text-field prompt -q -o": "vectors.npy",
    "llm bench -m any --server http://127.0.0.1:9 -o": "bench.json",
    "llm bench -m any --server http://127.0.0.1:9 --plot": "bench.png",
}
"""Commands that need a server, or that have nothing to do if their output is complete."""


@pytest.mark.parametrize(("line", "name"), [*WRITERS.items(), *ASKING.items()])
def test_a_file_that_brim_did_not_write_is_kept(here, line, name):
    Path(name).write_text('{"text": "mine"}\n')
    with pytest.raises(
        OptionError, match=f"^will not replace {name}: it is not .*; remove it, choose another output, or pass --force$"
    ):
        brim(*line.split(), name)
    assert Path(name).read_text() == '{"text": "mine"}\n'


@pytest.mark.parametrize(
    ("line", "name"),
    [pytest.param(*writer, marks=[pytest.mark.slow] * ("png" in writer[1])) for writer in WRITERS.items()],
)
def test_an_earlier_output_and_an_empty_file_are_replaced(here, line, name):
    Path(name).touch()
    brim(*line.split(), name)
    first = Path(name).stat()
    brim(*line.split(), name)
    assert Path(name).stat().st_ino != first.st_ino
    assert Path(name).stat().st_size == pytest.approx(first.st_size, rel=0.1)


def test_force_replaces_anything(here):
    Path("report.html").write_text("mine")
    brim("plan", "report", "-p", "plan", "--force")
    assert "mine" not in Path("report.html").read_text()[:100]


def test_sample_data_with_one_row_of_the_users_own_is_kept(here):
    with open("train.jsonl", "a") as file:
        file.write('{"id": "mine", "text": "a row that was added"}\n')
    with pytest.raises(OptionError, match="it is not sample data"):
        brim("sample-data", "-o", "train.jsonl")
    with pytest.raises(OptionError, match="it is not sample data"):
        brim("demo", "-n", 50, "--steps", 0, "-o", here)


@pytest.mark.parametrize("name", ["curve.png", "curve.svg", "curve.pdf"])
def test_a_plot_of_somebody_else_is_kept(here, name):
    from matplotlib.figure import Figure

    Figure().savefig(name)
    with pytest.raises(OptionError, match=f"will not replace {name}: it is not a plot of this command"):
        _check_files(None, name, force=False)
    with pytest.raises(OptionError, match="it is not a measurement"):
        _check_files("train.jsonl", None, force=False)
    _check_files("train.jsonl", name, force=True)


@pytest.mark.parametrize(
    ("tree", "path"),
    [(tree, path) for tree in (TREE, lazarus.TREE) for path in commands(tree)],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_an_option_that_takes_one_value_is_refused_when_it_is_given_twice(tree, path):
    """For every option of every command: click keeps the last value, and nobody would know of the others."""
    app = Group("x", "", tree)
    command = app
    for word in path:
        command = command.get_command(click.Context(app), word)
    checked = 0
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        words = [option.opts[0], "1"] if not option.is_flag else [option.opts[-1], *option.secondary_opts[:1]]
        given = words * 2 if not option.is_flag else words
        if option.multiple or (option.is_flag and not option.secondary_opts):
            continue
        with pytest.raises(click.UsageError, match=r"is given 2 times, but it takes one value") as caught:
            app.main([*path, *given], standalone_mode=False)
        assert caught.value.message.startswith("/".join(option.opts))
        checked += 1
    assert checked or not command.params


def test_options_that_take_several_values_can_be_repeated(here):
    brim("plan", "report", "-p", "plan", "-w", 2, "-w", 3, "-o", "report.html", "--json", "--json")
    assert Path("report.html").exists()


def test_names_from_the_data_cannot_steer_the_terminal(capsys):
    evil = "\x1b[31mEVIL\x1b[2J\0\u202e[red]x[/nothing]"
    show.show_table(["group"], [[evil]])
    show.show_facts({"name": evil, "number": 12345})
    show.show_words(["word"], [[evil]])
    said = capsys.readouterr().out
    assert said.count(r"\x1b[31mEVIL\x1b[2J\x00\u202e[red]x[/nothing]") == 3
    assert "12,345" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("line", ["plan info -p plan -n 40", "lengths histogram -c lengths.brim", "gym info"])
def test_a_reader_that_has_read_enough_is_no_failure(here, line):
    """`brim ... | head -1` exits with 0: 1 would mean that a check failed."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "brim", *line.split()], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
