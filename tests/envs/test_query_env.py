"""`QueryMutationEnv`: one environment, as Gymnasium wants it, and input that it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_worlds import CONFIG, DIM, QUESTIONS, Model, pool_of, questions_of, same, single

from brim.core.errors import BrimError, DataError, OptionError
from brim.envs import check_env
from brim.envs.query import BatchedQueryMutationEnv, QueryConfig, QueryMutationEnv, Question
from brim.llm.embed.hash import HashEmbedder
from brim.llm.testing import ModelServer

gymnasium = pytest.importorskip("gymnasium", reason="an optional extra")


def hashed(text):
    return HashEmbedder(DIM).encode([text])[0]


@pytest.fixture
def registered():
    """An environment that Gymnasium can make again, as its checker does for every render mode."""
    name = "brim-test/QueryMutation-v0"
    with pool_of(Model()) as pool:

        def make(render_mode=None):
            return QueryMutationEnv(QUESTIONS, pool=pool, config=CONFIG, reward="numeric", render_mode=render_mode)

        gymnasium.register(name, entry_point=make)
        yield gymnasium.make(name)
        del gymnasium.registry[name]


def test_gymnasiums_checker_passes_without_warnings_for_all_render_modes(registered):
    from gymnasium.utils.env_checker import check_env

    check_env(registered.unwrapped)


def test_our_checker_passes():
    with single() as env:
        assert check_env(env) is None


def test_an_episode_is_a_question_and_observations_are_the_vector_and_the_step():
    with single(config=replace(CONFIG, goal=None)) as env:
        observation, info = env.reset(seed=3)
        texts = {question.id: question.text for question in QUESTIONS}
        assert info["query"] == texts[info["question_id"]]
        assert np.array_equal(observation, np.append(hashed(info["query"]), np.float32(0)))
        for step in (1, 2, 3):
            before = info["query"]
            observation, reward, terminated, truncated, info = env.step(step)
            assert info["before"] == before
            assert info["mutator"] == CONFIG.mutators[step]
            assert np.allclose(observation[:-1], hashed(info["query"]), atol=1e-6)
            assert observation[-1] == np.float32(step / 3)
            assert env.observation_space.contains(observation)
            assert isinstance(reward, float)
            assert (terminated, truncated) == (False, step == 3)
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            env.step(0)


@given(st.integers(0, 2**64), st.integers(1, 7))
@settings(max_examples=15)
def test_all_questions_come_once_before_one_comes_again(seed, count):
    with single(questions=questions_of(count), config=replace(CONFIG, mutators=("rephrase",))) as env:
        first = [env.reset(seed=seed)[1]["question_id"]]
        seen = first + [env.reset()[1]["question_id"] for _ in range(3 * count - 1)]
        for start in range(0, 3 * count, count):
            assert len(set(seen[start : start + count])) == count
        assert env.reset(seed=seed)[1]["question_id"] == first[0]


def test_crossover_takes_another_question_of_the_pool():
    questions = questions_of(3)
    model = Model(lambda call: "same")
    with single(model, questions=questions, config=replace(CONFIG, mutators=("crossover",), goal=None)) as env:
        others = set()
        for seed in range(12):
            own = env.reset(seed=seed)[1]["query"]
            env.step(0)
            inserted = {question.text for question in questions if question.text in model.chats()[-2]}
            assert own in inserted
            assert len(inserted) == 2
            others |= inserted - {own}
        assert others == {question.text for question in questions}


def test_a_seed_gives_the_same_episodes_whatever_came_before():
    with single() as env, single() as fresh:
        env.reset(seed=1)
        env.step(0)
        env.reset()
        assert all(map(same, env.reset(seed=7), fresh.reset(seed=7)))
        for action in (4, 1, 2):
            one, other = env.step(action), fresh.step(action)
            assert all(map(same, one, other))
            if one[2] or one[3]:
                assert same(env.reset()[1], fresh.reset()[1])


def test_without_a_seed_environments_begin_with_seeds_of_their_own():
    with single() as env:
        task = env.task
        firsts = set()
        for _ in range(8):
            one = QueryMutationEnv(task=task)
            one.reset()
            firsts.add(one.lane.state.seed)
        assert len(firsts) == 8


def test_whatever_is_written_into_returned_values_changes_nothing_later():
    with single() as env, single() as untouched:
        untouched.reset(seed=0)
        observation, info = env.reset(seed=0)
        for action in (0, 1, 2):
            observation.fill(9)
            info.clear()
            observation, reward, terminated, truncated, info = env.step(action)
            expected = untouched.step(action)
            assert all(map(same, (observation, reward, terminated, truncated, info), expected))
            if terminated or truncated:
                break


@pytest.mark.parametrize("action", [-1, 6, 1.0, "0", None, np.array([0]), np.float64(1)], ids=repr)
def test_what_is_no_action_is_refused_and_the_episode_continues(action):
    with single() as env:
        env.reset(seed=0)
        before = env.lane.state
        with pytest.raises(OptionError, match="0 to 5"):
            env.step(action)
        assert env.lane.state == before
        assert "answer" in env.step(np.int32(5))[4]


def test_a_step_before_any_reset_is_refused():
    with single() as env, pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_a_closed_pool_is_one_clear_error():
    with single() as env:
        env.reset(seed=0)
        env.task.pool.close()
        with pytest.raises(BrimError, match="the pool is closed"):
            env.step(0)
        with pytest.raises(BrimError, match="the pool is closed"):
            env.reset()


def test_a_pool_that_is_given_stays_open_and_one_that_is_opened_is_closed():
    with ModelServer(answers=lambda call: "42") as server:
        env = QueryMutationEnv(QUESTIONS, servers=server.url, config=replace(CONFIG, model=None), reward="numeric")
        assert env.task.model == "test"
        env.reset(seed=0)
        env.step(0)
        env.close()
        env.close()
        with pytest.raises(BrimError, match="closed"):
            env.reset()
        many = BatchedQueryMutationEnv(3, QUESTIONS, servers=server.url, config=replace(CONFIG, model=None))
        many.reset(seed=0)
        many.close()
        with pytest.raises(BrimError, match="closed"):
            many.reset()
    with pool_of(Model()) as pool:
        QueryMutationEnv(QUESTIONS, pool=pool, config=CONFIG).close()
        BatchedQueryMutationEnv(2, QUESTIONS, pool=pool, config=CONFIG).close()
        assert pool.map(["still open?"])[0].text


def test_rendered_text_of_a_model_cannot_control_a_terminal():
    hostile = "\x1b]0;title\x07\x1b[2J red\u202e"
    with single(Model(lambda call: hostile)) as env:
        env.render_mode = "ansi"
        assert env.render() is None
        env.reset(seed=0)
        assert QUESTIONS[env.lane.state.question].text in env.render()
        env.step(0)
        shown = env.render()
        assert "red" in shown
        assert "reward 0" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def refused(error, match, *, questions=QUESTIONS, pool=None, **options):
    with pool_of(Model()) as pool:
        with pytest.raises(error, match=match) as raised:
            QueryMutationEnv(questions, pool=pool, config=options.pop("config", CONFIG), **options)
        assert "\n" not in str(raised.value)
        assert pool.stats().requests == 0


def test_a_template_without_the_query_is_refused(tmp_path):
    path = tmp_path / "loud.txt"
    path.write_text("# Louder\nAsk it louder.\n")
    refused(DataError, r"loud\.txt.*\{query\}", config=replace(CONFIG, mutators=(str(path),)))


def test_a_template_of_ones_own_is_a_mutator(tmp_path):
    path = tmp_path / "loud.txt"
    path.write_text("# Louder\nAsk it louder: {query}\n")
    model = Model(lambda call: "LOUD")
    with single(model, config=replace(CONFIG, mutators=(str(path), "shorten"))) as env:
        query = env.reset(seed=0)[1]["query"]
        assert env.step(0)[4]["mutator"] == "loud"
        assert model.chats() == [f"Ask it louder: {query}", "LOUD"]


@pytest.mark.parametrize("reward", ["exact", "numeric", "similarity"])
def test_a_reward_that_needs_references_refuses_questions_without(reward):
    questions = [*QUESTIONS, Question(id="lost", text="What?")]
    refused(DataError, "1 of 13 questions have no reference .lost.", questions=questions, reward=reward)


@pytest.mark.parametrize("reward", ["agreement", "judge", len])
def test_a_reward_that_needs_none_takes_questions_without_references(reward):
    questions = [Question(id="a", text="What?"), Question(id="b", text="Who?")]
    with single(questions=questions, reward=reward) as env:
        env.reset(seed=0)


def test_a_reward_of_ones_own_can_say_that_it_needs_references():
    def reward(attempt):
        return 1.0

    reward.needs_reference = True
    refused(DataError, "reference", questions=[Question(id="a", text="x"), QUESTIONS[0]], reward=reward)


def test_one_question_is_too_few_for_crossover():
    refused(OptionError, "one question.*crossover", questions=QUESTIONS[:1], reward="numeric")


def test_no_questions_are_refused():
    refused(DataError, "no questions", questions=[])


def test_two_questions_of_one_id_are_refused():
    refused(DataError, "terse-0.*differ", questions=[QUESTIONS[1], QUESTIONS[0], QUESTIONS[1]])


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_question_without_text_is_refused(text):
    questions = [QUESTIONS[0], Question(id="blank", text=text, reference="1")]
    refused(DataError, "blank", questions=questions)


def test_for_an_unknown_reward_or_mutator_a_known_one_is_suggested():
    refused(OptionError, 'numerical.*Did you mean "numeric"', reward="numerical")
    refused(OptionError, 'shorter.*Did you mean "shorten"', config=replace(CONFIG, mutators=("shorter",)))


def test_a_pool_and_servers_together_are_refused():
    refused(OptionError, "not both", servers="http://127.0.0.1:1")


def test_a_render_mode_that_does_not_exist_is_refused():
    refused(OptionError, "human", render_mode="human")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mutators": ()}, "mutators"),
        ({"mutators": "shorten"}, "mutators.*'shorten'"),
        ({"mutators": ("shorten", "expand", "shorten")}, "'shorten' twice"),
        ({"max_steps": 0}, "max_steps.*0"),
        ({"max_steps": 1.5}, "max_steps.*1.5"),
        ({"goal": float("nan")}, "goal.*nan"),
        ({"temperature": -0.1}, "temperature.*-0.1"),
        ({"answer_temperature": float("nan")}, "answer_temperature.*nan"),
        ({"max_query_tokens": 0}, "max_query_tokens"),
        ({"max_answer_tokens": -4}, "max_answer_tokens"),
    ],
)
def test_options_out_of_range_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        QueryConfig(**options)


def test_environments_with_pools_of_their_own_are_refused():
    with single() as one, single() as other, pytest.raises(OptionError, match="one pool"):
        BatchedQueryMutationEnv([one, other])


def test_one_environment_twice_is_refused():
    with single() as env, pytest.raises(OptionError, match="twice"):
        BatchedQueryMutationEnv([env, env])


def test_environments_with_other_spaces_are_refused():
    with pool_of(Model()) as pool:
        configs = [CONFIG, replace(CONFIG, mutators=("shorten",)), replace(CONFIG, embedder="hash-8")]
        envs = [QueryMutationEnv(QUESTIONS, pool=pool, config=config) for config in configs]
        for other in envs[1:]:
            with pytest.raises(OptionError, match="same observations"):
                BatchedQueryMutationEnv([envs[0], other])


@pytest.mark.parametrize("count", [0, -1, []], ids=repr)
def test_no_environments_are_refused(count):
    with pool_of(Model()) as pool, pytest.raises(OptionError):
        given = {} if count == [] else {"questions": QUESTIONS, "pool": pool, "config": CONFIG}
        BatchedQueryMutationEnv(count, **given)


def test_what_is_no_environment_is_refused():
    with pytest.raises(OptionError, match="QueryMutationEnv"):
        BatchedQueryMutationEnv(["shorten"])


@pytest.mark.parametrize("given", ["questions", "pool", "config", "reward", "servers"])
def test_options_that_have_no_effect_on_given_environments_are_refused(given):
    with single() as env:
        values = {"pool": env.task.pool, "config": CONFIG, "reward": "similarity", "servers": "http://127.0.0.1:1"}
        more = {"questions": QUESTIONS} if given == "questions" else {given: values[given]}
        with pytest.raises(OptionError, match="of their own"):
            BatchedQueryMutationEnv([env], **more)


def test_an_unknown_autoreset_mode_is_refused():
    with single() as env, pytest.raises(OptionError, match=r"same_step.*'sometimes'"):
        BatchedQueryMutationEnv([env], autoreset_mode="sometimes")
