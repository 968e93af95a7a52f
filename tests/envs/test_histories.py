"""Learning histories: the learners against scalar ones, and the file in every process that reads it."""

import json
import multiprocessing
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DamagedError, DataError, OptionError
from brim.envs.darkroom.histories import (
    COLUMNS,
    Histories,
    HistoryConfig,
    is_histories,
    learning_curve,
    split_goals,
    write_histories,
)
from brim.envs.darkroom.ppo import Ppo, PpoLearner, choose, softmax
from brim.envs.darkroom.q_learning import QLearner, QLearning
from brim.envs.darkroom.room import ACTIONS, Darkroom, play

SMALL = HistoryConfig(room=Darkroom(size=5, horizon=10), episodes=6, keep_every=4, repeats=3)


@pytest.fixture
def stored(tmp_path):
    write_histories(tmp_path / "histories.h5", SMALL)
    return Histories(tmp_path / "histories.h5")


@given(st.integers(0, 5), st.sampled_from([0.3, 1.0]), st.integers(0, 2))
@settings(max_examples=10)
def test_q_learning_updates_as_the_textbook_says(seed, rate, replays):
    room = Darkroom(size=4, horizon=6)
    config = QLearning(learning_rate=rate, discount=0.9, initial_value=2.0, epsilon=0.3, replays=replays)
    goals = np.array([[0, 0], [3, 2]])
    learner = QLearner(config, room, goals, seed=seed)
    episodes = [learner.episode(number) for number in range(4)]
    for lane in range(len(goals)):
        table = np.full((16, ACTIONS), 2.0)
        for episode in episodes:
            cells = [int(y) * 4 + int(x) for x, y in episode.states[lane]]
            x, y = episode.states[lane, -1]
            moved = play(
                room, goals[lane : lane + 1], lambda state, acted=episode.actions[lane]: acted[None, state.elapsed]
            )
            assert (moved.states[0] == episode.states[lane]).all()
            steps = list(
                zip(
                    cells,
                    episode.actions[lane],
                    episode.rewards[lane],
                    [*cells[1:], _last(room, x, y, episode.actions[lane, -1])],
                    strict=True,
                )
            )
            for cell, action, reward, after in steps + replays * steps[::-1]:
                table[cell, action] += rate * (reward + 0.9 * table[after].max() - table[cell, action])
        np.testing.assert_allclose(learner.values[lane], table, rtol=1e-4)


def _last(room, x, y, action):
    dx, dy = [(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)][action]
    return min(max(int(y) + dy, 0), room.size - 1) * room.size + min(max(int(x) + dx, 0), room.size - 1)


def test_a_q_learner_that_is_greedy_takes_the_best_action():
    room = Darkroom(size=3, horizon=4)
    learner = QLearner(QLearning(initial_value=0.0, epsilon=0.0, replays=0), room, np.array([[2, 1]]), seed=0)
    learner.values[:, :, 4] = 1.0  # right, into the goal and against the wall behind it
    assert learner.episode(0).actions[0].tolist() == [4, 4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [HistoryConfig(algorithm=QLearning(epsilon=0.0)), HistoryConfig(algorithm=Ppo(), keep_every=16)],
    ids=["q_learning", "ppo"],
)
def test_a_history_goes_from_searching_to_nearly_the_best(config):
    train, _ = split_goals(config)
    curve = learning_curve(config, train).mean(axis=0)
    assert curve[0] < 2.5
    assert curve[-1] > 0.85 * config.room.best_return(train).mean()


def test_the_gradient_of_ppo_is_that_of_its_objective():
    """Against finite differences of the clipped objective with its entropy bonus, where neither side of the clip is on
    the edge.
    """
    room, config = Darkroom(size=3, horizon=5), Ppo(batch_episodes=1, entropy=0.05)
    learner = PpoLearner(config, room, np.array([[0, 0]]), seed=1)
    learner.logits += np.random.default_rng(0).normal(size=learner.logits.shape)
    episode = play(room, learner.goals, lambda state: np.array([(3 * state.elapsed + 1) % ACTIONS]))
    cells, actions = room.cell(episode.states), episode.actions.astype(np.int64)
    advantages, before = np.array([[1.0, -2.0, 0.5, 3.0, -1.0]]), np.log(np.array([[0.3, 0.1, 0.15, 0.01, 0.9]]))
    lanes = np.zeros_like(cells)

    def objective(logits):
        chances = softmax(logits)[0][cells[0]]
        ratio = chances[np.arange(5), actions[0]] / np.exp(before[0])
        clipped = np.clip(ratio, 1 - config.clip, 1 + config.clip)
        surrogate = np.minimum(ratio * advantages[0], clipped * advantages[0])
        return (surrogate - config.entropy * (chances * np.log(chances)).sum(axis=1)).sum()

    gradient = learner._policy_gradient(lanes, cells, actions, advantages, before)
    for place in np.ndindex(learner.logits.shape):
        nudge = np.zeros_like(learner.logits)
        nudge[place] = 1e-6
        slope = (objective(learner.logits + nudge) - objective(learner.logits - nudge)) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-5)


def test_advantages_are_the_discounted_sum_of_surprises():
    room, config = Darkroom(size=3, horizon=6), Ppo()
    learner = PpoLearner(config, room, np.array([[0, 0], [2, 2]]), seed=0)
    learner.values += np.random.default_rng(0).normal(size=learner.values.shape)
    episode = play(room, learner.goals, lambda state: np.array([1, (state.elapsed * 2) % ACTIONS]))
    for lane in range(2):
        x, y = episode.states[lane, -1]
        cells = [*room.cell(episode.states[lane]), _last(room, x, y, episode.actions[lane, -1])]
        values = learner.values[lane][cells]
        surprise = episode.rewards[lane] + config.discount * values[1:] - values[:-1]
        for time in range(6):
            expected = sum((config.discount * config.trace) ** (k - time) * surprise[k] for k in range(time, 6))
            assert learner.advantages(episode)[lane, time] == pytest.approx(expected)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=5), st.floats(0, 0.999))
def test_an_action_is_chosen_by_where_the_number_falls(weights, number):
    chances = np.array(weights) / sum(weights)
    chosen = choose(chances[None], np.array([number]))[0]
    edges = [0.0, *np.cumsum(chances)]
    assert edges[chosen] - 1e-9 <= number <= edges[chosen + 1] + 1e-9


@given(st.integers(3, 9), st.floats(0.05, 0.6), st.integers(0, 3))
def test_held_out_goals_are_none_of_the_others_and_as_far_away(size, share, seed):
    config = HistoryConfig(room=Darkroom(size=size), held_out=share, seed=seed)
    train, held_out = split_goals(config)
    together = {tuple(goal) for goal in train} | {tuple(goal) for goal in held_out}
    assert len(train) + len(held_out) == len(together) == size**2 - 1
    assert len(held_out) == max(1, round(share * (size**2 - 1)))
    if len(held_out) > 4:
        assert abs(config.room.distance(held_out).mean() - config.room.distance(train).mean()) < 1


def test_no_history_is_about_a_goal_that_is_held_out(stored):
    _, held_out = split_goals(SMALL)
    assert not {tuple(goal) for goal in stored.goals} & {tuple(goal) for goal in held_out}
    assert (stored.held_out == held_out).all()
    history = stored.read(range(stored.count))
    landed = history.rewards[:, :-1] > 0  # the state after a rewarded step is the goal, within an episode
    landed[:, SMALL.room.horizon - 1 :: SMALL.room.horizon] = False
    rows, steps = np.nonzero(landed)
    assert (history.states[rows, steps + 1] == stored.goals[rows]).all()
    assert len(rows) > 100


def test_the_file_holds_every_kept_episode_as_it_was_lived(stored):
    train, _ = split_goals(SMALL)
    learner = QLearner(SMALL.algorithm, SMALL.room, np.repeat(train, SMALL.repeats, axis=0), seed=SMALL.seed)
    lived = [learner.episode(number) for number in range(SMALL.lived)]
    kept = lived[:: SMALL.keep_every]
    assert len(kept) == SMALL.episodes
    history = stored.read(range(stored.count))
    for name in COLUMNS:
        assert (getattr(history, name) == np.concatenate([getattr(episode, name) for episode in kept], axis=1)).all()
    assert stored.steps == SMALL.steps
    assert stored.fingerprint == SMALL.fingerprint
    assert stored.config == json.loads(json.dumps(SMALL.to_dict()))


def test_the_same_config_gives_the_same_histories_and_another_seed_others(tmp_path):
    def recorded(name, config):
        write_histories(tmp_path / name, config)
        return Histories(tmp_path / name).read([0, 5, 9]).actions

    again = recorded("b.h5", HistoryConfig(room=SMALL.room, episodes=6, keep_every=4, repeats=3))
    assert (recorded("a.h5", SMALL) == again).all()
    assert (
        again != recorded("c.h5", HistoryConfig(room=SMALL.room, episodes=6, keep_every=4, repeats=3, seed=1))
    ).any()


@given(st.lists(st.integers(0, 53), min_size=1, max_size=8))
@settings(max_examples=20)
def test_histories_come_in_the_order_asked_for(rows):
    stored = _shared()
    every = stored.read(range(stored.count))
    assert (stored.read(rows).actions == every.actions[rows]).all()


_SHARED = []


def _shared():
    if not _SHARED:
        import tempfile

        folder = tempfile.mkdtemp()
        write_histories(f"{folder}/h.h5", SMALL)
        _SHARED.append(Histories(f"{folder}/h.h5"))
    return _SHARED[0]


def test_a_copy_that_was_pickled_reads_the_same(stored):
    before = stored.read([1, 2]).actions
    copy = pickle.loads(pickle.dumps(stored))
    assert (copy.read([1, 2]).actions == before).all()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_opens_the_file_for_itself(stored, method):
    before, handle = stored.read([3, 0]).actions.tolist(), id(stored._file)
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    children = [context.Process(target=_answer, args=(stored, answers)) for _ in range(2)]
    for child in children:
        child.start()
    told = [answers.get() for _ in children]
    for child in children:
        child.join()
    assert [actions for actions, _, _ in told] == [before, before]
    assert all(opened == own for _, opened, own in told)
    assert id(stored._file) == handle
    assert stored.read([3, 0]).actions.tolist() == before


def _answer(stored, answers):
    answers.put((stored.read([3, 0]).actions.tolist(), stored._process, os.getpid()))


def test_closed_and_read_again_it_opens_again(stored):
    before = stored.read([0]).actions
    stored.close()
    assert (stored.read([0]).actions == before).all()


def test_a_file_that_is_missing_truncated_or_something_else_is_an_error_of_ours(stored):
    with pytest.raises(DataError, match="there are no histories"):
        Histories(stored.path.with_name("other.h5"))
    stored.close()
    data = stored.path.read_bytes()
    stored.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedError):
        Histories(stored.path)
    stored.path.write_bytes(b"something else")
    with pytest.raises(DamagedError, match="no HDF5 file"):
        Histories(stored.path)


def removed(name):
    def damage(file):
        del file.attrs[name]

    return damage


def changed(name, value):
    def damage(file):
        file.attrs[name] = value

    return damage


def column(name, value):
    def damage(file):
        del file[name]
        if value is not None:
            file[name] = value

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(removed(name) for name in ("format", "fingerprint", "config", "goals", "held_out")),
        *(changed(name, 3) for name in ("format", "fingerprint", "config", "goals", "held_out")),
        changed("format", np.arange(3)),
        changed("config", "{"),
        changed("config", "[]"),
        changed("goals", "many"),
        changed("goals", np.zeros((2, 2), np.int16)),
        changed("held_out", np.zeros((2, 3), np.int16)),
        column("states", None),
        column("actions", np.zeros(4, np.int8)),
        column("rewards", np.zeros((3, 4), np.float32)),
        column("actions", np.zeros((57, 60), "S1")),
        lambda file: (column("actions", None)(file), file.create_group("actions")),
    ],
)
def test_a_file_without_one_of_its_parts_is_an_error_of_ours(stored, damage):
    h5py = pytest.importorskip("h5py")
    stored.close()
    with h5py.File(stored.path, "a") as file:
        damage(file)
    with pytest.raises(DamagedError, match=r"histories\.h5"):
        Histories(stored.path)


def test_a_file_of_ours_is_known_when_it_is_cut_off_and_of_another_version_and_nothing_else_is(stored, tmp_path):
    h5py = pytest.importorskip("h5py")
    stored.close()
    assert is_histories(stored.path)
    whole = stored.path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 4096):
        stored.path.write_bytes(whole[:size])
        assert is_histories(stored.path)
    other = tmp_path / "other.h5"
    for format, ours in (("brim.histories/7", True), ("brim.nested/1", False), ("my brim.histories/1", False)):
        with h5py.File(other, "w") as file:
            file.attrs["format"] = format
        assert is_histories(other) is ours
    for text in (b"", b"brim.histories/1", whole[:8]):
        other.write_bytes(text)
        assert not is_histories(other)
    assert not is_histories(tmp_path)
    assert not is_histories(tmp_path / "nothing")


def test_a_flipped_byte_is_noticed(stored):
    before = stored.read([0]).states
    stored.close()
    data = bytearray(stored.path.read_bytes())
    at = data.find(before.tobytes()[:60])
    assert at > 0
    data[at] ^= 1
    stored.path.write_bytes(data)
    with pytest.raises(DamagedError, match="is damaged"):
        Histories(stored.path).read([0])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (QLearning, {"learning_rate": 0.0}, "learning_rate must be above 0 and at most 1, got 0.0"),
        (QLearning, {"discount": 1.0}, "discount must be at least 0 and below 1, got 1.0"),
        (QLearning, {"epsilon": 1.5}, "epsilon must be between 0 and 1, got 1.5"),
        (QLearning, {"initial_value": float("nan")}, "initial_value must be finite, got nan"),
        (QLearning, {"replays": -1}, "replays must not be negative, got -1"),
        (Ppo, {"clip": 0.0}, "clip must be above 0 and finite, got 0.0"),
        (Ppo, {"value_rate": 2.0}, "value_rate must be between 0 and 1, got 2.0"),
        (Ppo, {"entropy": -1.0}, "entropy must not be negative or infinite, got -1.0"),
        (HistoryConfig, {"episodes": 0}, "episodes must be at least 1, got 0"),
        (HistoryConfig, {"held_out": 1.0}, "held_out must be between 0 and 1, got 1.0"),
    ],
)
def test_options_that_cannot_work_are_refused_with_their_value(kind, options, message):
    with pytest.raises(OptionError, match=message):
        kind(**options)
