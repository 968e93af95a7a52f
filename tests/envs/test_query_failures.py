"""A call that fails makes its step invalid: truncated, NaN for a reward, and the reason; no reward is made up."""

import asyncio
import math
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
    is_rewrite,
    pool_of,
    same,
    single,
    table,
    table_policy,
    world,
)

from brim.core.errors import BrimError
from brim.envs.query import BatchedQueryMutationEnv, Question, TooManyInvalid
from brim.envs.query.scripted import scripted_answer
from brim.llm.embed.hash import HashEmbedder
from brim.llm.failures import BadReply, Failure, Rejected, ServerFailed, ServerLost, TimedOut
from brim.llm.testing import ModelServer

gymnasium = pytest.importorskip("gymnasium", reason="an optional extra")
COUNT = 3
ON_SERVER = replace(CONFIG, embedder="embedder")
STAGES = {"rewrite": is_rewrite, "answer": lambda call: call.kind == "chat" and not is_rewrite(call)}


def hashed(text):
    return HashEmbedder(DIM).encode([text])[0]


class Switch:
    """The scripted answers, until `broken` says which calls end otherwise, and how."""

    def __init__(self, broken=None, result=None):
        self.broken = broken
        self.result = result

    def __call__(self, call):
        if self.broken is not None and self.broken(call):
            return self.result
        return scripted_answer(call)


def check_invalid(kind, observation, reward, terminated, truncated, info, *, before):
    """A step is invalid in the one way that there is."""
    assert (bool(terminated), bool(truncated), bool(info["valid"])) == (False, True, False)
    assert math.isnan(reward)
    assert info["failure_type"] == kind
    assert info["failure"]
    assert "answer" not in info
    assert "fallbacks" not in info
    assert info["query"] == info["before"]
    assert same(observation, before)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [Rejected, ServerFailed, ServerLost, BadReply, TimedOut])
def test_every_kind_of_failed_call_makes_the_step_invalid_and_the_next_one_begins_an_episode(kind, stage):
    model = Model(Switch(STAGES[stage], kind("it went wrong")))
    with world(COUNT, model) as envs:
        first, infos = envs.batch_reset(seed=0)
        batch = envs.batch_step([0, 1, 2])
        for lane in range(COUNT):
            check_invalid(kind.__name__, *(column[lane] for column in batch), before=first[lane])
            assert "it went wrong" in batch.infos[lane]["failure"]
            assert batch.infos[lane]["before"] == infos[lane]["query"]
        model.answer.broken = None
        begun = envs.batch_step([0, 1, 2])
        assert begun.rewards.tolist() == [0.0] * COUNT
        assert not begun.dones.any()
        for lane in range(COUNT):
            info = begun.infos[lane]
            assert info["valid"]
            assert info["question_id"] != infos[lane]["question_id"]
            assert np.allclose(begun.observations[lane], np.append(hashed(info["query"]), 0), atol=1e-6)
        assert all(info["valid"] for info in envs.batch_step([0, 1, 2]).infos)


def test_a_failed_call_of_one_environment_alone_is_the_same():
    model = Model(Switch(is_rewrite, Rejected("no")))
    with single(model) as env:
        first, _ = env.reset(seed=0)
        check_invalid("Rejected", *env.step(0), before=first)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
        model.answer.broken = None
        env.reset()
        assert env.step(0)[4]["valid"]


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_rewriting_is_a_failure_and_an_empty_answer_is_an_answer(text):
    with world(1, Model(Switch(is_rewrite, text))) as envs:
        first, _ = envs.batch_reset(seed=0)
        batch = envs.batch_step([0])
        check_invalid("BadReply", *(column[0] for column in batch), before=first[0])
        assert "empty" in batch.infos[0]["failure"]
    with world(1, Model(Switch(STAGES["answer"], text))) as envs:
        envs.batch_reset(seed=0)
        batch = envs.batch_step([0])
        assert batch.infos[0]["valid"]
        assert batch.rewards.tolist() == [0.0]


def test_a_mistake_in_an_endpoint_is_a_failure_of_the_step():
    with world(1, Model(Switch(is_rewrite, ZeroDivisionError()))) as envs:
        envs.batch_reset(seed=0)
        assert envs.batch_step([0]).infos[0]["failure_type"] == "ServerFailed"


def test_a_call_without_an_end_is_given_up_and_the_others_go_on():
    held = []

    async def wait(number):
        if held[0] in str(model.calls[number].messages):
            await asyncio.sleep(1000)

    model = Model(wait=wait)
    with world(2, model, calls=replace(CALLS, timeout=0.3, attempt_timeout=1000.0)) as envs:
        _, infos = envs.batch_reset(seed=0)
        held.append(infos[1]["query"])
        assert infos[0]["query"] not in held
        batch = envs.batch_step([0, 0])
        assert batch.infos[0]["valid"]
        assert batch.infos[1]["failure_type"] == "TimedOut"
    assert model.open == 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("error", "ServerFailed"), ("drop", "ServerLost"), ("garbage", "BadReply"), ("empty", "BadReply")],
)
def test_failures_of_a_real_server_are_typed(server, fault, kind):
    with world(1, server.url, calls=CALLS) as envs:
        envs.batch_reset(seed=0)
        server.next(None, fault)
        batch = envs.batch_step([0])
        assert batch.infos[0]["failure_type"] == kind
        assert server.url in batch.infos[0]["failure"]


def test_failed_attempts_before_a_good_one_leave_no_trace_in_a_step(server):
    with world(1, server.url, calls=replace(CALLS, attempts=3, patience=10.0)) as envs:
        envs.batch_reset(seed=0)
        good = envs.batch_step([0])
        envs.batch_reset(seed=0)
        server.next("error", "garbage", None, "error")
        again = envs.batch_step([0])
        assert all(map(same, good[:4], again[:4]))
        assert same(good.infos[0], again.infos[0])


@given(lanes=st.sets(st.integers(0, 5)), mode=st.sampled_from(MODES[:2]))
@settings(max_examples=8)
def test_a_failure_of_one_environment_changes_nothing_for_the_others(lanes, mode):
    """Only those fail whose reward raises."""
    seeds = [10, 11, 12, 13, 14, 15]

    def reward(failing):
        async def rate(attempt):
            if attempt.question.id in failing:
                raise ServerFailed("mine")
            return 0.25

        return rate

    with world(6, autoreset_mode=mode) as envs:
        envs.reset(seed=seeds)
        names = [env.lane.question.id for env in envs.envs]
    failing = {names[lane] for lane in lanes}
    actions = table(6, 2)
    with world(6, reward=reward(failing), autoreset_mode=mode) as some, world(6, reward=reward(())) as none:
        some.reset(seed=seeds)
        none.reset(seed=seeds)
        one, other = some.batch_step(actions[0]), none.batch_step(actions[0])
        for lane in range(6):
            if names[lane] in failing:
                info = one.infos[lane].get("final_info", one.infos[lane])
                assert (info["valid"], info["failure_type"]) == (False, "ServerFailed")
            else:
                assert same(one.observations[lane], other.observations[lane])
                assert same(one.infos[lane], other.infos[lane])


@pytest.fixture(scope="module")
def server():
    with ModelServer(answers=scripted_answer, embedding=hashed) as server:
        yield server


def step_without(stage, **options):
    """A step in which the calls of a stage fail: the observation and the query before it, and the step."""
    model = Model(Switch(STAGES.get(stage, lambda call: call.kind == "chat"), Rejected("no")))
    with single(model, config=replace(CONFIG, **options), reward=lambda attempt: len(attempt.answer)) as env:
        first, info = env.reset(seed=0)
        return first, info["query"], env.step(0)


def test_a_query_that_could_not_be_rewritten_is_asked_as_it_was_if_that_is_asked_for():
    first, query, (observation, reward, _, _, info) = step_without("rewrite", fallback_query=True)
    assert info["valid"]
    assert info["fallbacks"] == ("query",)
    assert info["query"] == info["before"] == query
    assert reward == len(info["answer"]) > 0
    assert same(observation[:-1], first[:-1])
    assert observation[-1] > 0


def test_a_text_takes_the_place_of_an_answer_if_that_is_asked_for():
    _, query, (_, reward, _, _, info) = step_without("answer", fallback_answer="none")
    assert info["valid"]
    assert info["fallbacks"] == ("answer",)
    assert info["answer"] == "none"
    assert reward == 4.0
    assert info["query"] != query


def test_both_fallbacks_are_marked():
    _, _, (*_, info) = step_without("both", fallback_query=True, fallback_answer="")
    assert info["fallbacks"] == ("query", "answer")


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("rewrite", {}),
        ("answer", {}),
        ("rewrite", {"fallback_answer": "none"}),
        ("answer", {"fallback_query": True}),
    ],
)
def test_a_fallback_that_was_not_asked_for_is_not_used(stage, options):
    first, _, step = step_without(stage, **options)
    check_invalid("Rejected", *step, before=first)


def test_without_a_failure_no_fallback_is_marked():
    with single(config=replace(CONFIG, fallback_query=True, fallback_answer="none")) as env:
        env.reset(seed=0)
        assert env.step(0)[4]["fallbacks"] == ()


def test_a_failed_reward_has_no_fallback():
    config = replace(CONFIG, fallback_query=True, fallback_answer="none")
    with single(config=config, reward=lambda attempt: None) as env:
        first, _ = env.reset(seed=0)
        check_invalid("RewardFailed", *env.step(0), before=first)


def test_a_closed_pool_is_no_failed_call_that_a_fallback_replaces():
    started = threading.Event()

    async def wait(number):
        started.set()
        await asyncio.sleep(1000)

    config = replace(CONFIG, fallback_query=True, fallback_answer="none")
    with world(1, Model(wait=wait), config=config) as envs:
        envs.reset(seed=0)
        before = envs.state_dict()
        envs.send([0])
        assert started.wait(30)
        envs.pool.close()
        with pytest.raises(BrimError, match="closed"):
            envs.recv()
        assert envs.state_dict() == before


class Stop(BaseException):
    """An error that is no `Exception`."""


def returning(value):
    def reward(attempt):
        return value

    return reward


def raising(error):
    def reward(attempt):
        raise error

    return reward


def later(reward):
    async def rate(attempt):
        await asyncio.sleep(0)
        return reward(attempt)

    return rate


@pytest.mark.parametrize("wrap", [lambda reward: reward, later], ids=["sync", "async"])
@pytest.mark.parametrize(
    "reward",
    [
        returning(math.nan),
        returning(math.inf),
        returning(None),
        returning("1.0"),
        returning([1.0]),
        returning(1j),
        returning(np.array([0.5])),
        raising(ValueError("line\nbreak")),
        raising(KeyError()),
        raising(StopIteration()),
        raising(TimeoutError()),
    ],
    ids=["nan", "inf", "none", "text", "list", "complex", "array", "value", "key", "stop", "timeout"],
)
def test_a_reward_that_raises_or_returns_no_number_makes_the_step_invalid(reward, wrap):
    with world(2, reward=wrap(reward)) as envs:
        first, _ = envs.batch_reset(seed=0)
        batch = envs.batch_step([0, 0])
        for lane in range(2):
            check_invalid("RewardFailed", *(column[lane] for column in batch), before=first[lane])
            assert "\n" not in batch.infos[lane]["failure"]


@pytest.mark.parametrize("wrap", [lambda reward: reward, later], ids=["sync", "async"])
@pytest.mark.parametrize("value", [0, 1, True, 0.25, np.float32(0.5), np.int64(1), np.bool_(True), -3])
def test_every_finite_number_is_a_reward(value, wrap):
    with world(1, reward=wrap(returning(value))) as envs:
        envs.reset(seed=0)
        _, rewards, terminated, _, _ = envs.step(np.array([0]))
        assert rewards.dtype == np.float64
        assert rewards.tolist() == [float(value)]
        assert terminated.tolist() == [value >= 1]


@pytest.mark.parametrize("kind", [Rejected, TimedOut, BadReply])
def test_a_call_of_a_reward_that_fails_keeps_its_type(kind):
    async def reward(attempt):
        return float(await attempt.calls.ask("Is it good?", purpose="rating"))

    answers = Switch(lambda call: "Is it good?" in str(call.messages), kind("no"))
    with world(1, Model(answers), reward=reward) as envs:
        envs.reset(seed=0)
        assert envs.batch_step([0]).infos[0]["failure_type"] == kind.__name__


def test_a_slow_plain_function_holds_up_no_other_environment():
    release, held = threading.Event(), []

    def reward(attempt):
        if attempt.question.id == held[0]:
            assert release.wait(30)
        return 0.5

    with world(COUNT, reward=reward, config=replace(CONFIG, max_steps=50)) as envs:
        _, infos = envs.batch_reset(seed=[5, 1, 2])
        held.append(infos[0]["question_id"])
        envs.send([0] * COUNT)
        for _ in range(4):  # the others take four steps each, while one waits
            batch = envs.recv(2)
            assert sorted(batch.ids.tolist()) == [1, 2]
            envs.send([0, 0], [1, 2])
        envs.recv(2)
        release.set()
        assert envs.recv(1).ids.tolist() == [0]


@pytest.mark.parametrize("wrap", [lambda reward: reward, later], ids=["sync", "async"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Stop()], ids=repr)
@pytest.mark.parametrize("way", ["step", "rollout"])
def test_an_error_that_ends_programs_reaches_the_caller_and_the_pool_stays_usable(wrap, error, way):
    wrong = [True]

    def reward(attempt):
        if wrong[0]:
            raise error
        return 0.5

    with world(2, reward=wrap(reward)) as envs:
        envs.reset(seed=0)
        with pytest.raises(type(error)):
            within(20, lambda: taken(envs, way))
        wrong[0] = False
        envs.reset(seed=0)
        assert taken(envs, way).tolist() == [0.5, 0.5]


def test_an_error_in_one_environment_loses_no_result_of_another():
    wrong = []

    async def reward(attempt):
        if attempt.question.id in wrong:
            raise Stop
        return 0.5

    with world(COUNT, reward=reward) as envs:
        _, infos = envs.batch_reset(seed=[5, 1, 2])
        wrong.append(infos[1]["question_id"])
        envs.send([0] * COUNT)
        seen, errors = [], 0
        while len(seen) + errors < COUNT:
            try:
                seen += envs.recv(1).ids.tolist()
            except Stop:
                errors += 1
        assert sorted(seen) == [0, 2]


def taken(envs, way):
    """The rewards of one step of all environments."""
    if way == "step":
        return envs.step(np.zeros(envs.num_envs, np.int64))[1]
    return envs.rollout(lambda observations, ids, numbers: np.zeros(len(ids), np.int64), 1).rewards[0]


def within(seconds, function):
    """The result of a function, or its error; a function that does not end in time is an error of the test."""
    results = []

    def run():
        try:
            results.append((function(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, f"no end after {seconds} seconds"
    result, error = results[0]
    if error is not None:
        raise error
    return result


@pytest.mark.parametrize("options", [{}, {"fallback_query": True, "fallback_answer": "none"}])
def test_another_model_in_replies_is_a_failure_that_no_fallback_hides(options):
    names = ["model v1"]
    model = Model(model=lambda call: names[0])
    with world(COUNT, model, config=replace(CONFIG, **options)) as envs:
        envs.reset(seed=0)
        assert envs.rollout(table_policy(table(COUNT, 4)), 2).valid.all()
        names[0] = "model v2"
        rollout = envs.rollout(table_policy(table(COUNT, 4)), 2)
        assert rollout.invalid == {"ModelChanged": 2 * COUNT}
        for text in ("scripted", "model v1", "model v2"):
            assert text in rollout.infos[0][0]["failure"]
        with pytest.raises(TooManyInvalid, match="ModelChanged"):
            envs.rollout(table_policy(table(COUNT, 4)), 2, max_invalid=0.1)
        names[0] = "model v1"
        assert envs.rollout(table_policy(table(COUNT, 4)), 2).valid.all()


def test_another_model_is_noticed_after_a_resume():
    names = ["model v1"]
    model = Model(model=lambda call: names[0])
    with world(1, model) as envs:
        envs.reset(seed=0)
        envs.step(np.array([0]))
        state = envs.state_dict()
    names[0] = "model v2"
    with world(1, model) as envs:
        envs.load_state_dict(state)
        assert envs.batch_step([0]).infos[0]["failure_type"] == "ModelChanged"


def test_servers_with_names_of_their_own_for_a_model_are_no_change():
    first, second = Model(model="one", limit=1), Model(model="two", limit=1)
    second.name = "second model"
    with pool_of(first, second) as pool:
        envs = BatchedQueryMutationEnv(4, QUESTIONS, pool=pool, config=CONFIG, reward="numeric")
        envs.reset(seed=0)
        assert envs.rollout(table_policy(table(4, 4)), 4).valid.all()
    assert first.calls
    assert second.calls


def test_vectors_of_another_size_are_a_failure(server):
    with world(COUNT, server.url, config=ON_SERVER) as envs:
        envs.reset(seed=0)
        assert envs.rollout(table_policy(table(COUNT, 4)), 2, max_invalid=0.0).valid.all()
        server.change(embedding=lambda text: HashEmbedder(8).encode([text])[0])
        try:
            rollout = envs.rollout(table_policy(table(COUNT, 4)), 3)
        finally:
            server.change(embedding=hashed)
        assert rollout.invalid == {"EmbeddingChanged": 3 * COUNT}
        info = rollout.infos[0][0]
        assert "8 numbers" in info["failure"]
        assert "16" in info["failure"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_vectors_that_are_not_finite_are_a_failure(bad):
    vector = np.full(DIM, 0.1, np.float32)
    model = Model(vector=lambda text: vector)
    with world(1, model, config=ON_SERVER) as envs:
        envs.reset(seed=0)
        vector[3] = bad
        assert envs.batch_step([0]).infos[0]["failure_type"] == "BadReply"


@pytest.mark.parametrize("scale", [1e-44, 1e-20, 1.0, 1e20, 3e38])
def test_observations_have_length_1_whatever_the_length_of_the_vectors(scale):
    model = Model(vector=lambda text: np.full(DIM, scale, np.float32))
    with world(1, model, config=ON_SERVER) as envs:
        observation = envs.reset(seed=0)[0][0]
        assert np.linalg.norm(observation) == pytest.approx(1.0, abs=1e-5)
        assert envs.single_observation_space.contains(observation)


def test_a_vector_of_zeros_is_an_observation():
    with world(1, Model(vector=lambda text: np.zeros(DIM)), config=ON_SERVER) as envs:
        assert not envs.reset(seed=0)[0].any()
        assert envs.batch_step([0]).infos[0]["valid"]


class Vectors:
    """The vectors of an embedding model, which refuses all texts after so many as `left` says."""

    def __init__(self):
        self.left = math.inf

    def __call__(self, text):
        self.left -= 1
        return hashed(text) if self.left >= 0 else Rejected("the embedder is down")


def with_vectors(**options):
    """Vectors that can be refused, and environments that use them."""
    vectors = Vectors()
    return vectors, world(COUNT, Model(vector=vectors), config=replace(ON_SERVER, max_steps=1), **options)


def test_a_reset_by_hand_raises_the_failure_and_another_one_works():
    vectors, made = with_vectors()
    with made as envs:
        vectors.left = 0
        for _ in range(2):
            with pytest.raises(Rejected, match="the embedder is down"):
                envs.reset(seed=4)
        with pytest.raises(gymnasium.error.ResetNeeded):
            envs.step(np.zeros(COUNT, np.int64))
        vectors.left = math.inf
        envs.reset(seed=4)
        seeds = [env.lane.state.seed for env in envs.envs]
        assert seeds == [4, 5, 6]
        vectors.left = 0
        with pytest.raises(Rejected):
            envs.envs[0].reset()


def test_a_seed_is_not_forgotten_when_its_first_reset_fails():
    vectors, made = with_vectors()
    with made as envs:
        for way in (envs, envs.envs[0]):
            vectors.left = 0
            with pytest.raises(Rejected):
                way.reset(seed=4)
            vectors.left = math.inf
            way.reset()
            assert envs.envs[0].lane.state.seed == 4


def test_the_reset_of_the_next_step_is_an_invalid_step_until_it_succeeds():
    vectors, made = with_vectors(autoreset_mode="next_step")
    with made as envs:
        envs.reset(seed=0)
        first = envs.batch_step([0] * COUNT)
        assert first.dones.all()
        vectors.left = 0
        for _ in range(2):
            batch = envs.batch_step([0] * COUNT)
            assert batch.truncated.all()
            assert not batch.terminated.any()
            assert np.isnan(batch.rewards).all()
            assert [info["failure_type"] for info in batch.infos] == ["Rejected"] * COUNT
            assert envs.observation_space.contains(batch.observations)
        vectors.left = math.inf
        batch = envs.batch_step([0] * COUNT)
        assert not batch.dones.any()
        assert batch.rewards.tolist() == [0.0] * COUNT
        for lane, info in enumerate(batch.infos):
            assert info["question_id"] != first.infos[lane]["question_id"]
            assert np.allclose(batch.observations[lane, :-1], hashed(info["query"]), atol=1e-6)


def test_no_reward_is_made_up_for_an_action_that_was_not_taken():
    """The reset in the same step failed, so that the next action finds no episode."""
    vectors, made = with_vectors(autoreset_mode="same_step")
    with made as envs:
        envs.reset(seed=0)
        vectors.left = COUNT  # the vectors of the step's own queries, and none for the next questions
        batch = envs.batch_step([0] * COUNT)
        assert all(info["final_info"]["valid"] for info in batch.infos)
        assert not any(info["valid"] for info in batch.infos)
        vectors.left = math.inf
        batch = envs.batch_step([1] * COUNT)
        assert np.isnan(batch.rewards).all()
        assert batch.truncated.all()
        assert {info["final_info"]["failure_type"] for info in batch.infos} == {"ResetFailed"}
        assert all(info["valid"] for info in batch.infos)  # of the episode that begins
        assert np.isfinite(envs.batch_step([1] * COUNT).rewards).all()


def test_an_embedding_server_that_fails_in_the_middle_of_a_rollout_costs_steps_and_nothing_else():
    vectors, made = with_vectors()
    steps = 12
    with made as envs:
        envs.reset(seed=0)
        done = []

        def watch(outcome):
            done.append(outcome.valid)
            vectors.left = 0 if 2 * COUNT <= len(done) < 6 * COUNT else math.inf

        policy = table_policy(table(COUNT, steps))
        rollout = within(30, lambda: envs.rollout(policy, steps, watch=watch))
        assert len(done) == steps * COUNT
        assert rollout.valid.sum() == sum(done) < steps * COUNT
        assert rollout.invalid == {"Rejected": steps * COUNT - sum(done)}
        assert rollout.valid[-1].all()
        assert np.isnan(rollout.rewards[~rollout.valid]).all()
        assert np.isfinite(rollout.rewards[rollout.valid]).all()
        assert rollout.truncated[~rollout.valid].all()
        assert np.isfinite(rollout.observations).all()
        assert all("failure" in rollout.infos[at][lane] for at, lane in np.argwhere(~rollout.valid))


def test_a_server_that_stays_away_ends_a_rollout():
    vectors, made = with_vectors()
    with made as envs:
        envs.reset(seed=0)
        vectors.left = 0
        with pytest.raises(TooManyInvalid, match="Rejected: the embedder is down"):
            within(30, lambda: envs.rollout(table_policy(table(COUNT, 8)), 1000, max_invalid=0.9))


@pytest.mark.parametrize("way", ["step", "rollout", "recv"])
def test_steps_that_are_under_way_end_with_one_clear_error(way):
    started = threading.Event()

    async def wait(number):
        started.set()
        await asyncio.sleep(1000)

    def ended(envs):
        if way != "recv":
            return taken(envs, way)
        envs.send([0] * COUNT)
        return envs.recv(COUNT)

    with world(COUNT, Model(wait=wait)) as envs:
        envs.reset(seed=0)
        before = envs.state_dict()
        closing = threading.Thread(target=lambda: started.wait(30) and envs.pool.close())
        closing.start()
        with pytest.raises(BrimError, match="the pool was closed"):
            within(30, lambda: ended(envs))
        closing.join()
        envs.close()
        assert envs.state_dict() == before


def test_a_pool_that_is_closed_during_a_reward_is_one_clear_error():
    started, release = threading.Event(), threading.Event()

    def reward(attempt):
        started.set()
        release.wait(30)
        return 0.5

    with world(1, reward=reward) as envs:
        envs.reset(seed=0)
        before = envs.envs[0].lane.state
        envs.send([0])
        assert started.wait(30)
        closing = threading.Thread(target=envs.pool.close)
        closing.start()
        with pytest.raises(BrimError, match=r"closed|cancelled"):
            within(30, envs.recv)
        release.set()
        closing.join()
        assert envs.envs[0].lane.state == before


def test_nothing_can_be_begun_with_a_closed_pool():
    with world(COUNT) as envs:
        envs.reset(seed=0)
        envs.pool.close()
        for begin in (
            envs.reset,
            lambda: envs.send([0] * COUNT),
            lambda: envs.step(np.zeros(COUNT, np.int64)),
            lambda: taken(envs, "rollout"),
        ):
            with pytest.raises(BrimError, match="the pool is closed"):
                within(30, begin)
        envs.close()


def test_texts_of_models_may_contain_anything():
    hostile = '\ud800 {query} {other} \x00 </script> "quoted" \u2028 \N{GRINNING FACE}'
    questions = [Question(id=str(at), text=f"{hostile} {at}", reference=hostile) for at in range(3)]
    with world(COUNT, Model(lambda call: f" {hostile} "), questions=questions, reward="exact") as envs:
        envs.reset(seed=0)
        rollout = envs.rollout(table_policy(table(COUNT, 6)), 6)
        assert rollout.valid.all()
        assert {info["query"] for row in rollout.infos for info in row} == {hostile}
        state = envs.state_dict()
        envs.load_state_dict(state)


def test_all_failures_are_failures_of_brim():
    assert issubclass(TooManyInvalid, BrimError)
    assert not issubclass(TooManyInvalid, Failure)
