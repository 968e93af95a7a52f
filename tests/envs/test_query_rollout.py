"""`step`, `batch_step`, `send` and `recv`, and `rollout` give the same steps, with and without batching."""

import asyncio
import itertools
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_worlds import (
    CALLS,
    CONFIG,
    DIM,
    MODES,
    QUESTIONS,
    Model,
    by_batch_step,
    by_rollout,
    by_send_recv,
    by_step,
    is_rewrite,
    pool_of,
    same,
    table,
    table_policy,
    world,
)

from brim.core.errors import BrimError, OptionError
from brim.envs.query import BatchedQueryMutationEnv, QueryMutationEnv, Question, TooManyInvalid
from brim.envs.query.scripted import scripted_answer
from brim.llm.config import PoolConfig
from brim.llm.embed.hash import HashEmbedder
from brim.llm.testing import Faults, LogNormal, ModelServer, Uniform, VirtualServer
from brim.llm.testing.replies import asked

gymnasium = pytest.importorskip("gymnasium", reason="an optional extra")
COUNT = 5
ACTIONS = table(COUNT, 10)
WAYS = {"step": by_step, "batch_step": by_batch_step, "send and recv": by_send_recv, "rollout": by_rollout}
RETRIED = replace(CALLS, attempts=8, patience=20.0)


def hashed(text):
    return HashEmbedder(DIM).encode([text])[0]


@pytest.fixture(scope="module")
def expected():
    """The steps of environments that are asked one call after another, by a server without latency."""
    with world(COUNT, batching=False) as envs:
        return by_step(envs, ACTIONS)


def test_the_steps_have_ends_of_both_kinds_and_rewards_of_both_kinds(expected):
    steps = [step for row in expected for step in row]
    assert {step[1] for step in steps} == {"0.0", "1.0"}
    assert any(step[2] for step in steps)
    assert any(step[3] for step in steps)


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_steps_with_and_without_batching(expected, way, mode, batching):
    with world(COUNT, autoreset_mode=mode, batching=batching) as envs:
        assert WAYS[way](envs, ACTIONS) == expected


def test_with_resets_by_hand_the_steps_are_the_same(expected):
    with world(COUNT, autoreset_mode="disabled") as envs:
        assert by_step(envs, ACTIONS) == expected
        assert by_rollout(envs, ACTIONS) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "batching"),
    [("step", True), ("batch_step", True), ("send and recv", True), ("rollout", True), ("rollout", False)],
)
def test_latencies_and_failed_attempts_of_a_real_server_change_nothing(expected, way, batching):
    server = ModelServer(
        answers=scripted_answer,
        embedding=hashed,
        latency=LogNormal(0.0005, 1.0),
        faults=Faults(error=0.015, drop=0.015),
        seed=len(way),
    )
    config = replace(CONFIG, embedder="embedder")
    with server, world(COUNT, server.url, config=config, calls=RETRIED, batching=batching) as envs:
        assert WAYS[way](envs, ACTIONS) == expected
        assert server.counts.failed > 0
        assert server.counts.max_in_service > 1 if batching else server.counts.max_in_service == 1


def test_two_servers_give_the_same_as_one(expected):
    servers = [
        VirtualServer(answers=scripted_answer, latency=Uniform(0, 0.002), seed=at, name=f"server {at}")
        for at in range(2)
    ]
    with pool_of(*servers, config=RETRIED) as pool:
        envs = BatchedQueryMutationEnv(COUNT, QUESTIONS, pool=pool, config=CONFIG, reward="numeric")
        assert by_rollout(envs, ACTIONS) == expected
    assert all(server.counts.served for server in servers)


def test_answers_from_a_cache_are_the_same(expected, tmp_path):
    for ask in (True, False):
        model = Model()
        with pool_of(model, cache=tmp_path / "answers") as pool:
            envs = BatchedQueryMutationEnv(COUNT, QUESTIONS, pool=pool, config=CONFIG, reward="numeric")
            assert by_rollout(envs, ACTIONS) == expected
        assert bool(model.calls) == ask


@pytest.mark.parametrize("reward", ["agreement", "judge", "similarity", lambda attempt: len(attempt.answer) / 100])
def test_every_reward_is_the_same_in_every_way(reward):
    actions = ACTIONS[:4]
    config = replace(CONFIG, goal=None)
    with world(COUNT, batching=False, reward=reward, config=config) as envs:
        first = by_step(envs, actions)
    with world(COUNT, Model(wait=lambda number: number % 5 * 1e-4), reward=reward, config=config) as envs:
        for way in (by_send_recv, by_rollout):
            assert way(envs, actions) == first


@pytest.mark.slow
@given(shuffle=st.integers(0, 2**31), latencies=st.integers(0, 2**31))
@settings(max_examples=6)
def test_no_order_of_sending_receiving_and_answering_changes_a_step(expected, shuffle, latencies):
    server = VirtualServer(answers=scripted_answer, latency=Uniform(0.0, 0.001), seed=latencies, slots=4)
    with world(COUNT, server, calls=RETRIED) as envs:
        assert by_send_recv(envs, ACTIONS, shuffle=shuffle) == expected
        assert by_rollout(envs, ACTIONS, lengths=[1 + shuffle % 9, 9 - shuffle % 9]) == expected


def seeded(call):
    """An answer that is a function of the seed of its request."""
    seed = call.sampling.seed
    return f"Query {seed}?" if is_rewrite(call) else f"The answer is {seed % 4}."


async def last_digit(attempt):
    return int(attempt.answer[-2]) / 3


def seeded_rows(way, *, seed=0, wait=None, **options):
    """The steps of environments that ask with a temperature, and the calls."""
    model = Model(seeded, wait=wait)
    config = replace(CONFIG, temperature=0.9, answer_temperature=0.5, goal=None)
    with world(COUNT, model, config=config, reward=last_digit, **options) as envs:
        return way(envs, ACTIONS, seed=seed), model.calls


def test_with_a_temperature_every_way_gives_the_same_steps():
    first, calls = seeded_rows(by_step, batching=False)
    assert len({step[1] for row in first for step in row}) == 4
    for way in WAYS.values():
        assert seeded_rows(way, wait=lambda number: number % 7 * 1e-4)[0] == first
    assert {call.sampling.temperature for call in calls} == {0.9, 0.5}


def test_with_a_temperature_every_call_has_a_seed_of_its_own():
    _, calls = seeded_rows(by_rollout)
    seeds = [call.sampling.seed for call in calls]
    assert len(set(seeds)) == len(seeds) == 2 * ACTIONS.size


def test_with_a_temperature_another_seed_gives_other_steps():
    assert seeded_rows(by_rollout)[0] != seeded_rows(by_rollout, seed=1)[0]


def test_without_a_temperature_no_seed_is_sent_and_equal_calls_are_asked_once():
    model = Model(wait=lambda number: 0.002)
    with world(8, model) as envs:
        envs.reset(seed=[3] * 8)
        batch = envs.batch_step([1] * 8)
    assert {call.sampling.seed for call in model.calls} == {None}
    assert len(model.calls) == 2
    assert len({info["answer"] for info in batch.infos}) == 1


@pytest.mark.parametrize("reward", ["numeric", "agreement", "similarity"])
@pytest.mark.parametrize("way", ["step", "rollout"])
def test_without_batching_never_more_than_one_call_is_open(reward, way):
    model = Model(wait=lambda number: asyncio.sleep(0))
    config = replace(CONFIG, embedder="embedder")
    with world(COUNT, model, reward=reward, batching=False, config=config) as envs:
        WAYS[way](envs, ACTIONS[:3])
    assert model.most_open == 1


def test_with_batching_calls_are_open_at_the_same_time():
    model = Model(wait=lambda number: 0.002)
    with world(COUNT, model) as envs:
        by_rollout(envs, ACTIONS[:3])
    assert model.most_open > 1


def test_environments_with_batching_do_not_end_the_turns_of_others():
    model = Model(wait=lambda number: asyncio.sleep(0))
    with world(COUNT, model, batching=False) as envs:
        BatchedQueryMutationEnv([QueryMutationEnv(task=envs.envs[0].task)])
        by_rollout(envs, ACTIONS[:3])
    assert model.most_open == 1


TAG = re.compile(r"<<lane (\d+) question (\d+)>>")


class Echo:
    """A model that answers with the tag of the question it was asked, and the number of its answer.

    Every answer is used once: the next call about it repeats the number, which `check` compares.
    """

    def __init__(self):
        self.numbers = itertools.count()

    def __call__(self, call):
        prompt = asked(call)
        last = re.findall(r"#(\d+)", prompt)
        tag = list(TAG.finditer(prompt))[-1]  # in the prompt of crossover, after that of the example
        return f"{tag[0]} #{next(self.numbers)} after {last[-1] if last else 'none'}"

    @staticmethod
    async def wait(number):
        for _ in range(number * 7919 % 5):
            await asyncio.sleep(0)


class Tags:
    """Vectors that name the lane and the number of an answer: cheaper than hashing, and told apart at once."""

    name, dim, asker = "tags", 3, None

    async def encode(self, text):
        return self.vector(text), None

    @staticmethod
    def vector(text):
        number = re.search(r"#(\d+)", text)
        return np.array([1 + int(TAG.search(text)[1]), int(number[1]) if number else 0, 1], np.float32)


@pytest.fixture
def tags(monkeypatch):
    monkeypatch.setattr("brim.envs.query.task.open_encoder", lambda name, pool: Tags())


def echoing(pool, count):
    def questions(lane):
        return [Question(id=f"{lane}.{at}", text=f"<<lane {lane} question {at}>>") for at in range(3)]

    async def reward(attempt):
        assert TAG.search(attempt.answer)[0] == TAG.search(attempt.query)[0] == TAG.search(attempt.before)[0]
        return 0.0

    envs = [QueryMutationEnv(questions(lane), pool=pool, config=CONFIG, reward=reward) for lane in range(count)]
    return BatchedQueryMutationEnv(envs, autoreset_mode="same_step")


def check_echo(lane, info, observation):
    """Every text of a step is about the question of the lane, and each call follows the one before it."""
    assert info["valid"], info
    tag = f"<<lane {lane} question {info['question_id'].split('.')[1]}>>"
    assert info["question_id"].startswith(f"{lane}.")
    assert all(TAG.findall(info[name]) == [TAG.search(tag).groups()] for name in ("before", "query", "answer"))
    before = re.search(r"#(\d+)", info["before"])
    query, answer = (re.search(r"#(\d+) after (\w+)", info[name]) for name in ("query", "answer"))
    assert query[2] == ("none" if before is None else before[1])
    assert answer[2] == query[1]
    vector = Tags.vector(info["query"])
    assert np.allclose(observation[:-1], vector / np.linalg.norm(vector), atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("tags")
def test_over_ten_thousand_steps_no_result_is_given_to_another_environment():
    count = 100
    with pool_of(Model(Echo(), wait=Echo.wait)) as pool:
        envs = echoing(pool, count)
        envs.batch_reset(seed=0)
        taken, under_way = np.zeros(count, np.int64), 0
        free = list(range(count))
        while taken.min() < 100:
            ids = [lane for lane in free if taken[lane] < 100]
            envs.send((np.array(ids, np.int64) + taken[ids]) % 6, ids)
            under_way += len(ids)
            batch = envs.recv(min(under_way, 40))
            under_way -= len(batch)
            free = batch.ids.tolist()
            for at, lane in enumerate(free):
                info = batch.infos[at]
                observation = info.get("final_obs", batch.observations[at])
                check_echo(lane, info.get("final_info", info), observation)
                taken[lane] += 1
        assert taken.sum() == 10_000


@pytest.mark.usefixtures("tags")
def test_in_a_rollout_no_result_is_given_to_another_environment():
    with pool_of(Model(Echo(), wait=Echo.wait)) as pool:
        envs = echoing(pool, 40)
        envs.batch_reset(seed=0)
        rollout = envs.rollout(lambda observations, ids, numbers: (ids + numbers) % 6, 12)
        for at, lane in np.ndindex(12, 40):
            check_echo(lane, rollout.infos[at][lane], rollout.next_observations[at, lane])


def test_in_a_rollout_every_environment_takes_its_own_steps_and_the_arrays_fit_together():
    steps, seen = 7, []
    extras = {"twice": lambda ids, numbers: 2 * numbers + ids, "half": lambda ids, numbers: numbers / 2}

    def policy(observations, ids, numbers):
        seen.extend(zip(ids.tolist(), numbers.tolist(), observations.copy(), strict=True))
        return ACTIONS[numbers, ids], {name: made(ids, numbers) for name, made in extras.items()}

    with world(COUNT, Model(wait=lambda number: number % 3 * 1e-3)) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(policy, steps)
    assert sorted(row[:2] for row in seen) == [(lane, at) for lane in range(COUNT) for at in range(steps)]
    for lane, at, observation in seen:
        assert same(rollout.observations[at, lane], observation)
    assert np.array_equal(rollout.actions, ACTIONS[:steps])
    numbers, ids = np.mgrid[:steps, :COUNT]
    for name, made in extras.items():
        assert np.array_equal(rollout.extras[name], made(ids, numbers))
        assert rollout.extras[name].dtype == made(ids, numbers).dtype
    follows = ~rollout.dones[:-1]
    assert np.array_equal(rollout.next_observations[:-1][follows], rollout.observations[1:][follows])
    assert (rollout.observations[1:][~follows][:, -1] == 0).all()
    assert rollout.valid.all()
    assert rollout.invalid == {}
    assert rollout.tally.calls == 2 * steps * COUNT
    assert [info["mutator"] for info in rollout.infos[0]] == [CONFIG.mutators[one] for one in ACTIONS[0]]


def test_in_a_rollout_no_environment_waits_for_another():
    """One is held back until all others have taken all of their steps."""
    release, held = threading.Event(), []

    def reward(attempt):
        if attempt.question.id == held[0] and not release.wait(30):
            raise AssertionError("it waited for the others, and they for it")
        return 0.0

    with world(4, reward=reward, config=replace(CONFIG, max_steps=50)) as envs:
        envs.reset(seed=[5, 1, 2, 3])
        first = [env.lane.question.id for env in envs.envs]
        held.append(first[0])
        assert first.count(first[0]) == 1
        done = []

        def watch(outcome):
            done.append(outcome.info["question_id"])
            if len(done) == 3 * 6:
                release.set()

        rollout = envs.rollout(lambda observations, ids, numbers: numbers % 6, 6, watch=watch)
    assert held[0] not in done[: 3 * 6]
    assert done[3 * 6 :] == [held[0]] * 6
    assert rollout.valid.all()


def test_a_policy_may_write_into_its_arguments():
    def spoiling(observations, ids, numbers):
        actions = ACTIONS[numbers, ids]
        extra = numbers * 10 + ids
        for array in (observations, ids, numbers):
            array.fill(0)
        return actions, {"extra": extra}

    with world(COUNT) as envs:
        envs.reset(seed=0)
        spoiled = envs.rollout(spoiling, 6)
        envs.reset(seed=0)
        plain = envs.rollout(table_policy(ACTIONS), 6)
    assert same(spoiled.observations, plain.observations)
    assert same(spoiled.actions, plain.actions)
    numbers, ids = np.mgrid[:6, :COUNT]
    assert np.array_equal(spoiled.extras["extra"], numbers * 10 + ids)


@pytest.mark.parametrize(
    "chosen",
    [[0], [0, 0, 6], [0, 0, -1], [0.0, 1.0, 2.0], None, [[0], [0], [0]], [True, False, True]],
    ids=repr,
)
def test_actions_that_do_not_exist_end_the_rollout_and_a_later_one_works(chosen):
    with world(3) as envs:
        envs.reset(seed=0)
        before = envs.state_dict()
        with pytest.raises(OptionError, match="actions must"):
            envs.rollout(lambda *_: chosen, 2)
        assert envs.state_dict() == before
        assert envs.rollout(table_policy(ACTIONS), 2).valid.all()


@pytest.mark.parametrize("where", ["policy", "watch", "stop"])
@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()], ids=repr)
def test_an_error_of_a_callback_ends_the_rollout_and_a_later_one_works(where, error):
    calls = itertools.count()

    def failing(*_):
        if next(calls) == 3:
            raise error
        return False

    def policy(observations, ids, numbers):
        if where == "policy":
            failing()
        return ACTIONS[numbers, ids]

    options = {} if where == "policy" else {where: failing}
    with world(COUNT, Model(wait=lambda number: number % 3 * 1e-3)) as envs:
        envs.reset(seed=0)
        with pytest.raises(type(error)):
            envs.rollout(policy, 5, **options)
        check_goes_on(envs)


@pytest.mark.parametrize("after", [0, 1, 7, 20])
def test_a_rollout_that_is_stopped_leaves_every_environment_between_two_steps(after):
    done = []
    with world(COUNT, Model(wait=lambda number: number % 4 * 1e-3)) as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(
            table_policy(ACTIONS), 8, stop=lambda: len(done) >= after, watch=lambda outcome: done.append(1)
        )
        assert rollout is None
        check_goes_on(envs)


def test_a_rollout_in_which_nothing_is_answered_can_be_stopped():
    looks = itertools.count()
    model = Model(wait=lambda number: 1000)
    with world(COUNT, model, calls=replace(CALLS, timeout=1000.0, attempt_timeout=1000.0)) as envs:
        envs.reset(seed=0)
        before = envs.state_dict()
        assert envs.rollout(table_policy(ACTIONS), 8, stop=lambda: next(looks) == 1) is None
        assert envs.state_dict() == before
        assert model.open == 0
        model.wait = None
        check_goes_on(envs)


@pytest.mark.parametrize("options", [{"num_steps": 0}, {"num_steps": -1}, {"num_steps": 2.5}])
def test_a_number_of_steps_that_is_none_is_refused(options):
    with world(2) as envs:
        envs.reset(seed=0)
        with pytest.raises(OptionError, match="num_steps"):
            envs.rollout(table_policy(ACTIONS), **options)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_of_invalid_steps_that_is_none_is_refused(share):
    with world(2) as envs:
        envs.reset(seed=0)
        with pytest.raises(OptionError, match="max_invalid"):
            envs.rollout(table_policy(ACTIONS), 1, max_invalid=share)


def test_before_any_reset_a_rollout_is_refused():
    with world(2) as envs, pytest.raises(gymnasium.error.ResetNeeded):
        envs.rollout(table_policy(ACTIONS), 1)


def test_after_steps_that_ended_episodes_a_rollout_resets_first():
    with world(COUNT, config=replace(CONFIG, max_steps=1)) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(COUNT, np.int64))
        assert all(env.lane.state.ended for env in envs.envs)
        rollout = envs.rollout(table_policy(ACTIONS), 3)
        assert (rollout.observations[0, :, -1] == 0).all()
        assert rollout.valid.all()
        assert all("mutator" in info for row in rollout.infos for info in row)


def test_a_closed_pool_ends_a_rollout_with_one_clear_error():
    with world(COUNT, Model(wait=lambda number: number % 3 * 1e-3)) as envs:
        envs.reset(seed=0)
        with pytest.raises(BrimError, match=r"pool (is|was) closed"):
            envs.rollout(table_policy(ACTIONS), 9, watch=lambda outcome: envs.pool.close())
        with pytest.raises(BrimError, match="the pool is closed"):
            envs.rollout(table_policy(ACTIONS), 1)


def check_goes_on(envs):
    """A rollout from here gives what an uninterrupted one would have given, and every state is one between steps."""
    taken = [env.lane.state.number for env in envs.envs]
    rows = by_rollout(envs, table(COUNT, 10), seed=None, lengths=[2])
    with world(COUNT) as fresh:
        whole = by_rollout(fresh, table(COUNT, 10))
    for lane, at in enumerate(taken):
        left = whole[lane][at : at + 2]
        assert rows[lane][: len(left)] == left


def rollout_of(pattern, **options):
    """A rollout of one environment in which the steps are invalid that a pattern says."""
    steps = iter(pattern)

    async def reward(attempt):
        return float("nan") if next(steps) else 0.0

    with world(1, reward=reward) as envs:
        envs.reset(seed=0)
        return envs.rollout(lambda *_: np.zeros(1, np.int64), len(pattern), **options)


@pytest.mark.parametrize("invalid", [29, 30])
def test_a_share_of_invalid_steps_that_is_reached_exactly_is_not_exceeded(invalid):
    """0.29 * 100 is less than 29 in floating point."""
    pattern = [at % 3 == 0 and at < 3 * invalid for at in range(100)]
    if invalid == 29:
        assert rollout_of(pattern, max_invalid=0.29).valid.sum() == 71
    else:
        with pytest.raises(TooManyInvalid, match="30 of 88 steps"):
            rollout_of(pattern, max_invalid=0.29)


@pytest.mark.parametrize("share", [None, 1.0])
def test_without_a_limit_too_many_invalid_is_never_raised(share):
    rollout = rollout_of([True] * 40, max_invalid=share)
    assert not rollout.valid.any()
    assert np.isnan(rollout.rewards).all()
    assert rollout.truncated.all()
    assert not rollout.terminated.any()


def test_after_too_many_invalid_steps_a_later_rollout_works():
    wrong = threading.Event()
    wrong.set()

    async def reward(attempt):
        return float("nan") if wrong.is_set() else 0.5

    with world(COUNT, reward=reward) as envs:
        envs.reset(seed=0)
        with pytest.raises(TooManyInvalid, match="steps are invalid"):
            envs.rollout(table_policy(ACTIONS), 10, max_invalid=0.1)
        wrong.clear()
        assert envs.rollout(table_policy(ACTIONS), 3, max_invalid=0.0).valid.all()


@given(pattern=st.lists(st.booleans(), min_size=1, max_size=24), share=st.integers(0, 100))
@settings(max_examples=25)
def test_too_many_invalid_is_raised_exactly_when_the_share_is_exceeded_or_nothing_answers(pattern, share):
    share /= 100
    invalid = streak = 0
    ends = None
    for at, wrong in enumerate(pattern, start=1):
        invalid, streak = invalid + wrong, streak + 1 if wrong else 0
        if wrong and (invalid / len(pattern) > share or (streak >= 8 and share < 1)):
            ends = f"{invalid} of {at} steps are invalid.*RewardFailed.*nan"
            break
    if ends is None:
        rollout = rollout_of(pattern, max_invalid=share)
        assert rollout.valid[:, 0].tolist() == [not wrong for wrong in pattern]
        assert rollout.invalid == ({"RewardFailed": invalid} if invalid else {})
    else:
        with pytest.raises(TooManyInvalid, match=ends):
            rollout_of(pattern, max_invalid=share)


def test_pool_options_do_not_change_the_steps(expected):
    for config in (PoolConfig(hedge=True), PoolConfig(embed_batch=1), PoolConfig(attempts=2)):
        with world(COUNT, calls=config) as envs:
            assert by_rollout(envs, ACTIONS) == expected
