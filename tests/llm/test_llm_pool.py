"""`LLMPool`: the engine behind functions, in threads, in loops, over real sockets."""

import asyncio
import itertools
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, OptionError
from brim.llm import (
    Cache,
    CacheFailed,
    Call,
    Cancelled,
    Failure,
    InProcessEndpoint,
    LLMPool,
    ModelMissing,
    NotCached,
    PoolConfig,
    Rejected,
    Reply,
    Sampling,
    Server,
    ServerLost,
    TimedOut,
    open_embedder,
    read_trace,
)
from brim.llm.testing import Behaviour, Faults, LogNormal, ModelServer, VirtualServer

pytest_plugins = ["brim.llm.testing.fixture"]


@pytest.fixture(scope="module")
def server():
    """A real HTTP server that answers after a few milliseconds, in no particular order."""
    with ModelServer(slots=64, latency=LogNormal(0.004, 0.5)) as server:
        yield server


@pytest.fixture(scope="module")
def pool(server):
    with LLMPool(server.url, model="test") as pool:
        yield pool


def texts(results):
    return [result.text for result in results]


@settings(max_examples=15)
@given(st.lists(st.text(min_size=1, max_size=40).filter(str.strip), max_size=60))
def test_answers_come_back_in_the_order_asked(pool, prompts):
    assert texts(pool.map(prompts)) == [f"answer to: {prompt}" for prompt in prompts]


def test_as_ready_gives_every_number_once(pool):
    found = dict(pool.as_ready(f"q{number}" for number in range(300)))
    assert sorted(found) == list(range(300))
    assert all(result.text == f"answer to: q{number}" for number, result in found.items())


def test_prompts_may_be_endless_and_no_more_are_taken_than_allowed(pool):
    taken = itertools.count()
    prompts = (f"endless {next(taken)}" for _ in itertools.count())
    used = list(itertools.islice(pool.as_ready(prompts, ahead=50), 120))
    assert len({number for number, _ in used}) == 120
    assert next(taken) <= 120 + 50
    while pool.stats().open:  # those that nobody used are cancelled
        pass


def test_the_same_pool_serves_threads_and_event_loops(pool):
    async def ask():
        replies = await pool.map_async([f"async {number}" for number in range(20)])
        ready = {number: result async for number, result in pool.as_ready(["a", "b", "c"])}
        one = await pool.submit("one")
        vectors = await pool.embed_async(["x", "y"])
        # Functions that are not async work inside a running loop, too.
        return texts(replies), sorted(ready), one.text, len(vectors), texts(pool.map(["inside a loop"]))

    found = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(ask()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = ([f"answer to: async {number}" for number in range(20)], [0, 1, 2], "answer to: one", 2)
    assert found == [(*expected, ["answer to: inside a loop"])] * 3


def test_submit_gives_an_object_to_wait_for(pool):
    pending = pool.submit("later", sampling=Sampling(max_tokens=2))
    reply = pending.result(timeout=20)
    assert pending.done()
    assert reply.finish_reason == "length"
    assert reply.completion_tokens == 2
    assert (reply.model, reply.attempts, reply.cached) == ("test", 1, False)
    assert reply.seconds >= reply.latency > 0


def test_a_pending_call_can_be_cancelled(model_server):
    server = model_server(latency=60.0)
    with LLMPool(server.url, model="test") as pool:
        pending = pool.submit("never")
        pending.cancel()
        with pytest.raises(Cancelled):
            pending.result(timeout=20)


def test_a_conversation_a_system_message_and_a_completion_reach_the_server(model_server):
    server = model_server()
    with LLMPool(Server(url=server.url, protocol="ollama"), model="test") as pool:
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        talk.append({"role": "user", "content": "and?"})
        pool.map([talk], system="be brief", sampling=Sampling(temperature=0.5, top_p=0.9, seed=3, stop=("END",)))
        pool.map(["Once upon a time"], kind="complete")
    chat, completion = [request.body for request in server.requests]
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "user"]
    assert chat["options"] == {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["END"]}
    assert completion["prompt"] == "Once upon a time"


@pytest.mark.parametrize("protocol", ["auto", "ollama", "openai"])
def test_both_protocols_answer(model_server, protocol):
    server = model_server(protocols=("ollama", "openai") if protocol == "auto" else (protocol,))
    with LLMPool(Server(url=server.url, protocol=protocol), model="test") as pool:
        assert texts(pool.map(["a", "b"])) == ["answer to: a", "answer to: b"]
        assert pool.embed(["text"])[0].vector.dtype == np.float32


def test_samples_of_one_prompt_stand_next_to_each_other_with_seeds_of_their_own(model_server):
    server = model_server(Behaviour(answers=lambda call: f"{call.messages[-1]['content']} {call.sampling.seed}"))
    with LLMPool(server.url, model="test") as pool:
        results = texts(pool.map(["a", "b"], samples=3, sampling=Sampling(temperature=1.0, seed=7)))
        again = texts(pool.map(["a", "b"], samples=3, sampling=Sampling(temperature=1.0, seed=7)))
    assert results == again
    assert [result.split()[0] for result in results] == ["a"] * 3 + ["b"] * 3
    assert results[0] == "a 7"
    assert len({result.split()[1] for result in results}) == 3


def test_an_empty_prompt_is_refused_without_being_sent(pool):
    fine, empty, wrong = pool.map(["fine", "  ", [{"role": "user"}]])
    assert isinstance(fine, Reply)
    assert isinstance(empty, Rejected)
    assert "empty" in str(empty)
    assert isinstance(wrong, Rejected)
    assert '"content"' in str(wrong)


def test_one_string_is_not_a_list_of_prompts(pool):
    with pytest.raises(OptionError, match="list of prompts"):
        pool.map("hello")
    with pytest.raises(OptionError, match="list of strings"):
        pool.embed("hello")


def test_without_a_name_the_only_model_is_used(model_server):
    with LLMPool(model_server(models=("only",)).url) as pool:
        assert pool.map(["a"])[0].model == "only"
    with LLMPool(model_server(models=("one", "two")).url) as pool, pytest.raises(OptionError, match="one, two"):
        pool.submit("a")


def test_a_model_that_is_missing_is_named_with_the_nearest_one(model_server):
    with LLMPool(model_server(models=("llama3.2", "qwen3")).url, model="lama3.2") as pool:
        [failure] = pool.map(["a"])
    assert isinstance(failure, ModelMissing)
    assert "llama3.2" in str(failure)


def test_no_server_is_one_clear_failure_for_each_call(unused_port):
    with LLMPool(f"http://127.0.0.1:{unused_port}", model="m") as pool:
        results = pool.map(["a", "b", "c"])
    assert {type(result) for result in results} == {ServerLost}
    assert "refused" in str(results[0])
    assert f"127.0.0.1:{unused_port}" in str(results[0])


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_pool_that_is_closed_says_so():
    pool = LLMPool(VirtualServer(latency=60.0), model="m")
    waiting = pool.submit("a")
    pool.close()
    pool.close()
    with pytest.raises(Cancelled):
        waiting.result(timeout=20)
    with pytest.raises(BrimError, match="closed"):
        pool.map(["a"])
    with pytest.raises(BrimError, match="closed"):
        pool.stats()


def test_a_pool_belongs_to_the_process_that_made_it(pool):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            pool.map(["a"])
        except BrimError as error:
            status = 0 if "another process" in str(error) else 2
        pool.close()  # leaves the parent's thread and files alone
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert isinstance(pool.map(["still here"])[0], Reply)


def test_servers_share_the_work_and_the_figures_say_how(model_server):
    servers = [model_server(slots=4, latency=0.01), model_server(slots=4, latency=0.01)]
    with LLMPool([server.url for server in servers], model="test") as pool:
        pool.map([f"q{number}" for number in range(200)])
        stats = pool.stats()
    assert stats.replies == 200 == stats.calls
    assert stats.requests == sum(server.counts.arrived for server in servers)
    assert all(server.replies > 20 for server in stats.servers)
    assert 0.5 < stats.fill.ratio <= 1.0
    assert stats.to_dict()["servers"][0]["latency_p50"] > 0


def test_a_fixed_limit_is_kept(model_server):
    server = model_server(latency=0.01)
    with LLMPool(Server(url=server.url, limit=3), model="test") as pool:
        pool.map([f"q{number}" for number in range(60)])
    assert server.counts.max_in_flight == 3


def test_the_cache_answers_and_a_replay_asks_no_server(model_server, tmp_path):
    server = model_server()
    path = tmp_path / "answers.cache"
    prompts = [f"q{number}" for number in range(50)]
    with LLMPool(server.url, model="test", cache=path) as pool:
        first = pool.map(prompts)
        vectors = pool.embed(prompts)
    asked = server.counts.arrived
    with LLMPool(server.url, model="test", cache=path) as pool:
        assert texts(pool.map(prompts)) == texts(first)
        assert all(result.cached for result in pool.map(prompts))
        assert pool.stats().cached == 100
    server.stop()
    with LLMPool(server.url, model="test", cache=path, cache_mode="replay") as pool:
        assert texts(pool.map(prompts)) == texts(first)
        replayed = pool.embed(prompts)
        assert all(np.array_equal(a.vector, b.vector) for a, b in zip(vectors, replayed, strict=True))
        assert isinstance(pool.map(["unknown"])[0], NotCached)
        assert isinstance(pool.map(prompts[:1], sampling=Sampling(temperature=1.0))[0], NotCached)
    assert server.counts.arrived == asked


def test_samples_are_cached_apart(model_server, tmp_path):
    counter = itertools.count()
    server = model_server(Behaviour(answers=lambda call: f"sample {next(counter)}"))
    with LLMPool(server.url, model="test", cache=tmp_path / "c") as pool:
        first = texts(pool.map(["a"], samples=4, sampling=Sampling(temperature=1.0)))
        again = texts(pool.map(["a"], samples=6, sampling=Sampling(temperature=1.0)))
    assert len(set(first)) == 4
    assert again[:4] == first
    assert len(set(again)) == 6


def test_a_damaged_cache_ends_calls_with_a_failure_and_not_with_a_hang(model_server, tmp_path):
    server = model_server()
    path = tmp_path / "c"
    with LLMPool(server.url, model="test", cache=path) as pool:
        pool.map([f"q{number}" for number in range(300)])
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 7):
        data[at] ^= 0x55
    path.write_bytes(data)
    results, raised = [], ""
    try:
        with LLMPool(server.url, model="test", cache=path) as pool:
            results = pool.map([f"q{number}" for number in range(300)])
    except BrimError as error:  # it was noticed at the opening or the closing
        raised = str(error)
    assert str(path) in raised or any(isinstance(result, CacheFailed) for result in results)
    answers = [(number, result) for number, result in enumerate(results) if isinstance(result, Reply)]
    assert all(result.text == f"answer to: q{number}" for number, result in answers)


def test_failures_are_never_cached(model_server, tmp_path):
    server = model_server(Behaviour(faults=Faults(error=1.0)))
    cache = Cache(tmp_path / "c")
    with LLMPool(server.url, model="test", cache=cache, config=PoolConfig(attempts=1)) as pool:
        assert isinstance(pool.map(["a"])[0], Failure)
        server.change(faults=Faults())
        assert isinstance(pool.map(["a"])[0], Reply)
    cache.close()
    assert cache.stored == 1


def test_a_trace_has_a_line_for_every_request_and_every_call(model_server, tmp_path):
    server = model_server(Behaviour(faults=Faults(error=0.3), seed=1))
    with LLMPool(server.url, model="test", trace=tmp_path / "t.jsonl") as pool:
        results = pool.map([f"q{number}" for number in range(30)])
        requests = pool.stats().requests
    events = list(read_trace(tmp_path / "t.jsonl"))
    assert sum(event["event"] in ("answered", "failed") for event in events) == requests
    assert sum(event["event"] == "ended" for event in events) == 30
    assert {event["type"] for event in events if event["event"] == "failed"} == {"ServerFailed"}
    assert all(isinstance(result, Reply) for result in results)


def test_embeddings_over_http_equal_those_of_the_server_in_any_order(model_server):
    server = model_server(Behaviour(faults=Faults(shuffled_embeddings=0.5), dim=16, latency=0.002))
    inputs = [f"text {number}" for number in range(500)] + [f"text {number}" for number in range(100)]
    with LLMPool(Server(url=server.url, protocol="openai"), model="test") as pool:
        results = pool.embed(inputs)
        single = pool.embed(["text 17"])[0]
    assert np.array_equal(results[17].vector, single.vector)
    assert all(np.array_equal(results[number].vector, results[500 + number].vector) for number in range(100))
    assert server.counts.arrived <= 500 // 64 + 3


def test_a_model_in_this_process_is_an_endpoint_like_any_other():
    embedder = open_embedder("hash")
    with LLMPool(InProcessEndpoint(embedder), model=embedder.name) as pool:
        results = pool.embed([f"text {number}" for number in range(200)])
        assert isinstance(pool.map(["a chat"])[0], Rejected)
    expected = embedder.encode([f"text {number}" for number in range(200)])
    assert np.array_equal(np.stack([result.vector for result in results]), expected)


def test_a_deadline_ends_a_call_that_was_never_sent(model_server):
    server = model_server(latency=30.0)
    with LLMPool(Server(url=server.url, limit=1), model="test") as pool:
        pool.submit("takes long")
        late = pool.submit("waits", deadline=0.2)
        with pytest.raises(TimedOut, match="before a server was free"):
            late.result(timeout=20)


def test_a_call_is_taken_as_it_is(pool):
    call = Call(model="test", messages=({"role": "user", "content": "as it is"},))
    assert pool.map([call])[0].text == "answer to: as it is"
    assert pool.call(call) is call


def test_options_that_cannot_work_are_refused():
    with pytest.raises(OptionError, match="at least one server"):
        LLMPool([])
    with pytest.raises(OptionError, match="cache_mode"):
        LLMPool(VirtualServer(), cache_mode="sometimes")
    with pytest.raises(OptionError, match="attempt_timeout"):
        PoolConfig(attempt_timeout=0)
    with pytest.raises(OptionError, match="rpm"):
        Server(url="http://h", rpm=0)
    with pytest.raises(OptionError, match="temperature"):
        Sampling(temperature=-1)
    with pytest.raises(OptionError, match="seed"):
        Sampling(seed=2**40)
