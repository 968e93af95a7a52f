"""Episodes are recorded as they were played, written, read again, and found out if they are altered."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.document import Document
from brim.core.errors import DamagedError, DataError
from brim.envs.arc import (
    ArcEpisode,
    BboxAction,
    EnvironmentConfig,
    EpisodeRecorder,
    JaxArcConfig,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_policy_rollout,
    batch_reset,
    batch_step,
    episodes_of,
    family_tasks,
    read_episodes,
    record_episodes,
    replay,
    write_episodes,
)
from brim.envs.arc.arrays import split_key
from brim.envs.arc.episodes.files import episodes_bytes, is_episodes
from brim.envs.arc.episodes.record import standing
from brim.envs.arc.rollout import example_policy

TASKS = family_tasks(6)
SIZE = 7  # larger than the grids, so that there is padding
FORMATS = ("point", "bbox", "mask")


def config_of(form="bbox", auto_reset="same_step", mode="train", steps=5, **others):
    return JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=steps, auto_reset=auto_reset, episode_mode=mode, **others),
        dataset=UnifiedDatasetConfig(max_grid_height=SIZE, max_grid_width=SIZE),
        action=UnifiedActionConfig(selection_format=form),
    )


def random_actions(rng, form, count):
    operation = rng.integers(0, 36, count).astype(np.int32)  # one of them does not exist
    if form == "mask":
        return MaskAction(operation, rng.random((count, SIZE, SIZE)) < 0.3)
    kind = {"point": PointAction, "bbox": BboxAction}[form]
    return kind(operation, *(rng.integers(0, SIZE, count).astype(np.int32) for _ in kind._fields[1:]))


def play(config, *, envs=5, steps=13, seed=0, limit=None):
    """Play random actions, and return the recorder and every step as it was."""
    rng = np.random.default_rng(seed)
    recorder = EpisodeRecorder(TASKS, config, limit=limit)
    states, _ = batch_reset(split_key(seed, envs, arrays="numpy"), config, TASKS)
    seen = []
    for _ in range(steps):
        before, grids = standing(states), np.array(states.working_grid)
        actions = random_actions(rng, config.action.selection_format, envs)
        states, _, rewards, _, infos = batch_step(states, actions, config)
        recorder.step(before, actions, rewards, infos)
        seen.append((before, grids, actions, np.array(rewards), {name: np.array(one) for name, one in infos.items()}))
    return recorder, seen


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("auto_reset", ["off", "next_step", "same_step"])
def test_recorded_episodes_are_those_that_were_played(form, auto_reset):
    """The definition: go through the steps of one environment, and begin again where the step count is 0."""
    config = config_of(form, auto_reset, steps=4)
    recorder, seen = play(config, seed=3)
    expected = []
    for env in range(5):
        taken = []
        for before, grids, actions, rewards, infos in seen:
            if not before.running[env]:
                continue
            taken = taken if before.steps[env] else []
            taken.append((grids[env], type(actions)(*(part[env] for part in actions)), rewards[env]))
            if infos["terminated"][env] or infos["truncated"][env]:
                expected.append((TASKS[before.task[env]].id, env, int(before.episode[env]), taken))
    found = sorted(recorder.finished, key=lambda one: (one.env, one.episode))
    assert [(one.task.id, one.env, one.episode) for one in found] == [facts[:3] for facts in expected]
    assert len(found) >= 5
    for episode, (*_, taken) in zip(found, expected, strict=True):
        assert episode.steps == len(taken)
        assert episode.reward == pytest.approx(sum(float(reward) for *_, reward in taken), abs=1e-5)
        for frame, (grid, *_) in zip(episode.frames, taken, strict=False):
            rows, columns = frame.grid.shape
            assert np.array_equal(frame.grid, grid[:rows, :columns])
            assert (grid != 10).sum() == rows * columns
        for step, (_, action, _) in enumerate(taken):
            assert all(np.array_equal(part[step], one) for part, one in zip(episode.actions, action, strict=True))


@pytest.mark.parametrize("arrays", ["numpy", pytest.param("jax", marks=pytest.mark.jax)])
def test_episodes_of_a_trajectory_are_those_that_a_recorder_finds(arrays):
    config = config_of("point", mode="test")
    states, _ = batch_reset(split_key(1, 4, arrays=arrays), config, TASKS)
    trajectory = batch_policy_rollout(example_policy, states, config, num_steps=12)
    found = episodes_of(trajectory, TASKS, config)
    recorded = record_episodes(example_policy, TASKS, config, envs=4, steps=12, seed=1)
    assert episodes_bytes(found) == episodes_bytes(sorted(recorded, key=lambda one: (one.env, one.episode)))
    assert {one.kind for one in found} == {"test"}
    with pytest.raises(DataError, match="the 5 tasks are not those of the trajectory, which has 6"):
        episodes_of(trajectory, TASKS[:5], config)
    with pytest.raises(DataError, match="a trajectory is what batch_policy_rollout returns"):
        episodes_of({}, TASKS, config)


def test_a_limit_counts_what_it_leaves_out_and_unfinished_episodes_are_told_apart():
    every, _ = play(config_of(steps=5), steps=12)
    few, _ = play(config_of(steps=5), steps=12, limit=3)
    assert [one.id for one in few.finished] == [one.id for one in every.finished[:3]]
    assert few.left_out == len(every.finished) - 3 > 0
    under_way = every.unfinished()
    assert under_way
    assert not any(one.terminated or one.truncated for one in under_way)
    assert all(len(one.frames) == one.steps + 1 for one in under_way)


def test_an_episode_under_way_when_the_recording_begins_is_not_recorded():
    config = config_of(steps=4)
    states, _ = batch_reset(split_key(0, 2, arrays="numpy"), config, TASKS)
    rng = np.random.default_rng(0)
    states, *_ = batch_step(states, paint_one_cell(rng), config)
    recorder = EpisodeRecorder(TASKS, config)
    for _ in range(3):
        before, actions = standing(states), paint_one_cell(rng)
        states, _, rewards, _, infos = batch_step(states, actions, config)
        recorder.step(before, actions, rewards, infos)
    assert recorder.finished == []


def paint_one_cell(rng):
    """Actions that do not end an episode: they fill one cell."""
    zeros = np.zeros(2, np.int32)
    return BboxAction(rng.integers(0, 10, 2).astype(np.int32), zeros, zeros, zeros, zeros)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), forms=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3))
def test_what_is_written_is_read(tmp_path, seed, forms):
    episodes = list(itertools.chain(*(play(config_of(form), envs=2, steps=6, seed=seed)[0].finished for form in forms)))
    path = tmp_path / "episodes.json"
    write_episodes(path, episodes)
    assert is_episodes(path)
    again = read_episodes(path)
    assert episodes_bytes(again) == path.read_bytes() == episodes_bytes(episodes)
    for one, two in zip(episodes, again, strict=True):
        assert (one.id, one.kind, one.pair, one.outcome) == (two.id, two.kind, two.pair, two.outcome)
        assert one.task == two.task
        assert all(np.array_equal(*parts) for parts in zip(one.actions, two.actions, strict=True))
        assert len(two.frames) == two.steps + 1


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("episodes") / "episodes.json"
    write_episodes(path, play(config_of("mask"), envs=2, steps=6)[0].finished)
    return path


def test_every_damaged_byte_is_found(written, tmp_path):
    content, damaged = written.read_bytes(), tmp_path / "damaged.json"
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 150, replace=False).tolist():
        for broken in (content[:place], content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]):
            damaged.write_bytes(broken)
            with pytest.raises((DamagedError, DataError)):
                read_episodes(damaged)


def altered(written, tmp_path, change):
    """A file with other values and a checksum that fits them."""
    values = json.loads(written.read_text())
    change(values)
    for name in ("format", "checksum"):
        values.pop(name, None)
    path = tmp_path / "altered.json"
    path.write_bytes(Document(format="brim.arc-episodes/1", what="").encode(values))
    return path


def set_first(name, value):
    return lambda values: values["episodes"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_first("pair", 99), "has no train pair 99: it has 3"),
        (set_first("pair", -1), "a number from 0 up is expected, got -1"),
        (set_first("task", 10**6), "IndexError"),
        (set_first("solved", 1), "solved must be true or false, got 1"),
        (set_first("kind", "tests"), "kind must be"),
        (set_first("actions", ["99999999999 0:1"]), "the numbers of an action have 32 bits, got 99999999999"),
        (set_first("actions", [f"{10**20} 0:1"]), "OverflowError"),
        (set_first("actions", ["3 0:fff"]), "a row of 7 cells has no cell for the bits fff"),
        (lambda values: values["tasks"][0].pop("train"), "KeyError: 'train'"),
        (lambda values: values["tasks"][0].update(id=3), "the id of a task must be a string, got 3"),
        (lambda values: values["configs"][0].update(unknown=1), "unknown"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_the_reason(written, tmp_path, change, message):
    with pytest.raises(DamagedError, match=message) as caught:
        read_episodes(altered(written, tmp_path, change))
    assert "record the episodes again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_version_and_other_files_are_told_apart(written, tmp_path):
    newer = tmp_path / "newer.json"
    newer.write_bytes(written.read_bytes().replace(b"arc-episodes/1", b"arc-episodes/2"))
    with pytest.raises(DamagedError, match=r"brim\.arc-episodes/2.*brim\.arc-episodes/1"):
        read_episodes(newer)
    assert is_episodes(newer)
    other = tmp_path / "other.json"
    other.write_text('{"train": []}')
    assert not is_episodes(other)
    assert not is_episodes(tmp_path / "missing.json")
    for path in (other, tmp_path / "missing.json"):
        with pytest.raises(DataError, match=path.name):
            read_episodes(path)
    with pytest.raises(DataError, match="there are no episodes to write"):
        write_episodes(tmp_path / "empty.json", [])
    assert not (tmp_path / "empty.json").exists()


def test_an_outcome_that_does_not_follow_from_the_actions_is_found_out():
    episode = play(config_of())[0].finished[0]
    for name, value in (("reward", 9.0), ("similarity", 0.123), ("terminated", not episode.terminated)):
        facts = {field: getattr(episode, field) for field in ArcEpisode.__dataclass_fields__}
        with pytest.raises(DamagedError, match=r"its actions end with .* but it says"):
            _ = ArcEpisode(**{**facts, name: value}).frames


def test_replay_refuses_what_cannot_have_been_played():
    config = config_of(steps=2)
    zeros = np.zeros(3, np.int32)
    filled = BboxAction(zeros, zeros, zeros, zeros, zeros)
    with pytest.raises(DataError, match="ends after 2 steps, but there are 3 actions"):
        replay(TASKS[0], config, filled)
    with pytest.raises(DataError, match="has no test pair 1: it has 1"):
        replay(TASKS[0], config, filled, kind="test", pair=1)
    with pytest.raises(DataError, match="selection_format is 'bbox', so actions must be BboxAction, got PointAction"):
        replay(TASKS[0], config, PointAction(zeros, zeros, zeros))
    with pytest.raises(DataError, match=r"BboxAction.c1 must have shape \(3,\), got float64"):
        replay(TASKS[0], config, replace_part(filled, 2, zeros * 0.5))


def replace_part(action, place, value):
    parts = list(action)
    parts[place] = value
    return type(action)(*parts)


def test_the_engine_that_was_named_does_not_change_a_file():
    config = config_of()
    episode = play(config)[0].finished[0]
    facts = {field: getattr(episode, field) for field in ArcEpisode.__dataclass_fields__}
    other = replace(config, environment=replace(config.environment, engine="cpu"))
    assert episodes_bytes([ArcEpisode(**{**facts, "config": other})]) == episodes_bytes([episode])
