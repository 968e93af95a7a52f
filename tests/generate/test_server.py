"""`ServerGenerator`: the responses of model servers, simulated ones and a real one."""

import socket

import numpy as np
import pytest

from brim.core.errors import OptionError
from brim.generate.config import GenerationConfig
from brim.generate.rollouts import Response, Rollouts
from brim.generate.server import FailedResponse, ServerGenerator
from brim.llm import (
    Answer,
    BadReply,
    Cache,
    ModelMissing,
    NotCached,
    PoolConfig,
    Rejected,
    Server,
    ServerFailed,
    ServerLost,
    TokenLogprobs,
)
from brim.llm.testing.replies import token_facts, token_logprobs

pytest_plugins = ["brim.llm.testing.fixture"]

PROMPTS = ["2 + 2 =", "3 + 3 =", "4 + 4 ="]
softwares = pytest.mark.parametrize("software", ["openai", "vllm", "llama.cpp"])


@pytest.fixture
def made(model_server):
    """Make a simulated server, and a generator that asks it."""
    opened = []

    def make(behaviour=None, *, path="/v1", **options):
        server = model_server(**(behaviour or {}))
        opened.append(ServerGenerator(server.url + path, model="test", **options))
        return server, opened[-1]

    yield make
    for generator in opened:
        generator.close()


class Scripted:
    """An endpoint that gives every call the same answer."""

    name = "scripted"

    def __init__(self, answer):
        self.answer = answer

    async def ask(self, call):
        return self.answer

    async def models(self):
        return ["test"]

    async def close(self):
        pass


def ended(answer, *, stop=None, **options):
    """What becomes of one answer."""
    with ServerGenerator(Scripted(answer), logprobs=True, **options) as generator:
        [only] = generator.stream(["x"], G=1, stop=stop)
    return only


def seeds(server):
    return {(request.call.prompt, request.call.sampling.seed) for request in server.requests}


# What is asked


def test_every_prompt_gets_g_responses(made):
    _, generator = made({"latency": 0.002})
    responses = list(generator.stream(PROMPTS, G=4, seed=0))
    assert sorted((one.prompt, one.sample) for one in responses) == [(b, g) for b in range(3) for g in range(4)]
    assert {one.text for one in responses if one.prompt == 1} == {"answer to: 3 + 3 ="}
    assert {one.finish_reason for one in responses} == {"eos"}
    assert generator.stats.replies == 12
    generator.close()
    assert generator.stats.replies == 12
    assert list(made()[1].stream([])) == []


def test_the_seed_of_a_response_depends_on_its_prompt_and_not_on_the_order(made):
    server, generator = made()
    list(generator.stream(PROMPTS, G=3, seed=7))
    forward = seeds(server)
    assert len({seed for _, seed in forward}) == 9
    server, generator = made()
    list(generator.stream(PROMPTS[::-1], G=3, seed=7))
    assert seeds(server) == forward
    server, generator = made()
    list(generator.stream(PROMPTS[1:2], G=3, seed=7))
    assert seeds(server) == {pair for pair in forward if pair[0] == PROMPTS[1]}
    server, generator = made()
    list(generator.stream(PROMPTS, G=3, seed=8))
    assert not seeds(server) & forward


def test_equal_prompts_have_seeds_of_their_own(made):
    server, generator = made()
    list(generator.stream(["x", "y", "x"], G=2, seed=7))
    assert len(seeds(server)) == server.counts.served == 6


def test_a_seed_is_taken_from_the_config_or_made_and_told(made):
    server, generator = made(config=GenerationConfig(seed=7))
    list(generator.stream(PROMPTS, G=1))
    assert generator.seed == 7
    _, other = made()
    other.stream(PROMPTS)
    made_up = other.seed
    other.stream(PROMPTS)
    assert made_up != other.seed
    again, generator = made()
    list(generator.stream(PROMPTS, G=1, seed=7))
    assert seeds(again) == seeds(server)


def test_what_is_skipped_is_not_asked_and_changes_no_seed(made):
    whole, generator = made()
    list(generator.stream(PROMPTS, G=2, seed=7))
    server, generator = made()
    skip = {(0, 0), (0, 1), (2, 1)}
    responses = list(generator.stream(PROMPTS, G=2, seed=7, skip=skip))
    assert {(one.prompt, one.sample) for one in responses} == {(1, 0), (1, 1), (2, 0)}
    assert server.counts.served == 3
    assert seeds(server) < seeds(whole)


def test_options_reach_the_server_under_its_names(made):
    config = GenerationConfig(max_new_tokens=9, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop=("\n", 3))
    server, generator = made(config=config, extra={"priority": 1})
    list(generator.stream(["x"], G=1))
    body = server.requests[0].body
    sent = {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop": ["\n"]}
    assert body | sent | {"stop_token_ids": [3], "priority": 1} == body
    assert "logprobs" not in body


@softwares
def test_a_limit_of_0_is_sent_to_servers_that_know_it(made, software):
    server, generator = made({"software": software})
    list(generator.stream(["x"], G=1))
    body = server.requests[0].body
    assert (body["temperature"], body["top_p"]) == (1.0, 1.0)
    known = {name: body[name] for name in ("top_k", "min_p") if name in body}
    assert known == ({} if software == "openai" else {"top_k": -1, "min_p": 0.0})
    assert "stop" not in body


def test_greedy_is_temperature_0_and_nothing_else(made):
    server, generator = made({"software": "vllm"}, config=GenerationConfig(do_sample=False, top_p=0.5, top_k=3))
    list(generator.stream(["x"], G=2))
    assert {request.body["temperature"] for request in server.requests} == {0}
    assert not {"top_p", "top_k", "min_p"} & set(server.requests[0].body)
    assert server.counts.served == 2


def test_ollama_gets_the_same_options(made):
    server, generator = made(path="", config=GenerationConfig(top_k=5, max_new_tokens=9), extra={"raw": True})
    list(generator.stream(["x"], G=1))
    body = server.requests[0].body
    assert body["options"] | {"num_predict": 9, "top_k": 5, "min_p": 0.0, "top_p": 1.0} == body["options"]
    assert body["raw"] is True


def test_a_conversation_is_asked_as_a_chat(made):
    server, generator = made(chat=True)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    responses = list(generator.stream([talk, "hello"], G=1, seed=0))
    assert {one.text for one in responses} == {"answer to: hello"}
    asked = sorted((request.body["messages"] for request in server.requests), key=len)
    assert asked == [[{"role": "user", "content": "hello"}], talk]


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        (["x", ""], {}, "prompt 1 is empty"),
        (["x", [{"role": "user", "content": "x"}]], {}, "prompt 1 is a conversation"),
        ("x", {}, "list of prompts"),
        (["x"], {"G": 0}, "G must be .*got 0"),
        (["x"], {"seed": -1}, "got -1"),
        (["x"], {"stop": "ab"}, "list of texts and token ids, got 'ab'"),
        (["x"], {"stop": [""]}, "empty"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(made, prompts, options, said):
    server, generator = made()
    with pytest.raises(OptionError, match=said):
        generator.stream(prompts, **options)
    assert server.counts.arrived == 0


@pytest.mark.parametrize("empty", ["", " ", [], [{"role": "user"}]])
def test_an_empty_conversation_is_refused_with_its_number(made, empty):
    _, generator = made(chat=True)
    with pytest.raises(OptionError, match="prompt 2 cannot be asked"):
        generator.stream(["x", "y", empty])


# What comes back


@softwares
@pytest.mark.parametrize("chat", [False, True])
def test_log_probs_and_ids_are_those_that_the_server_tells(made, software, chat):
    _, generator = made({"software": software}, logprobs=True, chat=chat)
    for response in generator.stream(PROMPTS, G=2):
        expected = token_logprobs(response.text)
        np.testing.assert_array_equal(response.logprobs, expected.logprobs)
        assert response.sampling_logprobs is response.entropies is None
        if software == "openai":
            assert response.token_ids is None
        else:
            np.testing.assert_array_equal(response.token_ids, expected.ids)


def test_responses_with_ids_become_rollouts(made):
    _, generator = made({"software": "vllm"}, logprobs=True)
    prompts = [np.array([1, 2], np.int32)] * 3
    rollouts = Rollouts.collect(prompts, generator.stream(PROMPTS, G=2, seed=5), G=2, seed=generator.seed)
    assert rollouts.texts[2] == "answer to: 3 + 3 ="
    assert len(rollouts.logprobs) == len(rollouts.response_ids) > 0


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 3}, {"do_sample": False}])
def test_log_probs_of_a_distribution_that_is_not_known_are_left_out(made, options):
    _, generator = made({"software": "vllm"}, logprobs=True, config=GenerationConfig(**options))
    [response] = generator.stream(["x"], G=1)
    assert response.logprobs is response.sampling_logprobs is None
    assert response.token_ids is not None


def test_without_being_asked_for_nothing_is_told(made):
    for behaviour, asked in (({"software": "vllm"}, False), ({"reports_logprobs": False}, True)):
        _, generator = made(behaviour, logprobs=asked)
        [response] = generator.stream(["x"], G=1)
        assert response.text == "answer to: x"
        assert response.logprobs is response.token_ids is None


def test_log_probs_of_only_some_tokens_are_left_out():
    told = TokenLogprobs(tokens=("a", "b"), logprobs=np.array([-1, -2], np.float32))
    whole = ended(Answer(text="ab", finish_reason="stop", completion_tokens=2, logprobs=told))
    assert whole.logprobs.tolist() == [-1, -2]
    for count in (3, None):
        part = ended(Answer(text="ab", finish_reason="stop", completion_tokens=count, logprobs=told))
        assert part.text == "ab"
        assert part.logprobs is None


def test_stops_cut_the_text_and_are_told_apart_where_the_server_tells(made):
    answers = {"x": "one two END three", "y": "one two"}
    for software, reasons in (("vllm", ("stop", "eos")), ("openai", ("stop", "stop"))):
        _, generator = made({"software": software, "answers": answers}, config=GenerationConfig(stop=("END",)))
        found = {one.prompt: one for one in generator.stream(["x", "y"], G=1)}
        assert (found[0].text, found[1].text) == ("one two ", "one two")
        assert (found[0].finish_reason, found[1].finish_reason) == reasons
        [whole] = generator.stream(["x"], G=1, stop=())
        assert (whole.text, whole.finish_reason) == (answers["x"], "eos")


def test_a_response_that_is_cut_off_ends_by_its_length(made):
    _, generator = made(config=GenerationConfig(max_new_tokens=2, stop=("x",)))
    [response] = generator.stream(["hello there"], G=1)
    assert (response.text, response.finish_reason) == ("answer to:", "length")


def ids(*numbers):
    return TokenLogprobs(
        tokens=("t",) * len(numbers), logprobs=np.zeros(len(numbers), np.float32), ids=np.array(numbers, np.int32)
    )


@pytest.mark.parametrize(
    ("answer", "stop", "reason"),
    [
        ({"finish_reason": "length", "stop_reason": None}, ["a"], "length"),
        ({"finish_reason": "stop"}, [], "eos"),
        ({"finish_reason": "stop"}, ["a"], "stop"),
        ({"finish_reason": "stop", "stop_reason": ""}, ["a"], "eos"),
        ({"finish_reason": "stop", "stop_reason": "a"}, ["a"], "stop"),
        ({"finish_reason": "stop", "stop_reason": 5}, ["a", 5], "stop"),
        ({"finish_reason": "stop", "stop_reason": 2}, ["a", 5], "eos"),
        ({"finish_reason": "stop", "stop_reason": "end_turn"}, ["a"], "stop"),
        ({"finish_reason": "stop", "logprobs": ids(7, 5)}, [5], "stop"),
        ({"finish_reason": "stop", "logprobs": ids(7, 2)}, [5], "eos"),
        ({"finish_reason": "stop", "logprobs": ids(7, 2)}, [5, "a"], "stop"),
        ({"finish_reason": "stop", "logprobs": ids()}, [5], "eos"),
    ],
)
def test_the_reason_of_an_end_is_what_is_known(answer, stop, reason):
    assert ended(Answer(text="x", **answer), stop=stop).finish_reason == reason


@pytest.mark.parametrize("reason", [None, "content_filter", "tool_calls", "abort", ""])
def test_any_other_reason_is_a_failure(reason):
    failed = ended(Answer(text="x", finish_reason=reason))
    assert isinstance(failed, FailedResponse)
    assert isinstance(failed.failure, BadReply)
    assert repr(reason) in str(failed.failure)


def test_a_server_that_does_not_know_stops_by_id_is_found_out():
    failed = ended(Answer(text="x", finish_reason="length", logprobs=ids(7, 5, 8)), stop=[5])
    assert isinstance(failed.failure, Rejected)
    assert "stop_token_ids" in str(failed.failure)


# Failures


@pytest.fixture
def free_port():
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_failure_is_a_value_in_the_place_of_its_response(made):
    config = PoolConfig(attempts=1)
    server, generator = made({"answers": {"x": "fine"}}, pool_config=config)
    found = {one.prompt: one for one in generator.stream(["x", "unknown", "x"], G=1)}
    assert isinstance(found[1], FailedResponse)
    assert isinstance(found[1].failure, Rejected)
    assert found[1].sample == 0
    assert [found[0].text, found[2].text] == ["fine", "fine"]
    server.next("error")
    [failed] = generator.stream(["x"], G=1)
    assert isinstance(failed.failure, ServerFailed)
    assert generator.stats.failures == {"Rejected": 1, "ServerFailed": 1}


def test_log_probs_that_cannot_be_right_are_a_failure(made, monkeypatch):
    monkeypatch.setattr("brim.llm.testing.openai_wire.token_facts", lambda token: (token_facts(token)[0], 0.5))
    _, generator = made(logprobs=True, pool_config=PoolConfig(attempts=1))
    [failed] = generator.stream(["x"], G=1)
    assert isinstance(failed.failure, BadReply)
    assert "above 0" in str(failed.failure)


def test_a_server_that_was_never_there_ends_the_stream(free_port):
    with (
        ServerGenerator(f"http://127.0.0.1:{free_port}/v1", model="test") as generator,
        pytest.raises(ServerLost),
    ):
        list(generator.stream(PROMPTS, G=2))


def test_a_server_that_is_lost_ends_the_stream(made):
    server, generator = made({"slots": 1, "latency": 0.01}, pool_config=PoolConfig(patience=0.2))
    responses = generator.stream(PROMPTS * 20, G=2)
    assert isinstance(next(responses), Response)
    server.stop()
    with pytest.raises(ServerLost):
        list(responses)


def test_a_refused_key_or_a_missing_model_ends_the_stream(made):
    _, generator = made({"require_key": "secret-key"})
    with pytest.raises(Rejected) as refused:
        list(generator.stream(PROMPTS, G=2))
    assert refused.value.status == 401
    assert "secret-key" not in str(refused.value)
    _, generator = made({"models": ("other",)})
    with pytest.raises(ModelMissing):
        list(generator.stream(PROMPTS, G=2))


def test_whoever_stops_reading_stops_the_calls(made):
    server, generator = made({"slots": 2, "latency": 0.005})
    responses = generator.stream(PROMPTS * 100, G=8)
    next(responses)
    responses.close()
    assert generator.stats.open < 2400
    assert server.counts.served < 100


def test_a_cache_gives_the_same_responses_again(made, tmp_path):
    server, generator = made({"software": "vllm"}, logprobs=True, cache=tmp_path / "cache", trace=tmp_path / "trace")
    first = {(one.prompt, one.sample): one for one in generator.stream(PROMPTS, G=2, seed=1)}
    generator.close()
    assert (tmp_path / "trace").stat().st_size > 0
    with Cache(tmp_path / "cache", mode="replay") as cache:
        with ServerGenerator(Server(url=server.url), model="test", logprobs=True, cache=cache) as replaying:
            again = list(replaying.stream(PROMPTS[::-1], G=2, seed=1))
            [other] = replaying.stream(PROMPTS[:1], G=1, seed=2)
    assert isinstance(other.failure, NotCached)
    assert server.counts.served == 6
    for one in again:
        before = first[2 - one.prompt, one.sample]
        assert one.text == before.text
        np.testing.assert_array_equal(one.logprobs, before.logprobs)
        np.testing.assert_array_equal(one.token_ids, before.token_ids)


# A real server


@pytest.mark.server
def test_a_real_model_responds_with_ids_and_log_probs(smollm):
    config = GenerationConfig(max_new_tokens=6)
    with ServerGenerator(smollm.url, config=config, logprobs=True) as generator:
        responses = list(generator.stream(["The capital of France is", "1, 2, 3,"], G=2, seed=0))
    assert sorted((one.prompt, one.sample) for one in responses) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for response in responses:
        assert isinstance(response, Response)
        assert response.finish_reason in ("length", "eos")
        if response.token_ids is not None:  # a token that is a part of a character leaves them unknown
            assert len(response.logprobs) == len(response.token_ids) <= 6
            assert (response.logprobs <= 0).all()
    assert any(response.token_ids is not None for response in responses)
