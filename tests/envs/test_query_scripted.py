import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.core.wait.virtual_time import run as run_virtually
from brim.envs.query.attempt import Attempt
from brim.envs.query.judge import Judge
from brim.envs.query.questions import check_questions
from brim.envs.query.rewards import NumericMatch, check_reward, rate
from brim.envs.query.scripted import BEST, ScriptedModel, rewritten, scripted_answer, scripted_questions
from brim.llm.call import Call, Sampling, chat
from brim.llm.embed.hash import HashEmbedder
from brim.llm.failures import ModelMissing
from brim.llm.mutations import MUTATIONS, load_mutation
from brim.llm.pool import LLMPool
from brim.llm.testing import LogNormal, ModelServer, Uniform, VirtualServer

MUTATORS = ("rephrase", "shorten", "expand", "add_context", "break_into_steps", "crossover")
QUESTIONS = scripted_questions(64, seed=3)
ids = {"ids": lambda question: question.id}


def said(prompt):
    return scripted_answer(Call(messages=chat(prompt)))


def after(mutation, query, other="Is it so?"):
    """The query as the scripted model rewrites it when it is asked with the prompt of a mutation."""
    return said(load_mutation(mutation).apply(query, other))


def reward(question, query):
    attempt = Attempt(question=question, before="", query=query, answer=said(query), step=1, calls=None)
    return run_virtually(rate(NumericMatch(), attempt))


def classes(vectors, kinds):
    """The class of each vector by the nearest mean of a class."""
    means = np.stack([vectors[kinds == kind].mean(axis=0) for kind in range(len(BEST))])
    return np.argmin(np.square(vectors[:, None] - means).sum(axis=2), axis=1)


def kinds_of(questions):
    return np.array([list(BEST).index(question.kind) for question in questions])


def test_four_different_mutators_are_best_and_crossover_is_not_one_of_them():
    assert len(BEST) == len(set(BEST.values())) == 4
    assert set(BEST.values()) <= set(MUTATORS) - {"crossover"}


@pytest.mark.parametrize("question", QUESTIONS, **ids)
def test_the_best_mutator_gets_the_right_answer_and_every_other_gets_a_wrong_one(question):
    assert reward(question, question.text) == 0.0
    for mutation in MUTATIONS:
        assert reward(question, after(mutation, question.text)) == (mutation == BEST[question.kind])


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS[:8], **ids)
def test_only_the_last_rewriting_counts_whatever_came_before(question):
    longest = 0
    for path in itertools.product(MUTATORS, repeat=4):
        query = question.text
        for number, mutation in enumerate(path):
            query = rewritten(mutation, query, QUESTIONS[number].text)
            longest = max(longest, len(query))
        assert reward(question, query) == (path[-1] == BEST[question.kind])
    assert longest <= len(question.text) + 120


def test_language_without_mistakes_is_returned_as_it_is():
    for question in QUESTIONS[:4]:
        best = after(BEST[question.kind], question.text)
        assert after("correct_language", best) == best


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.lists(st.sampled_from(MUTATIONS), max_size=8))
def test_any_text_can_be_rewritten_and_never_explodes(query, other, path):
    now = query
    for mutation in path:
        now = rewritten(mutation, now, other)
        assert len(now) <= len(query) + 4 * len(query.split()) + 120
        assert bool(now.strip()) == bool(query.strip())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MUTATIONS), st.text(min_size=1) | st.sampled_from(["{query}", "{other}"]), st.text(min_size=1))
def test_queries_are_found_exactly_in_the_prompts_of_mutations(mutation, query, other):
    if "Query:\n" not in query + other:
        assert after(mutation, query, other) == rewritten(mutation, query, other)


def test_every_mutator_rewrites_in_its_own_way():
    for question in QUESTIONS[:4]:
        texts = {mutation: after(mutation, question.text, QUESTIONS[7].text) for mutation in MUTATORS}
        assert len(set(texts.values())) == len(MUTATORS)
        assert texts["break_into_steps"].startswith("1. ")
        assert "\n2. " in texts["break_into_steps"]
        assert texts["add_context"].endswith(question.text)
        assert len(texts["shorten"]) <= len(question.text) < len(texts["expand"])
    wordy = QUESTIONS[0]
    assert len(after("shorten", wordy.text)) < 0.7 * len(wordy.text)
    by_other = {after("crossover", wordy.text, other.text) for other in QUESTIONS}
    assert len(by_other) == 4


@pytest.mark.parametrize("dim", [384, 128])
def test_kinds_can_be_told_apart_by_the_nearest_mean_of_their_embeddings(dim):
    questions = scripted_questions(200, seed=11)
    embedder = HashEmbedder(dim)
    vectors = embedder.encode([question.text for question in questions])
    kinds = kinds_of(questions)
    assert np.array_equal(classes(vectors, kinds), kinds)


@pytest.mark.slow
def test_kinds_can_be_told_apart_linearly_after_any_rewriting():
    questions = scripted_questions(80, seed=5)
    texts = []
    kinds = np.repeat(kinds_of(questions), 1 + len(MUTATORS))
    for number, question in enumerate(questions):
        others = [rewritten(mutation, question.text, questions[number - 1].text) for mutation in MUTATORS]
        texts += [question.text, *others]
    vectors = np.hstack([HashEmbedder().encode(texts), np.ones((len(texts), 1), np.float32)])
    weights, *_ = np.linalg.lstsq(vectors, np.eye(len(BEST))[kinds], rcond=None)
    assert np.array_equal(np.argmax(vectors @ weights, axis=1), kinds)


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_questions_are_a_function_of_the_seed_and_their_number(seed):
    questions = scripted_questions(40, seed=seed)
    assert questions == scripted_questions(40, seed=seed)
    assert questions[:13] == scripted_questions(13, seed=seed)
    assert questions != scripted_questions(40, seed=seed + 1)
    assert [question.kind for question in questions[:8]] == [*BEST, *BEST]


def test_ids_and_texts_differ_and_references_are_numbers():
    questions = scripted_questions(2000)
    check_questions(questions, needs_reference=True, crossover=True)
    check_reward(NumericMatch(), questions)
    assert len({question.text for question in questions}) == len(questions)
    assert all(int(question.reference) > 0 for question in questions)
    assert len(scripted_questions()) == 64


def test_a_number_of_questions_that_cannot_work_is_refused():
    with pytest.raises(OptionError, match="n must be at least 1, got 0"):
        scripted_questions(0)
    with pytest.raises(OptionError, match="n must be at most 100000, got 100001"):
        scripted_questions(100_001)


@given(st.text(min_size=1).filter(str.strip))
def test_a_text_without_a_calculation_gets_an_answer_without_a_number(text):
    answer = said(text)
    assert answer == "I find nothing to calculate here." or any(map(str.isdigit, text))


def test_a_judge_that_is_scripted_tells_right_answers_from_wrong_ones():
    for question in QUESTIONS[:4]:
        for reference in (None, question.reference):
            for answer, score in ((question.reference, "Score: 10"), ("-1", "Score: 0"), ("dunno", "Score: 0")):
                assert said(Judge().prompt(question.text, f"It is {answer}.", reference)) == score
    assert said(Judge().prompt("Why?", "So.", None)) == "Score: 0"


# The endpoint


def test_the_endpoint_answers_counts_tokens_and_has_one_model():
    async def main():
        model = ScriptedModel()
        answer = await model.ask(Call(model="scripted", messages=chat(QUESTIONS[1].text)))
        cut = await model.ask(Call(messages=chat(QUESTIONS[1].text), sampling=Sampling(max_tokens=2)))
        names = await model.models()
        await model.close()
        return model.name, names, answer, cut

    name, names, answer, cut = run_virtually(main())
    assert (name, names) == ("scripted", ["scripted"])
    assert answer.text == said(QUESTIONS[1].text)
    assert (answer.model, answer.finish_reason) == ("scripted", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(QUESTIONS[1].text.split()), 4)
    assert (answer.service_seconds, answer.queue_seconds) == (0.0, 0.0)
    assert (cut.text, cut.finish_reason, cut.completion_tokens) == ("The answer", "length", 2)


def test_embeddings_are_those_of_the_built_in_model():
    texts = tuple(question.text for question in QUESTIONS[:5])
    answer = run_virtually(ScriptedModel().ask(Call(kind="embed", model="scripted", inputs=texts)))
    assert np.array_equal(answer.vectors, HashEmbedder().encode(texts))
    assert answer.completion_tokens is None


def test_another_model_is_missing():
    for call in (Call(model="large", messages=chat("a")), Call(kind="embed", model="hash", inputs=("a",))):
        with pytest.raises(ModelMissing, match=r"there is no model '(large|hash)' here, only 'scripted'"):
            run_virtually(ScriptedModel().ask(call))


@pytest.mark.parametrize("latency", [3, 2.5, LogNormal(1.0, 1.0), Uniform(1.0, 2.0)])
def test_the_latency_of_a_call_does_not_depend_on_the_order(latency):
    calls = [Call(messages=chat(question.text)) for question in QUESTIONS]

    async def main(order):
        model = ScriptedModel(latency=latency)
        loop = asyncio.get_running_loop()
        ended = {}

        async def ask(number):
            answer = await model.ask(calls[number])
            assert answer.service_seconds == model.seconds(calls[number])
            ended[number] = loop.time()

        await asyncio.gather(*map(ask, order))
        return ended

    forth = run_virtually(main(range(len(calls))))
    back = run_virtually(main(reversed(range(len(calls)))))
    expected = {number: ScriptedModel(latency=latency).seconds(call) for number, call in enumerate(calls)}
    assert forth == back == pytest.approx(expected)
    assert len(set(forth.values())) == (1 if isinstance(latency, int | float) else len(calls))


def test_latencies_follow_the_distribution():
    model = ScriptedModel(latency=LogNormal(2.0, 1.0))
    seconds = [model.seconds(Call(messages=chat(f"question {number}"))) for number in range(2000)]
    assert np.median(seconds) == pytest.approx(2.0, rel=0.1)
    assert np.std(np.log(seconds)) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("latency", [-1.0, float("nan"), float("inf"), "fast"])
def test_a_latency_that_cannot_work_is_refused(latency):
    with pytest.raises(OptionError, match="latency must be"):
        ScriptedModel(latency=latency)


def solved(pool, questions):
    """The share of questions that are answered rightly before and after the best mutator of each kind."""
    queries = [question.text for question in questions]
    prompts = [load_mutation(BEST[question.kind]).apply(question.text) for question in questions]
    better = [reply.text for reply in pool.map(prompts)]
    shares = []
    for asked in (queries, better):
        answers = [reply.text for reply in pool.map(asked)]
        attempts = [
            Attempt(question=question, before="", query=query, answer=answer, step=1, calls=None)
            for question, query, answer in zip(questions, asked, answers, strict=True)
        ]
        shares.append(np.mean([run_virtually(rate(NumericMatch(), attempt)) for attempt in attempts]))
    return shares


def test_the_task_is_the_same_over_http_in_virtual_servers_and_in_this_process():
    with ModelServer(answers=scripted_answer) as server:
        for endpoint in (server.url, ScriptedModel(), VirtualServer(answers=scripted_answer)):
            with LLMPool(endpoint, model=None if isinstance(endpoint, ScriptedModel) else "m") as pool:
                assert solved(pool, QUESTIONS) == [0.0, 1.0]
        assert server.counts.served == 3 * len(QUESTIONS)
