"""`brim train arc` as it is typed: help, mistakes, and the parts of a run that need no JAX."""

import os
import re
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forked import run_command

from brim.cli.train.arc import GROUPS, NOT_OPTIONS, arc
from brim.core.errors import MismatchError, OptionError
from brim.envs.arc import FAMILY, BboxAction, family_tasks, solution
from brim.train.arc.config import MAY_CHANGE, ArcPpoConfig, generate_tasks
from brim.train.arc.evaluate import KEPT, kind_of, random_actions, replay_actions, score_by_kind, selection
from brim.train.arc.page import POINTS, page_data, render_arc_page
from brim.train.arc.plot import save_curves
from brim.train.arc.report import Evaluation, Score, UpdateReport

HIDDEN = Path(__file__).parents[1] / "support" / "as_if_missing"
METRICS = ("loss", "entropy", "value_loss", "reward", "solved", "kl", "clipped")
kinds = st.lists(st.sampled_from(FAMILY), min_size=1, unique=True)


def update(step, **more):
    metrics = dict.fromkeys(METRICS, step / 10) | {"solved": 0.5}
    values = {"steps": 9, "env_steps": 12 * step, "learning_rate": 0.1, "metrics": metrics, "seconds": 1.0}
    return UpdateReport(step=step, **values, **more)


def evaluation(solved=7, tasks=10):
    scores = {
        policy: {kind: Score(tasks=tasks, solved=many, steps=2 * tasks, invalid=1) for kind in FAMILY}
        for policy, many in {"sampled": solved, "greedy": solved - 1, "random": 0}.items()
    }
    return Evaluation(scores=scores, seconds=1.0)


def test_without_torch_and_jax_the_help_is_printed_and_a_run_says_what_to_install(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(HIDDEN)}

    def brim(*words):
        command = [sys.executable, "-m", "brim", "train", "arc", *words]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)

    assert "brim train arc --resume run/" in brim("--help").stdout
    refused = brim("-o", "out")
    assert refused.returncode == 2
    assert refused.stderr == (
        "MissingExtraError: brim.train.arc needs jax, which is not installed; run: pip install 'brim[arc]'\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_help_fits_in_80_columns_and_has_the_defaults_of_the_options():
    text = CliRunner().invoke(arc, ["--help"], terminal_width=80).output
    assert max(map(len, text.splitlines())) <= 80
    said = {param.name: re.search(r"\[default: (.*)\]", getattr(param, "help", "") or "") for param in arc.params}
    config = ArcPpoConfig()
    for option in fields(ArcPpoConfig):
        if option.name != "kinds":
            assert float(said[option.name][1]) == getattr(config, option.name), option.name


def test_every_option_of_a_run_is_a_flag():
    flags = {param.name for param in arc.params}
    options = {option.name for option in fields(ArcPpoConfig)}
    assert flags - {"help"} == options | set(NOT_OPTIONS)
    assert {name for names in GROUPS.values() for name in names} | {"quiet", "as_json"} == flags


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--kinds recolor,flip", "got 'recolor'. Did you mean \"recolour\"?"),
        ("--kinds flip,flip", "kinds must name a kind only once, got flip, flip"),
        ("--size 4", "size must be at least 5 and at most 30, got 4"),
        ("--envs 10 --steps 1 --minibatches 4", "minibatches must divide the 10 steps of an update"),
        ("--discount 1.5", "discount must be at least 0 and at most 1, got 1.5"),
        ("--lr 0", "learning_rate must be above 0 and finite, got 0"),
        ("--seed -1", "seed must be at least 0"),
        ("--updates 0", "updates must be at least 1, got 0"),
        ("--tasks 100000", "tasks must be at least 1 and at most 65536, got 100000"),
        ("--evaluate run --seed 3", "--seed has no effect on --evaluate; leave it out"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, line, message):
    done = run_command(["brim", "train", "arc", *line.split()], tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


@settings(max_examples=20)
@given(kinds, st.integers(5, 8), st.integers(0, 2**32 - 1))
def test_options_come_back_from_json_and_allow_what_their_kinds_need(kinds, size, seed):
    config = ArcPpoConfig(kinds=tuple(kinds), size=size, seed=seed, held_out=len(kinds))
    assert ArcPpoConfig.from_dict(config.to_dict()) == config
    for task in generate_tasks(config, held_out=True):
        needed = solution(task, task.test[0].input).operation[:-1]
        assert set(needed.tolist()) <= set(config.operations)
    assert config.environment("test").environment.episode_mode == "test"
    assert config.environment().shape == (size, size)


def test_the_learning_rate_falls_in_equal_steps():
    config = ArcPpoConfig(updates=4, learning_rate=0.8)
    assert [config.rate(update) for update in range(4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_only_what_does_not_reach_the_weights_may_change():
    config = ArcPpoConfig()
    for option in fields(config):
        other = ("flip",) if option.name == "kinds" else getattr(config, option.name) * 2 or 1
        if option.name in MAY_CHANGE:
            assert getattr(config.resumed(**{option.name: other}), option.name) == other
        else:
            with pytest.raises(MismatchError, match=f"resumed: {option.name} "):
                config.resumed(**{option.name: other})
    with pytest.raises(OptionError, match=r"unknown option 'kind' of an ARC run\. Did you mean \"kinds\""):
        ArcPpoConfig.from_dict({"kind": ["flip"]})


def played_solutions(tasks, config):
    """The shortest solutions without their submissions, and then what is likely to spoil them."""
    steps = config.environment.max_episode_steps
    answers = [solution(task, task.test[0].input) for task in tasks]
    parts = np.zeros((5, steps, len(tasks)), np.int32)
    parts[0] = config.action.allowed_operations[0]
    for number, answer in enumerate(answers):
        for place, part in enumerate(answer):
            parts[place, : len(part) - 1, number] = part[:-1]
    return BboxAction(*parts)


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_solutions_score_full_marks_of_every_kind_and_later_actions_do_not_count(seed):
    config = ArcPpoConfig(seed=seed, held_out=8)
    tasks, environment = generate_tasks(config, held_out=True), config.environment("test")
    played = replay_actions(played_solutions(tasks, environment), tasks, environment, seed=seed, record=True)
    scores = score_by_kind(tasks, played)
    assert list(scores) == list(FAMILY)
    assert all(score.solved_share == 1 and score.invalid == 0 for score in scores.values())
    needed = [len(solution(task, task.test[0].input).operation) - 1 for task in tasks]
    assert played.steps.tolist() == needed
    assert sum(score.steps for score in scores.values()) == sum(needed)
    assert all(episode.solved for episode in played.episodes)


def test_random_actions_are_allowed_cover_everything_and_solve_few_tasks():
    config = ArcPpoConfig(held_out=400)
    tasks, environment = generate_tasks(config, held_out=True), config.environment("test")
    actions = random_actions(400, environment, seed=0)
    assert set(actions.operation.ravel().tolist()) == set(config.operations)
    for part in actions[1:]:
        assert set(part.ravel().tolist()) == set(range(5))
    played = replay_actions(actions, tasks, environment, seed=0)
    assert played.invalid.sum() == 0
    assert played.solved.mean() < 0.05
    assert random_actions(3, environment, seed=1).r1.tolist() != random_actions(3, environment, seed=2).r1.tolist()


def test_an_action_that_is_not_allowed_is_counted_as_invalid():
    config = ArcPpoConfig(kinds=("move",), held_out=3)
    tasks, environment = generate_tasks(config, held_out=True), config.environment("test")
    wrong = BboxAction(*(np.zeros((6, 3), np.int32) for _ in range(5)))
    played = replay_actions(wrong, tasks, environment, seed=0)
    assert score_by_kind(tasks, played) == {"move": Score(tasks=3, solved=0, steps=18, invalid=18)}
    assert score_by_kind(tasks, played)["move"].invalid_share == 1


def test_solved_and_failed_episodes_of_every_kind_are_kept_to_look_at():
    config = ArcPpoConfig(held_out=80)
    tasks, environment = generate_tasks(config, held_out=True), config.environment("test")
    actions = played_solutions(tasks, environment)
    actions.operation[:, 40:] = config.operations[-1]
    kept = selection(replay_actions(actions, tasks, environment, seed=0, record=True).episodes)
    for kind in FAMILY:
        mine = [episode for episode in kept if kind_of(episode.task) == kind]
        assert sum(episode.solved for episode in mine) == KEPT
        assert 1 <= sum(not episode.solved for episode in mine) <= KEPT
    assert [episode.env for episode in kept] == sorted(episode.env for episode in kept)


def test_reports_come_back_from_json():
    one = update(3, held_out=0.25)
    assert UpdateReport.from_dict(asdict(one)) == one
    found = evaluation()
    assert Evaluation.from_dict(asdict(found)) == found
    assert found.total("sampled") == Score(tasks=40, solved=28, steps=80, invalid=4)
    assert [kind for kind, _ in found.rows()] == [*FAMILY, "all"]


def test_the_page_has_the_scores_the_curves_and_no_markup_of_the_title():
    updates = [update(step, held_out=0.5 if step == 2 else None) for step in (1, 2, 3)]
    page = render_arc_page(
        title="<script>x</script>", updates=updates, evaluation=evaluation(), options=ArcPpoConfig().to_dict()
    )
    assert "The agent solves 70.0% of 40 tasks with rules it was not trained on; random actions solve 0%." in page
    assert "<script>x" not in page
    data = page_data(updates, evaluation())
    assert data["evaluated"] == {"update": [2], "solved": [0.5]}
    assert data["training"]["loss"] == [0.1, 0.2, 0.3]
    assert data["random"]["value"] == 0
    part = render_arc_page(title="x", updates=updates, evaluation=None, options={})
    assert "The run is not finished: 3 updates of 9 made" in part
    long = [update(step) for step in range(1, 5 * POINTS)]
    assert len(page_data(long, None)["training"]["update"]) == POINTS


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("finished", [True, False])
def test_the_page_draws_its_charts_without_a_complaint_and_fits(opened, tmp_path, width, finished):
    path = tmp_path / "report.html"
    updates = [update(step, held_out=step / 100 if step % 9 == 0 else None) for step in range(1, 60)]
    found = evaluation() if finished else None
    path.write_text(render_arc_page(title="run", updates=updates, evaluation=found, options=ArcPpoConfig().to_dict()))
    page = opened(path, viewport={"width": width, "height": 800})
    assert page.locator("figure svg path.curve").count() == 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    label = page.locator("#solved-chart .plot").get_attribute("aria-label")
    assert label.startswith("Solved over 59 updates: training from 50.0% to 50.0%; held out from 9.0% to 54.0%")
    assert ("random actions 0%" in label) is finished


def test_the_curves_are_drawn_to_a_png(tmp_path):
    save_curves([update(1, held_out=0.1), update(2, held_out=0.4)], evaluation(), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"must end in \.png"):
        save_curves([update(1)], None, tmp_path / "curves.gif")


def test_tasks_of_evaluation_have_other_rules_than_those_of_training():
    config = replace(ArcPpoConfig(), tasks=200, held_out=200)
    rules = [{task.id.rpartition("-")[0] for task in generate_tasks(config, held_out=held)} for held in (False, True)]
    assert not rules[0] & rules[1]
    assert generate_tasks(config, count=3)[2].id == family_tasks(3)[2].id
