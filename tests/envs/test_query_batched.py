"""`BatchedQueryMutationEnv`: the same as Gymnasium's own `SyncVectorEnv`, and `send` and `recv` as EnvPool has them."""

import asyncio
import base64
import json
import threading
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_worlds import (
    CONFIG,
    DIM,
    MODES,
    QUESTIONS,
    Model,
    by_rollout,
    is_rewrite,
    listed,
    pool_of,
    same,
    table,
    world,
)

from brim.core.errors import DamagedError, MismatchError, OptionError
from brim.envs.query import BatchedQueryMutationEnv, QueryMutationEnv
from brim.envs.query.scripted import scripted_answer, scripted_questions
from brim.llm.failures import Rejected
from brim.llm.testing.replies import asked

gymnasium = pytest.importorskip("gymnasium", reason="an optional extra")
vector = pytest.importorskip("gymnasium.vector")
COUNT = 4


def sometimes_rejected(call):
    """The scripted answers; rewrites of some queries are always refused."""
    return Rejected("refused") if is_rewrite(call) and len(asked(call)) % 7 == 0 else scripted_answer(call)


def without_times(value):
    """Infos without the text of failures, in which the seconds of a call stand."""
    if not isinstance(value, dict):
        return value
    return {name: without_times(inner) for name, inner in value.items() if name != "failure"}


@pytest.fixture(scope="module")
def pool():
    with pool_of(Model(sometimes_rejected)) as pool:
        yield pool


@pytest.fixture(scope="module")
def task(pool):
    return QueryMutationEnv(QUESTIONS, pool=pool, config=CONFIG, reward="numeric").task


def fresh(task, count=COUNT, mode="next_step", **options):
    return BatchedQueryMutationEnv([QueryMutationEnv(task=task) for _ in range(count)], autoreset_mode=mode, **options)


def oracle(task, count=COUNT, mode="next_step"):
    modes = {name: one for one, name in zip(vector.AutoresetMode, MODES, strict=True)}
    return vector.SyncVectorEnv([lambda: QueryMutationEnv(task=task)] * count, autoreset_mode=modes[mode])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 2**31), choice=st.integers(0, 2**31))
@settings(max_examples=6)
def test_every_step_is_the_same_as_that_of_gymnasiums_own_vector_environment(task, mode, seed, choice):
    ours, theirs = fresh(task, mode=mode), oracle(task, mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    pairs = [(ours.reset(seed=seed), theirs.reset(seed=seed))]
    for number, actions in enumerate(table(COUNT, 12, seed=choice)):
        pairs.append((ours.step(actions), theirs.step(actions)))
        observations, rewards, terminated, truncated, _ = pairs[-1][0]
        assert ours.observation_space.contains(observations)
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
        ended = terminated | truncated
        if mode == "disabled" and ended.any():
            pairs.append(tuple(envs.reset(options={"reset_mask": ended.copy()}) for envs in (ours, theirs)))
        elif number % 5 == 4:  # a reset by hand in between, also where an episode has ended
            pairs.append((ours.reset(), theirs.reset()))
    for one, other in pairs:
        assert all(same(without_times(a), without_times(b)) for a, b in zip(one, other, strict=True))
        assert list(one[-1]) == list(other[-1])


def test_the_comparison_with_gymnasium_meets_ends_of_all_kinds(task):
    ours = fresh(task)
    ours.reset(seed=0)
    steps = [ours.step(actions) for actions in table(COUNT, 40)]
    assert any(step[2].any() for step in steps)
    assert any((step[3] & ~np.isnan(step[1])).any() for step in steps)
    assert any(np.isnan(step[1]).any() for step in steps)


def test_each_environment_does_what_it_would_do_alone(task):
    many = fresh(task)
    alone = [QueryMutationEnv(task=task) for _ in range(COUNT)]
    many.reset(seed=9)
    for number, env in enumerate(alone):
        env.reset(seed=9 + number)
    for actions in table(COUNT, 10):
        batch = many.batch_step(actions)
        for number, env in enumerate(alone):
            if env.lane.state.ended:
                env.reset()
                continue
            expected = env.step(actions[number])
            got = [column[number] for column in batch]
            assert same(got[0], expected[0])
            assert same(float(got[1]), expected[1])
            assert [bool(got[2]), bool(got[3])] == list(expected[2:4])
            assert same(without_times(got[4]), without_times(expected[4]))


def test_the_mask_is_not_taken_out_of_the_options_nor_changed(task):
    envs = fresh(task, mode="disabled")
    first, _ = envs.reset(seed=0)
    mask = np.array([False, True, False, True])
    options = {"reset_mask": mask, "more": 1}
    observations, infos = envs.reset(options=options)
    assert options.keys() == {"reset_mask", "more"}
    assert options["reset_mask"] is mask
    assert mask.tolist() == infos["_query"].tolist() == [False, True, False, True]
    assert (observations != first).any(axis=1).tolist() == mask.tolist()


@pytest.mark.parametrize(
    "mask",
    [
        np.array([True] * 3),
        np.array([[True] * 4]),
        np.array([1, 0, 1, 0]),
        np.array([1.0, 0.0, 1.0, 0.0]),
        [True, False, True, False],
        np.zeros(4, np.bool_),
        True,
    ],
    ids=repr,
)
def test_a_mask_that_is_none_is_refused_and_nothing_is_reset(task, mask):
    envs = fresh(task)
    envs.reset(seed=0)
    before = envs.state_dict()
    with pytest.raises(OptionError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
    assert envs.state_dict() == before


def test_with_disabled_autoreset_an_ended_episode_must_be_reset(task):
    envs = fresh(task, mode="disabled")
    envs.reset(seed=0)
    for actions in table(COUNT, 5):
        ended = envs.batch_step(actions).dones
        if ended.any():
            break
    before = envs.state_dict()
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
        envs.step(np.zeros(COUNT, np.int64))
    assert envs.state_dict() == before
    running = np.flatnonzero(~ended).tolist()
    envs.batch_step([0] * len(running), running)
    envs.reset(options={"reset_mask": ended})
    assert all("mutator" in info for info in envs.batch_step([0] * sum(ended), np.flatnonzero(ended)).infos)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_by_hand_after_an_end_does_not_swallow_the_next_step(task, mode):
    envs = fresh(task, mode=mode)
    envs.reset(seed=0)
    for actions in table(COUNT, 6):
        *_, terminated, truncated, _ = envs.step(actions)
        if (terminated | truncated).any():
            break
    envs.reset()
    infos = envs.step(np.zeros(COUNT, np.int64))[-1]
    for number in range(COUNT):
        info = listed(infos, number)
        assert "mutator" in info.get("final_info", info)


@pytest.mark.parametrize("mode", MODES)
def test_whatever_is_written_into_returned_values_changes_nothing_later(task, mode):
    envs, untouched = fresh(task, mode=mode), fresh(task, mode=mode)
    returned = [envs.reset(seed=1)]
    untouched.reset(seed=1)
    kept = []
    for actions in table(COUNT, 8):
        for values in returned[-1]:
            spoil(values)
        returned.append(envs.step(actions))
        kept.append((deepcopy(returned[-1]), untouched.step(actions)))
        ended = kept[-1][1][2] | kept[-1][1][3]
        if mode == "disabled" and ended.any():
            returned.append(envs.reset(options={"reset_mask": ended}))
            untouched.reset(options={"reset_mask": ended})
        spoil(actions)
    for one, other in kept:
        assert all(same(without_times(a), without_times(b)) for a, b in zip(one, other, strict=True))


def spoil(values):
    """Write into arrays and dictionaries, as deep as they go."""
    if isinstance(values, dict):
        for inner in values.values():
            spoil(inner)
        values.clear()
    elif isinstance(values, np.ndarray):
        if values.dtype == object:
            for inner in values:
                spoil(inner)
        values.fill(None if values.dtype == object else 1)


def begun(envs, seed):
    envs.reset(seed=seed)
    return [env.lane.state.seed for env in envs.envs]


def test_an_integer_gives_each_environment_its_own_seed_and_a_list_is_taken_as_it_is(task):
    assert begun(fresh(task), 5) == [5, 6, 7, 8]
    assert begun(fresh(task), np.int64(5)) == [5, 6, 7, 8]
    assert begun(fresh(task), [3, 1, 3, 2**64]) == [3, 1, 3, 2**64]


def test_none_in_a_list_goes_on_with_the_episodes_of_an_environment(task):
    envs = fresh(task)
    envs.reset(seed=5)
    assert begun(envs, [1, None, 2, None]) == [1, 6, 2, 8]
    assert [env.lane.state.episode for env in envs.envs] == [0, 1, 0, 1]


def test_without_seeds_the_next_episodes_begin(task):
    envs = fresh(task)
    assert len(set(begun(envs, None))) == COUNT
    again = [env.lane.state.seed for env in envs.envs]
    assert begun(envs, None) == again
    assert {env.lane.state.episode for env in envs.envs} == {1}


def test_seeds_of_numpy_are_the_same_as_integers(task):
    envs = fresh(task)
    assert begun(envs, np.array([3, 1, 4, 1])) == [3, 1, 4, 1]
    again = fresh(task)
    again.reset(seed=[3, 1, 4, 1])
    assert json.dumps(envs.state_dict()) == json.dumps(again.state_dict())


@pytest.mark.parametrize(
    "seed",
    [-1, [1, 2, 3], [1, 2, 3, -4], [1, 2, 3, 4.5], ["1", "2", "3", "4"], "1234", 1.5],
    ids=repr,
)
def test_what_is_no_seed_is_refused(task, seed):
    envs = fresh(task)
    envs.reset(seed=0)
    before = envs.state_dict()
    with pytest.raises((OptionError, gymnasium.error.Error), match=r"(?i)seed"):
        envs.reset(seed=seed)
    assert envs.state_dict() == before


@pytest.mark.parametrize("mode", MODES[:2])
def test_gymnasiums_wrappers_see_the_same_as_around_its_own_vector_environment(mode):
    from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

    with world(COUNT, autoreset_mode=mode) as ours:
        theirs = oracle(ours.envs[0].task, mode=mode)
        wrapped = [DictInfoToList(RecordEpisodeStatistics(envs)) for envs in (ours, theirs)]
        for envs in wrapped:
            envs.reset(seed=2)
        episodes = 0
        for actions in table(COUNT, 14):
            one, other = [envs.step(actions) for envs in wrapped]
            for info in (*one[-1], *other[-1]):
                episodes += "episode" in info
                info.get("episode", {}).pop("t", None)
            assert all(map(same, one[:4], other[:4]))
            assert all(map(same, one[4], other[4]))
        assert episodes > 4


def test_statistics_of_episodes_are_right_with_resets_by_mask():
    """Gymnasium's own vector environment takes the mask out of the options, so that its wrapper resets all."""
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    with world(COUNT, autoreset_mode="disabled") as envs:
        wrapped = RecordEpisodeStatistics(envs)
        wrapped.reset(seed=2)
        lengths, returns = np.zeros(COUNT, np.int64), np.zeros(COUNT)
        episodes = 0
        for actions in table(COUNT, 14):
            _, rewards, terminated, truncated, infos = wrapped.step(actions)
            lengths += 1
            returns += rewards
            ended = terminated | truncated
            if ended.any():
                assert np.array_equal(infos["episode"]["l"][ended], lengths[ended])
                assert np.array_equal(infos["episode"]["r"][ended], returns[ended])
                episodes += ended.sum()
                lengths[ended] = returns[ended] = 0
                wrapped.reset(options={"reset_mask": ended.copy()})
        assert episodes > 4


def test_normalizing_wrappers_work():
    from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward

    with world(COUNT) as envs:
        wrapped = NormalizeReward(NormalizeObservation(envs))
        wrapped.reset(seed=2)
        for actions in table(COUNT, 3):
            assert np.isfinite(wrapped.step(actions)[0]).all()


def test_environments_of_a_list_share_a_pool_and_may_have_questions_of_their_own(pool):
    halves = [QUESTIONS[:6], QUESTIONS[6:]]
    envs = BatchedQueryMutationEnv(
        [QueryMutationEnv(half, pool=pool, config=CONFIG, reward="numeric") for half in halves]
    )
    observations, _ = envs.batch_reset(seed=0)
    assert observations.shape == (2, DIM + 1)
    for _ in range(12):
        batch = envs.batch_step([0, 0])
        for half, info in zip(halves, batch.infos, strict=True):
            assert info["question_id"] in {question.id for question in half}
        assert batch.dones.tolist() == (batch.terminated | batch.truncated).tolist()


def test_batch_reset_and_batch_step_take_some_environments_in_any_order(task):
    envs, twin = fresh(task), fresh(task)
    observations, infos = envs.batch_reset(seed=0)
    assert np.array_equal(observations, twin.reset(seed=0)[0])
    batch = envs.batch_step([1, 2], [3, 0])
    for at, (number, action) in enumerate([(3, 1), (0, 2)]):
        alone = twin.batch_step([action], [number])
        assert same(batch.observations[at], alone.observations[0])
        assert same(without_times(batch.infos[at]), without_times(alone.infos[0]))
    observations, infos = envs.batch_reset([2], seed=0)
    assert observations.shape == (1, DIM + 1)
    assert len(infos) == 1
    assert envs.envs[2].lane.state.seed == 2
    assert envs.envs[1].lane.state.step == 0


class Gated:
    """A model whose answers wait for permission, by the text of the question."""

    def __init__(self):
        self.open = {}
        self.model = Model(wait=self.wait)
        self.loop = None

    async def wait(self, number):
        self.loop = asyncio.get_running_loop()
        prompt = asked(self.model.calls[number])
        for question in QUESTIONS:
            if question.text in prompt:
                await self.gate(question.id).wait()

    def gate(self, name):
        return self.open.setdefault(name, asyncio.Event())

    def let(self, envs, *numbers):
        """Let the calls of environments pass from now on."""
        for number in numbers:
            envs.pool.post(self.gate(envs.envs[number].lane.question.id).set)


@pytest.fixture
def gated():
    """Four environments, each with another question, and the gates before their answers."""
    gated = Gated()
    with world(COUNT, gated.model) as envs:
        for seed in range(100):
            envs.reset(seed=seed)
            if len({env.lane.state.question for env in envs.envs}) == COUNT:
                break
        yield envs, gated
        gated.let(envs, *range(COUNT))


def test_steps_come_in_the_order_of_their_completion_and_the_rest_later(gated):
    envs, gates = gated
    envs.send([0, 1, 2, 3])
    for number in (2, 0):
        gates.let(envs, number)
        batch = envs.recv()
        assert batch.ids.tolist() == [number]
        assert batch.infos[0]["mutator"] == CONFIG.mutators[number]
    gates.let(envs, 1, 3)
    assert sorted(envs.recv(2).ids.tolist()) == [1, 3]


def test_a_deadline_returns_fewer_or_none_and_nothing_is_lost(gated):
    envs, gates = gated
    envs.send([0] * COUNT)
    none = envs.recv(4, deadline=0.0)
    assert len(none) == 0
    assert none.observations.shape == (0, DIM + 1)
    gates.let(envs, 1)
    assert envs.recv(1).ids.tolist() == [1]
    assert len(envs.recv(3, deadline=0.01)) == 0
    assert len(envs.recv(0)) == 0
    gates.let(envs, 0, 2, 3)
    assert sorted(envs.recv(3, deadline=60).ids.tolist()) == [0, 2, 3]


@pytest.mark.parametrize("deadline", [float("inf"), 1e12])
def test_a_deadline_that_never_comes_is_none(gated, deadline):
    envs, gates = gated
    gates.let(envs, *range(COUNT))
    envs.send([0] * COUNT)
    assert len(envs.recv(COUNT, deadline=deadline)) == COUNT


def test_no_more_than_max_n_are_returned_and_the_others_next_time(gated):
    envs, gates = gated
    gates.let(envs, *range(COUNT))
    envs.send([0] * COUNT)
    first = envs.recv(1, 1).ids.tolist() + envs.recv(1, 1).ids.tolist()
    rest = envs.recv(2, 3).ids.tolist()
    assert sorted(first + rest) == list(range(COUNT))


def test_more_than_are_under_way_cannot_be_received(gated):
    envs, gates = gated
    with pytest.raises(OptionError, match=r"1 results.*0 environments"):
        envs.recv()
    envs.send([0, 0], [1, 2])
    with pytest.raises(OptionError, match=r"3 results.*2 environments"):
        envs.recv(3)
    gates.let(envs, 1, 2)
    assert sorted(envs.recv(2).ids.tolist()) == [1, 2]
    assert len(envs.recv(0)) == 0


@pytest.mark.parametrize(("least", "most"), [(-1, None), (2, 1), (0, 0), (1, 0)])
def test_limits_that_contradict_each_other_are_refused(gated, least, most):
    envs, _ = gated
    envs.send([0, 0], [0, 1])
    with pytest.raises(OptionError, match="min_n"):
        envs.recv(least, most)


@pytest.mark.parametrize(
    ("actions", "ids", "match"),
    [
        ([0, 0], [1, 1], "differ"),
        ([0], [4], "no environment 4"),
        ([0], [-1], "no environment -1"),
        ([0], [0, 1], "2 integers"),
        ([0, 0, 0], None, "4 integers"),
        ([[0], [0], [0], [0]], None, "4 integers"),
        ([0, 0, 6, 0], None, "between 0 and 5, got 6 at place 2"),
        ([0, -1, 0, 0], None, "got -1"),
        ([0.0, 0.0, 0.0, 0.0], None, "integers"),
        ([True, False, True, False], None, "integers"),
        (["a", "b", "c", "d"], None, "integers"),
        (None, None, "integers"),
        ([0], [0.7], "0.7"),
        ([0, 0, 0, 0], np.array([True, False, True, False]), "True"),
        ([0], ["0"], "'0'"),
    ],
)
@pytest.mark.parametrize("way", ["send", "batch_step"])
def test_what_does_not_fit_is_refused_and_no_step_begins(gated, way, actions, ids, match):
    envs, _ = gated
    before = envs.state_dict()
    with pytest.raises(OptionError, match=match):
        getattr(envs, way)(actions, ids)
    assert envs.state_dict() == before
    with pytest.raises(OptionError):
        envs.recv()


def test_an_empty_list_of_steps_can_be_sent(gated):
    envs, _ = gated
    envs.send([], [])
    assert len(envs.batch_step([], [])[0]) == 0


def test_an_environment_that_is_at_work_takes_nothing_else(gated):
    envs, gates = gated
    envs.send([0, 1], [2, 3])
    with pytest.raises(OptionError, match="environment 3 is still at work"):
        envs.send([0, 0], [0, 3])
    for call in (
        lambda: envs.step(np.zeros(COUNT, np.int64)),
        lambda: envs.batch_step([0], [0]),
        envs.reset,
        lambda: envs.batch_reset([0]),
        envs.state_dict,
        lambda: envs.load_state_dict({}),
        lambda: envs.rollout(lambda *_: np.zeros(COUNT, np.int64), 1),
    ):
        with pytest.raises(OptionError, match="environment 2 is still at work"):
            call()
    gates.let(envs, *range(COUNT))
    assert sorted(envs.recv(2).ids.tolist()) == [2, 3]
    envs.send([0], [0])
    assert envs.recv().ids.tolist() == [0]


@pytest.mark.parametrize("way", ["send", "step", "batch_step"])
def test_before_any_reset_nothing_can_be_sent(task, way):
    envs = fresh(task)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        getattr(envs, way)(np.zeros(COUNT, np.int64))
    envs.batch_reset([0], seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="environment 1 was never reset"):
        getattr(envs, way)(np.zeros(COUNT, np.int64))
    assert len(envs.batch_step([0], [0])[0]) == 1


def test_closing_cancels_what_is_under_way_and_the_environments_stay_as_they_were(gated):
    envs, _ = gated
    before = envs.state_dict()
    envs.send([0] * COUNT)
    envs.close()
    assert envs.state_dict() == before


@pytest.mark.parametrize("mode", MODES)
def test_a_state_saved_as_json_at_any_step_continues_as_if_uninterrupted(task, mode):
    def stepped(envs, actions):
        """A step, and the reset that must follow it by hand."""
        step = envs.step(actions)
        ended = step[2] | step[3]
        if mode == "disabled" and ended.any():
            step += envs.reset(options={"reset_mask": ended})
        return step

    actions = table(3, 9)
    states, rows = [], []
    envs = fresh(task, 3, mode)
    envs.reset(seed=0)
    for row in actions:
        states.append(json.dumps(envs.state_dict()))
        rows.append(stepped(envs, row))
    for at, state in enumerate(states):
        other = fresh(task, 3, mode)
        other.load_state_dict(json.loads(state))
        assert json.dumps(other.state_dict()) == state
        for row, expected in zip(actions[at:], rows[at:], strict=True):
            got = stepped(other, row)
            assert all(same(without_times(a), without_times(b)) for a, b in zip(got, expected, strict=True))


def test_a_state_that_was_never_reset_stays_so(task):
    envs = fresh(task)
    envs.load_state_dict(json.loads(json.dumps(fresh(task).state_dict())))
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(COUNT, np.int64))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"config": replace(CONFIG, embedder="hash-8")}, "8 numbers.*16 before"),
        ({"questions": scripted_questions(12, seed=2)}, "questions"),
        ({"questions": QUESTIONS[::-1]}, "questions"),
        ({"config": replace(CONFIG, mutators=CONFIG.mutators[::-1])}, "mutators"),
        ({"config": replace(CONFIG, max_steps=1)}, "max_steps|steps"),
        ({"config": replace(CONFIG, goal=0.5)}, "goal"),
        ({"config": replace(CONFIG, model="other")}, "models"),
        ({"reward": "exact"}, "reward"),
        ({"count": 3}, "4 environments before.*3 now"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_state_of_other_environments_is_refused(task, options, match):
    envs = fresh(task)
    envs.reset(seed=0)
    state = json.loads(json.dumps(envs.state_dict()))
    with world(options.pop("count", COUNT), **options) as other:
        other.reset(seed=5)
        before = other.state_dict()
        with pytest.raises(MismatchError, match=match):
            other.load_state_dict(state)
        assert other.state_dict() == before


def test_a_state_covers_the_questions_of_every_environment(pool):
    def made(second):
        both = [QUESTIONS[:6], second]
        return BatchedQueryMutationEnv(
            [QueryMutationEnv(one, pool=pool, config=CONFIG, reward="numeric") for one in both]
        )

    envs = made(QUESTIONS[6:])
    envs.reset(seed=0)
    state = envs.state_dict()
    made(QUESTIONS[6:]).load_state_dict(state)
    with pytest.raises(MismatchError, match="questions"):
        made(QUESTIONS[5:11]).load_state_dict(state)


def damaged(task):
    envs = fresh(task, 2)
    envs.reset(seed=0)
    envs.step(np.array([0, 1]))
    good = json.loads(json.dumps(envs.state_dict()))
    lane = good["lanes"][0]
    short = base64.b64encode(np.ones(DIM - 1, "<f4").tobytes()).decode()
    single = base64.b64encode(np.ones(1, "<f4").tobytes()).decode()
    wrong = {
        "seed": [None, "x", 1.5, []],
        "episode": [None, "x", 1.5],
        "question": [None, "x", 1.5, -1, len(QUESTIONS)],
        "query": [None, 5, []],
        "step": [None, "x", -1, 99],
        "number": [None, "x", -1],
        "ended": [None, "no", 2],
        "vector": [5, "!", "AAAA", [], short, single],
    }
    yield from (None, [], {}, "state", 5)
    for name in good:
        yield {key: value for key, value in good.items() if key != name}
    yield from ({**good, "dim": value} for value in (None, "x", [], 1.5))
    yield from ({**good, "models": value} for value in (None, "x", 5, [5], [{"a": 1}], []))
    yield from ({**good, "lanes": value} for value in (None, "xy", 5, [None, None], [[], []], {"a": 1, "b": 2}))
    for name, values in wrong.items():
        lanes = [{key: value for key, value in lane.items() if key != name}]
        lanes += [{**lane, name: value} for value in values]
        yield from ({**good, "lanes": [good["lanes"][1], one]} for one in lanes)
    yield {**good, "lanes": [{**lane, "more": 1}, lane]}
    yield {**good, "lanes": [{**lane, "ended": False, "vector": None}, lane]}


def test_a_damaged_state_is_refused_whatever_the_damage_and_nothing_changes(task):
    envs = fresh(task, 2)
    envs.reset(seed=3)
    before = envs.state_dict()
    accepted = []
    for state in damaged(task):
        try:
            envs.load_state_dict(state)
        except (DamagedError, MismatchError) as error:
            accepted += [str(error)] if "\n" in str(error) else []
        except Exception as error:
            accepted.append(f"{error!r}: {str(state)[-300:]}")
        else:
            accepted.append(str(state)[-300:])
            envs.load_state_dict(before)
        assert json.dumps(envs.state_dict()) == json.dumps(before)
    assert accepted == []


@given(lengths=st.lists(st.integers(1, 4), min_size=2, max_size=4))
@settings(max_examples=8)
def test_rollouts_continue_from_a_loaded_state_as_if_uninterrupted(task, lengths):
    actions = table(3, sum(lengths))
    whole = by_rollout(fresh(task, 3), actions, seed=4)
    state, rows = None, [[], [], []]
    for length in lengths:
        envs = fresh(task, 3)
        if state is None:
            envs.reset(seed=4)
        else:
            envs.load_state_dict(json.loads(state))
        for number, more in enumerate(by_rollout(envs, actions, seed=None, lengths=[length])):
            rows[number] += more
        state = json.dumps(envs.state_dict())
    assert without_failures(rows) == without_failures(whole)


def without_failures(rows):
    """Steps without the text of failures."""
    return [[(*step, without_times(info)) for *step, info in row] for row in rows]


def test_no_thread_is_started_for_an_environment():
    before = threading.active_count()
    with world(200, reward=lambda attempt: 0.5) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(200, np.int64))
        # The event loop, and the executor of asyncio, which runs rewards that are plain functions.
        assert threading.active_count() - before <= 1 + 32
    with world(200, reward="numeric") as envs:
        before = threading.active_count()
        envs.reset(seed=0)
        envs.step(np.zeros(200, np.int64))
        assert threading.active_count() <= before


def test_infos_of_a_step_are_masked_by_environment(task):
    envs = fresh(task)
    envs.reset(seed=0)
    infos = envs.step(np.arange(COUNT))[-1]
    assert [listed(infos, number)["mutator"] for number in range(COUNT)] == list(CONFIG.mutators[:COUNT])
