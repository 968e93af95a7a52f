import gc
import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.llm.batch_calls import (
    BatchResult,
    Embeddings,
    batch_encode_queries,
    batch_mutate_queries,
    batch_query_target_model,
)
from brim.llm.call import Reply, Sampling
from brim.llm.config import PoolConfig, Server
from brim.llm.embed import open_embedder
from brim.llm.failures import Failure, Rejected, ServerLost
from brim.llm.mutations import MUTATIONS, Mutation, load_mutation
from brim.llm.pool import LLMPool
from brim.llm.testing import Faults, ModelServer, Refusal, VirtualServer

SINGLE = [name for name in MUTATIONS if not load_mutation(name).needs_other]
queries = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), max_size=8)


def prompt_of(call):
    return call.messages[-1]["content"]


def answer(call):
    """Repeat the prompt with blanks around it, and refuse the prompts that contain "refuse"."""
    if "refuse" in prompt_of(call):
        raise Refusal("refused")
    return f"  <{prompt_of(call)}>\n"


def embedding(text):
    if "refuse" in text:
        raise Refusal("refused")
    return np.array([len(text), 1, 2], np.float32)


@pytest.fixture(scope="module")
def server():
    with ModelServer(answers=answer, embedding=embedding) as server:
        yield server


@pytest.fixture(scope="module")
def pool(server):
    with LLMPool(server.url, model="m") as pool:
        yield pool


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queries)
def test_answers_stand_in_the_order_of_the_prompts(pool, prompts):
    expected = [f"  <{prompt}>\n" for prompt in prompts]
    assert batch_query_target_model(prompts, pool=pool) == expected
    replies = batch_query_target_model(prompts, pool=pool, results=True)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [reply.text for reply in replies] == expected


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(st.sampled_from("abc{}query"), min_size=1), st.sampled_from(SINGLE)), max_size=6))
def test_each_query_is_rewritten_by_its_own_mutation(pool, pairs):
    rewritten = batch_mutate_queries([query for query, _ in pairs], [name for _, name in pairs], pool=pool)
    assert rewritten == [f"<{load_mutation(name).apply(query)}>" for query, name in pairs]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queries)
def test_embeddings_stand_in_the_order_of_the_queries(pool, texts):
    found = batch_encode_queries(texts, pool=pool)
    assert found.dtype == np.float32
    assert found.tolist() == [[len(text), 1, 2] for text in texts]
    assert found.failed == {}
    replies = batch_encode_queries(texts, pool=pool, results=True)
    assert [reply.vector.tolist() for reply in replies] == found.tolist()


def test_servers_are_given_by_address_and_one_mutation_serves_all_queries(server, tmp_path):
    shout = Mutation("shout", "", "Shout {query}")
    (tmp_path / "shout.txt").write_text("# Shout.\nShout {query}\n")
    for mutation in (shout, tmp_path / "shout.txt", str(tmp_path / "shout.txt")):
        assert batch_mutate_queries(["a", "b"], mutation, "m", servers=server.url) == ["<Shout a>", "<Shout b>"]
    assert batch_query_target_model(["a"], "m", servers=[Server(url=server.url)]) == ["  <a>\n"]
    assert batch_encode_queries(["ab"], "m", servers=[server.url]).tolist() == [[2, 1, 2]]
    message = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert batch_query_target_model([message], "m", servers=server.url) == ["  <u>\n"]


def test_sampling_reaches_the_server(server, pool):
    sampling = Sampling(seed=12345, temperature=0.25)
    batch_mutate_queries(["a"], "rephrase", pool=pool, sampling=sampling)
    assert server.requests[-1].call.sampling.seed == 12345
    batch_query_target_model(["a"], pool=pool, sampling=Sampling(seed=54321))
    assert server.requests[-1].call.sampling.seed == 54321


def test_without_a_fallback_a_failure_stays_a_failure(pool):
    prompts = ["a", "refuse me", "b"]
    for results in (False, True):
        found = batch_query_target_model(prompts, pool=pool, results=results)
        assert [type(one) for one in found] == [Reply if results else str, Rejected, Reply if results else str]
        assert found.failed == {1: found[1]}
        assert found.fallbacks == {}
        assert list(batch_mutate_queries(prompts, "shorten", pool=pool, results=results).failed) == [1]


def test_a_fallback_takes_the_place_of_failures_and_is_counted_and_marked(pool):
    prompts = ["a", "refuse me", "b"]
    found = batch_query_target_model(prompts, pool=pool, fallback="no answer")
    assert found == ["  <a>\n", "no answer", "  <b>\n"]
    assert [(place, type(failure)) for place, failure in found.fallbacks.items()] == [(1, Rejected)]
    assert found.failed == {}
    reply = batch_query_target_model(prompts, pool=pool, fallback="", results=True)[1]
    assert (reply.text, reply.attempts) == ("", 1)
    assert reply.fallback.startswith("Rejected: ")
    assert "refused" in reply.fallback

    rewritten = batch_mutate_queries(prompts, "shorten", pool=pool, fallback="original", results=True)
    assert rewritten[1].text == "refuse me"
    assert [one.fallback is None for one in rewritten] == [True, False, True]
    assert list(rewritten.fallbacks) == [1]


def test_failed_rows_of_embeddings_are_not_a_number_and_are_listed(pool):
    found = batch_encode_queries(["a", "refuse", "abc"], pool=pool)
    assert isinstance(found, Embeddings)
    assert found[[0, 2]].tolist() == [[1, 1, 2], [3, 1, 2]]
    assert np.isnan(found[1]).all()
    assert [(row, type(failure)) for row, failure in found.failed.items()] == [(1, Rejected)]
    assert not hasattr(found[1:], "failed")
    replies = batch_encode_queries(["a", "refuse", "abc"], pool=pool, results=True)
    assert [type(one) for one in replies] == [Reply, Rejected, Reply]


def test_when_every_row_fails_the_first_failure_is_raised(pool):
    with pytest.raises(Rejected):
        batch_encode_queries(["refuse", "refuse this"], pool=pool)
    assert list(batch_encode_queries(["refuse", "refuse this"], pool=pool, results=True).failed) == [0, 1]


def test_an_empty_query_fails_and_no_model_invents_one(pool):
    rewritten = batch_mutate_queries(["", "a", " \n"], "rephrase", pool=pool)
    assert [isinstance(one, Failure) for one in rewritten] == [True, False, True]


def test_nothing_in_is_nothing_out_and_no_server_is_asked():
    nowhere = "http://127.0.0.1:9"
    assert batch_query_target_model([], "m", servers=nowhere) == []
    assert batch_mutate_queries([], "rephrase", "m", servers=nowhere) == []
    assert batch_mutate_queries([], [], "m", servers=nowhere, results=True) == BatchResult()
    assert batch_encode_queries([], "m", servers=nowhere).shape == (0, 0)
    assert batch_encode_queries([], "m").failed == {}
    assert batch_encode_queries([], "./", results=True) == []


def test_no_server_at_all_is_a_failure_for_each_call():
    found = batch_query_target_model(["a", "b"], "m", servers="http://127.0.0.1:9", fallback="none")
    assert found == ["none", "none"]
    assert [type(failure) for failure in found.fallbacks.values()] == [ServerLost, ServerLost]


@pytest.mark.parametrize("cap", [1, 3])
@pytest.mark.parametrize("limit", [None, 8])
def test_a_number_of_workers_caps_the_requests_in_flight(cap, limit):
    prompts = [str(number) for number in range(30)]
    with ModelServer(latency=0.002) as model:
        found = batch_query_target_model(prompts, "m", servers=Server(url=model.url, limit=limit), max_workers=cap)
        assert not found.failed
        assert model.counts.max_in_flight <= cap
    with ModelServer(latency=0.02) as model:
        batch_query_target_model(prompts, "m", servers=model.url)
        assert model.counts.max_in_flight > 3, "without a number there are more"


def test_by_default_the_limit_is_found_out():
    for function in (batch_encode_queries, batch_mutate_queries, batch_query_target_model):
        assert inspect.signature(function).parameters["max_workers"].default is None


def test_the_built_in_model_and_a_directory_need_no_server(tmp_path, monkeypatch):
    texts = ["one", "two", ""]
    found = batch_encode_queries(texts, "hash")
    assert np.array_equal(found, open_embedder("hash").encode(texts))
    assert batch_encode_queries(texts, "hash-16").shape == (3, 16)
    replies = batch_encode_queries(texts, "hash", results=True)
    assert np.array_equal([reply.vector for reply in replies], found)
    with pytest.raises(OptionError, match="max_workers has no effect on hash"):
        batch_encode_queries(texts, "hash", max_workers=3)
    asked = []
    monkeypatch.setattr("brim.llm.batch_calls.open_embedder", lambda name: asked.append(name) or open_embedder("hash"))
    for model in (tmp_path, str(tmp_path)):
        assert np.array_equal(batch_encode_queries(texts, model), found)
    assert asked == [str(tmp_path)] * 2


def test_with_servers_every_model_is_the_servers(server, pool):
    assert batch_encode_queries(["abc"], "hash", servers=server.url).tolist() == [[3, 1, 2]]
    assert batch_encode_queries(["abc"], "hash", pool=pool).tolist() == [[3, 1, 2]]


def test_vectors_of_different_sizes_are_refused():
    with (
        ModelServer(embedding=lambda text: np.ones(len(text), np.float32)) as odd,
        LLMPool(odd.url, model="m", config=PoolConfig(embed_batch=1)) as alone,
        pytest.raises(DataError, match="vectors of different sizes: 1, 3"),
    ):
        batch_encode_queries(["a", "abc"], pool=alone)


@pytest.mark.parametrize("function", [batch_encode_queries, batch_query_target_model])
def test_one_string_is_not_a_list(function):
    with pytest.raises(OptionError, match=r"must be a list.*got one string: 'text'"):
        function("text", "m")


def test_wrong_options_are_refused_before_anything_is_asked(pool):
    with pytest.raises(OptionError, match="queries must be a list of strings, got one string"):
        batch_mutate_queries("text", "rephrase", pool=pool)
    with pytest.raises(OptionError, match="queries must be strings; number 1 is 7"):
        batch_encode_queries(["a", 7], pool=pool)
    with pytest.raises(OptionError, match="there is no mutation 'refrase'"):
        batch_mutate_queries([], "refrase", pool=pool)
    with pytest.raises(OptionError, match="there are 2 mutations for 3 queries"):
        batch_mutate_queries(["a", "b", "c"], ["rephrase", "shorten"], pool=pool)
    with pytest.raises(OptionError, match="fallback must be one of original, got 'default'"):
        batch_mutate_queries(["a"], "rephrase", pool=pool, fallback="default")
    with pytest.raises(OptionError, match="max_workers must be at least 1, got 0"):
        batch_query_target_model(["a"], "m", max_workers=0)
    for options in ({"servers": "http://127.0.0.1:9"}, {"max_workers": 3}):
        with pytest.raises(OptionError, match="has no effect on a pool that exists"):
            batch_query_target_model(["a"], pool=pool, **options)
    with pytest.raises(OptionError, match="max_workers needs servers by their address, got VirtualServer"):
        batch_query_target_model(["a"], "m", servers=VirtualServer(), max_workers=3)


def test_a_mutation_that_needs_a_second_query_is_refused_before_anything_is_asked(server, pool):
    asked = server.counts.arrived
    own = Mutation("mixed", "", "{query} like {other}")
    for mutations in ("crossover", own, ["rephrase", "crossover"]):
        with pytest.raises(OptionError, match=r"the mutation '\w+' needs a second query for each query"):
            batch_mutate_queries(["a", "b"], mutations, pool=pool)
    assert server.counts.arrived == asked


def test_faults_that_pass_cost_no_answer():
    prompts = [str(number) for number in range(60)]
    with ModelServer(answers=answer, faults=Faults(error=0.1, reject=0.1, drop=0.05)) as model:
        assert batch_query_target_model(prompts, "m", servers=model.url) == [f"  <{prompt}>\n" for prompt in prompts]
    gc.collect()  # whatever was left open would warn now
