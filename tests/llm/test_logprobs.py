"""Log-probabilities of generated tokens: asked for, read in every form that servers send, kept, and given back."""

import asyncio
from contextlib import closing
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.llm import BadReply, Cache, Call, LLMPool, PoolConfig, Sampling, Server, ServerLost, TokenLogprobs
from brim.llm.cache_entry import from_bytes, to_bytes
from brim.llm.call import Answer, chat
from brim.llm.testing import VirtualServer, run
from brim.llm.testing.replies import token_logprobs, token_texts
from brim.llm.wire.address import parse_address
from brim.llm.wire.logprobs import logprobs_of_choice
from brim.llm.wire.ollama import Ollama
from brim.llm.wire.openai import OpenAI
from brim.llm.wire.transport import HttpEndpoint, Response

pytest_plugins = ["brim.llm.testing.fixture"]

ADDRESS = parse_address("http://host:8000", environ={})
ASKS = Sampling(logprobs=True)
CHAT = Call(model="m", messages=chat("Hello"), sampling=ASKS)
COMPLETE = Call(kind="complete", model="m", prompt="Once", sampling=ASKS)
ANSWER = "answer to: hello there"
softwares = pytest.mark.parametrize("software", ["openai", "vllm", "llama.cpp"])


def openai(owner=None):
    """The protocol of a server whose list of models names this owner."""
    dialect = OpenAI(ADDRESS)
    if owner is not None:
        dialect.models(200, {}, orjson.dumps({"data": [{"id": "m", "owned_by": owner}]}))
    return dialect


def body_of(dialect, call):
    return orjson.loads(dialect.request(call)[1])


def equal(one, other):
    """Whether two log-probs, of which either may be missing, are the same."""
    if one is None or other is None:
        return one is other
    ids = (one.ids is None) == (other.ids is None) and (one.ids is None or np.array_equal(one.ids, other.ids))
    return ids and one.tokens == other.tokens and np.array_equal(one.logprobs, other.logprobs)


# Calls


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (
            Call(
                model="m",
                messages=chat("Hello", system="Be brief."),
                sampling=Sampling(
                    max_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop=("\n",), extra={"format": "json"}
                ),
                sample=2,
            ),
            "483f451651b632061cc69008d2a4ae72",
        ),
        (Call(kind="complete", model="m", prompt="Once"), "0c30e79d20c2ad253e7923d9fdc0440b"),
        (Call(kind="embed", model="m", inputs=("a", "b")), "194e4bb62534e2b2095fef6f6f48b8f4"),
    ],
)
def test_the_keys_of_calls_without_log_probs_are_those_of_earlier_versions(call, key):
    assert call.key().hex() == key


def test_what_is_asked_for_is_part_of_the_key():
    how = [Sampling(), Sampling(logprobs=True), Sampling(top_k=0), Sampling(min_p=0), Sampling(top_k=5)]
    assert len({Call(model="m", prompt="Once", sampling=one).key() for one in how}) == len(how)


@pytest.mark.parametrize("options", [{"logprobs": 1}, {"top_k": -1}, {"top_k": 1.5}, {"min_p": 1.5}, {"min_p": -0.1}])
def test_options_that_cannot_work_are_refused_with_their_value(options):
    [value] = options.values()
    with pytest.raises(OptionError, match=str(value)):
        Sampling(**options)


# Requests


def test_log_probs_are_asked_for_in_the_words_of_each_protocol():
    assert body_of(openai(), COMPLETE)["logprobs"] == 1
    assert body_of(openai(), CHAT) | {"logprobs": True, "top_logprobs": 1} == body_of(openai(), CHAT)
    assert body_of(Ollama(ADDRESS), CHAT)["logprobs"] is True
    assert body_of(Ollama(ADDRESS), COMPLETE)["logprobs"] is True
    for dialect in (openai("vllm"), Ollama(ADDRESS)):
        plain = body_of(dialect, Call(model="m", messages=chat("Hello")))
        embed = body_of(dialect, Call(kind="embed", model="m", inputs=("a",), sampling=ASKS))
        assert not {"logprobs", "top_logprobs", "return_token_ids"} & {*plain, *embed}


def test_fields_beyond_the_protocol_go_only_to_servers_that_know_them():
    plain = Call(model="m", messages=chat("Hello"), sampling=Sampling(logprobs=True, top_k=0, min_p=0.0))
    for owner, sent in [
        (None, {}),
        ("openai", {}),
        ("llamacpp", {"top_k": -1, "min_p": 0.0}),
        ("sglang", {"top_k": -1, "min_p": 0.0}),
        ("vllm", {"top_k": -1, "min_p": 0.0, "return_token_ids": True}),
    ]:
        body = body_of(openai(owner), plain)
        assert {name: body[name] for name in ("top_k", "min_p", "return_token_ids") if name in body} == sent
    limited = Call(model="m", messages=chat("Hello"), sampling=Sampling(top_k=5, min_p=0.1))
    assert body_of(openai(), limited) | {"top_k": 5, "min_p": 0.1} == body_of(openai(), limited)
    assert body_of(Ollama(ADDRESS), plain)["options"] == {"top_k": 0, "min_p": 0.0}


class Scripted:
    """Connections that answer what they are told to, and remember what was asked."""

    address = ADDRESS

    def __init__(self, *models):
        self.models = list(models)
        self.asked = []

    async def request(self, method, path, body=None):
        self.asked.append(path)
        if path.endswith("/models"):
            answer = self.models.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return Response(200, {}, orjson.dumps({"choices": [{"text": "x", "finish_reason": "stop"}]}))


def asked_twice(connections, call):
    endpoint = HttpEndpoint(Server(url="http://host:8000", protocol="openai"), connections=connections)

    async def ask():
        return [one for _ in range(2) for one in await asyncio.gather(endpoint.ask(call), endpoint.ask(call))]

    return asyncio.run(ask())


def test_the_list_of_models_is_read_once_and_only_if_a_request_depends_on_it():
    listed = Response(200, {}, orjson.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}))
    connections = Scripted(listed)
    assert len(asked_twice(connections, COMPLETE)) == 4
    assert connections.asked == ["/v1/models", *["/v1/completions"] * 4]
    connections = Scripted()
    asked_twice(connections, Call(kind="complete", model="m", prompt="Once", sampling=Sampling(top_k=5)))
    assert connections.asked == ["/v1/completions"] * 4


@pytest.mark.parametrize(
    "listed", [Response(404, {}, b"no such page"), Response(200, {}, b"<html>"), Response(401, {}, b"")]
)
def test_a_server_without_a_list_of_models_is_asked_all_the_same(listed):
    connections = Scripted(listed)
    assert {answer.text for answer in asked_twice(connections, COMPLETE)} == {"x"}
    assert connections.asked.count("/v1/models") == 1


def test_a_server_that_is_lost_while_its_models_are_read_fails_the_attempt():
    with pytest.raises(ServerLost):
        asked_twice(Scripted(ServerLost("gone")), COMPLETE)


# Replies

LEGACY = {"tokens": [" a", "b"], "token_logprobs": [-0.5, -1]}
ENTRIES = [{"token": " a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
WITH_IDS = [entry | {"id": number} for entry, number in zip(ENTRIES, (7, 9), strict=True)]
SPELLED = {"tokens": ["token_id:7", "token_id:9"], "token_logprobs": [-0.5, -1]}


@pytest.mark.parametrize(
    ("choice", "ids"),
    [
        ({"logprobs": LEGACY}, None),
        ({"logprobs": LEGACY, "token_ids": None}, None),
        ({"logprobs": LEGACY, "token_ids": [7, 9]}, [7, 9]),
        ({"logprobs": {"content": ENTRIES}}, None),
        ({"logprobs": {"content": ENTRIES, "refusal": None}, "token_ids": [7, 9]}, [7, 9]),
        ({"logprobs": {"content": WITH_IDS}}, [7, 9]),
        ({"logprobs": SPELLED}, [7, 9]),
    ],
)
def test_every_form_of_log_probs_is_read(choice, ids):
    for generated in (2, None):
        read = logprobs_of_choice(ADDRESS, choice, generated)
        assert len(read) == 2
        assert read.logprobs.tolist() == [-0.5, -1.0]
        assert read.logprobs.dtype == np.float32
        assert (None if read.ids is None else read.ids.tolist()) == ids
        assert read.tokens in ((" a", "b"), ("token_id:7", "token_id:9"))


def test_ids_are_told_only_if_every_generated_token_has_one():
    """llama.cpp leaves out the tokens of a stop string, and those that are only a part of a character."""
    read = logprobs_of_choice(ADDRESS, {"logprobs": {"content": WITH_IDS}}, 3)
    assert read.ids is None
    assert read.logprobs.tolist() == [-0.5, -1.0]


@pytest.mark.parametrize("given", [None, {}, {"content": None}, {"content": None, "refusal": None}])
def test_a_server_that_sends_none_is_no_failure(given):
    assert logprobs_of_choice(ADDRESS, {"logprobs": given}, 2) is None
    assert logprobs_of_choice(ADDRESS, {}, 2) is None


def test_no_tokens_have_no_log_probs():
    for empty in ({"content": []}, {"tokens": [], "token_logprobs": []}):
        read = logprobs_of_choice(ADDRESS, {"logprobs": empty, "token_ids": []}, 0)
        assert (len(read), read.logprobs.shape, read.ids.shape) == (0, (0,), (0,))


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": 5},
        {"logprobs": [-0.5]},
        {"logprobs": {"content": 5}},
        {"logprobs": {"content": [5]}},
        {"logprobs": {"content": [{"token": "a"}]}},
        {"logprobs": {"content": [{"logprob": -1.0}]}},
        {"logprobs": {"content": [{"token": "a", "prob": 0.2}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": None}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": True}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": "-1"}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": 0.01}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": float("nan")}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": float("-inf")}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": -1e300}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": -1.0, "id": 1}, {"token": "b", "logprob": -1.0}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": -1.0, "id": -1}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": -1.0, "id": 2**31}]}},
        {"logprobs": {"content": [{"token": "token_id:9999999999", "logprob": -1.0}]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0, -1.0]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [None]}},
        {"logprobs": {"token_logprobs": [-1.0]}},
        {"logprobs": LEGACY, "token_ids": [7]},
        {"logprobs": LEGACY, "token_ids": [7, "9"]},
        {"logprobs": LEGACY, "token_ids": "79"},
    ],
)
def test_log_probs_that_cannot_be_right_are_a_bad_reply(choice):
    with pytest.raises(BadReply):
        logprobs_of_choice(ADDRESS, choice, None)


def test_rounding_above_0_is_0():
    read = logprobs_of_choice(ADDRESS, {"logprobs": {"content": [{"token": "a", "logprob": 1e-4}]}}, 1)
    assert read.logprobs.tolist() == [0.0]


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
rows = st.fixed_dictionaries({}, optional={"token": st.text(max_size=3) | numbers, "logprob": numbers, "id": numbers})
forms = st.fixed_dictionaries(
    {},
    optional={
        "content": numbers | st.lists(rows | numbers, max_size=3),
        "tokens": numbers | st.lists(st.text(max_size=3), max_size=3),
        "token_logprobs": numbers | st.lists(numbers, max_size=3),
    },
)


@given(forms | numbers, st.none() | st.lists(numbers, max_size=3), st.none() | st.integers(0, 3))
def test_whatever_a_server_sends_is_right_or_a_bad_reply(given_form, token_ids, generated):
    try:
        read = logprobs_of_choice(ADDRESS, {"logprobs": given_form, "token_ids": token_ids}, generated)
    except BadReply:
        return
    if read is not None:
        assert len(read.tokens) == len(read.logprobs) == len(read)
        assert np.isfinite(read.logprobs).all()
        assert (read.logprobs <= 0).all()
        assert read.ids is None or len(read.ids) == len(read)


def test_they_are_read_only_if_they_were_asked_for():
    reply = {"choices": [{"text": "ab", "logprobs": {"content": "nonsense"}}]}
    plain = Call(kind="complete", model="m", prompt="Once")
    assert openai().answer(plain, 200, {}, orjson.dumps(reply)).logprobs is None
    with pytest.raises(BadReply):
        openai().answer(COMPLETE, 200, {}, orjson.dumps(reply))


def test_ollamas_log_probs_are_read_whole_and_from_a_stream():
    whole = {"response": " ab", "done": True, "eval_count": 2, "logprobs": ENTRIES}
    lines = [{"response": one["token"], "done": False, "logprobs": [one]} for one in ENTRIES]
    stream = b"\n".join(map(orjson.dumps, [*lines, {"response": "", "done": True, "eval_count": 2}]))
    for body in (orjson.dumps(whole), stream):
        answer = Ollama(ADDRESS).answer(COMPLETE, 200, {}, body)
        assert answer.text == " ab"
        assert answer.logprobs.tokens == (" a", "b")
        assert answer.logprobs.logprobs.tolist() == [-0.5, -1.0]
        assert answer.logprobs.ids is None
    assert Ollama(ADDRESS).answer(COMPLETE, 200, {}, orjson.dumps({"response": "a", "done": True})).logprobs is None


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "stop"}, None),
        ({"finish_reason": "stop", "stop_reason": None}, ""),
        ({"finish_reason": "stop", "stop_reason": "\n"}, "\n"),
        ({"finish_reason": "stop", "stop_reason": 128009}, 128009),
        ({"finish_reason": "stop", "stop_reason": True}, None),
        ({"finish_reason": "stop", "matched_stop": 2}, 2),
        ({"finish_reason": "length", "stop_reason": None}, None),
    ],
)
def test_what_stopped_an_answer_is_told_where_the_server_tells_it(choice, reason):
    reply = {"choices": [{"text": "x", **choice}]}
    assert openai().answer(COMPLETE, 200, {}, orjson.dumps(reply)).stop_reason == reason


# The cache

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=5)
logprobs = st.lists(st.tuples(texts, st.floats(-1e3, 0, width=32), st.integers(0, 2**31 - 1)), max_size=4).flatmap(
    lambda entries: st.booleans().map(
        lambda with_ids: TokenLogprobs(
            tokens=tuple(token for token, _, _ in entries),
            logprobs=np.array([value for _, value, _ in entries], np.float32),
            ids=np.array([number for _, _, number in entries], np.int32) if with_ids else None,
        )
    )
)
vectors = st.none() | st.integers(0, 3).map(lambda rows: np.ones((rows, 2), np.float32))
answers = st.builds(
    Answer,
    text=texts,
    stop_reason=st.none() | texts | st.integers(0, 9),
    vectors=vectors,
    logprobs=st.none() | logprobs,
)
KEY = bytes(range(16))


@given(answers)
def test_an_answer_in_the_cache_keeps_its_log_probs_and_its_stop(answer):
    found = from_bytes(KEY, to_bytes(KEY, answer))
    assert (found.text, found.stop_reason) == (answer.text, answer.stop_reason)
    assert equal(found.logprobs, answer.logprobs)
    assert (found.vectors is None) == (answer.vectors is None)
    assert found.vectors is None or np.array_equal(found.vectors, answer.vectors)


OLD_TEXT = b'I<f\xee\xd5\x7f\x8b\xc3["m", "stop", 3, 2, 12]\nGr\xc3\xbc\xc3\x9fe\nzwei'
OLD_VECTORS = b'\x0b%\xd2 \xceIk\x05["m", null, null, null, 0, 1, 2]\n\x00\x00\x80?\x00\x00\x00\xc0'


def test_entries_of_earlier_versions_are_read_and_still_written():
    text = from_bytes(KEY, OLD_TEXT)
    assert text == Answer(text="Grüße\nzwei", model="m", finish_reason="stop", prompt_tokens=3, completion_tokens=2)
    assert to_bytes(KEY, text) == OLD_TEXT
    embedded = from_bytes(KEY, OLD_VECTORS)
    assert embedded.vectors.tolist() == [[1.0, -2.0]]
    assert embedded.logprobs is embedded.stop_reason is None
    assert to_bytes(KEY, embedded) == OLD_VECTORS


def test_older_versions_find_the_same_text_in_new_entries():
    newer = replace(from_bytes(KEY, OLD_TEXT), stop_reason="", logprobs=token_logprobs("two words"))
    assert to_bytes(KEY, newer)[8:].startswith(OLD_TEXT[8:])


# Servers


def told(software):
    """What a server that imitates this software tells about its answer."""
    whole = token_logprobs(ANSWER)
    return whole if software != "openai" else TokenLogprobs(tokens=whole.tokens, logprobs=whole.logprobs)


@softwares
@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_log_probs_arrive_over_http(model_server, software, kind):
    server = model_server(software=software)
    with LLMPool(f"{server.url}/v1", model="test") as pool:
        [reply] = pool.map(["hello there"], kind=kind, sampling=ASKS)
        [plain] = pool.map(["hello there"], kind=kind)
    assert reply.text == ANSWER == "".join(reply.logprobs.tokens)
    assert equal(reply.logprobs, told(software))
    assert len(reply.logprobs) == reply.completion_tokens
    assert plain.logprobs is None


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_log_probs_arrive_from_ollama(model_server, kind):
    with LLMPool(model_server().url, model="test") as pool:
        [reply] = pool.map(["hello there"], kind=kind, sampling=ASKS)
    assert equal(reply.logprobs, told("openai"))


def test_a_server_that_tells_none_still_answers(model_server):
    server = model_server(reports_logprobs=False)
    with LLMPool([server.url, f"{server.url}/v1"], model="test") as pool:
        replies = pool.map(["hello there"] * 8, sampling=ASKS)
    assert [reply.text for reply in replies] == [ANSWER] * 8
    assert all(reply.logprobs is None for reply in replies)


def test_equal_calls_share_them_and_the_cache_gives_them_back(model_server, tmp_path):
    server = model_server(software="llama.cpp", latency=0.05)
    greedy = Sampling(temperature=0, logprobs=True)
    with LLMPool(f"{server.url}/v1", model="test", cache=tmp_path / "c") as pool:
        first = pool.map(["hello there"] * 3, sampling=greedy)
    with closing(Cache(tmp_path / "c", mode="replay")) as cache, LLMPool(server.url, model="test", cache=cache) as pool:
        [again] = pool.map(["hello there"], sampling=greedy)
        [other] = pool.map(["hello there"], sampling=Sampling(temperature=0))
    assert sum(reply.joined for reply in first) == 2
    assert again.cached
    assert all(equal(reply.logprobs, told("llama.cpp")) for reply in [*first, again])
    assert type(other).__name__ == "NotCached"


def test_a_hedged_reply_has_them(model_server):
    server = model_server(software="llama.cpp", latency=0.01, hang_seconds=30.0)
    config = PoolConfig(hedge=True, hedge_budget=1.0, attempt_timeout=20.0)
    with LLMPool(Server(url=f"{server.url}/v1", limit=4), model="test", config=config) as pool:
        pool.map([f"question {number}" for number in range(60)], sampling=ASKS)
        server.next("hang")
        [reply] = pool.map(["hello there"], sampling=ASKS)
    assert reply.hedged
    assert equal(reply.logprobs, told("llama.cpp"))


def test_a_server_without_sockets_tells_the_same():
    server = VirtualServer()
    assert equal(run(server.ask(Call(kind="complete", prompt="hello there", sampling=ASKS))).logprobs, told("vllm"))
    assert run(server.ask(Call(kind="complete", prompt="hello there"))).logprobs is None
    server.change(reports_logprobs=False)
    assert run(server.ask(Call(kind="complete", prompt="hello there", sampling=ASKS))).logprobs is None


def test_the_official_client_of_openai_reads_both_forms(model_server):
    library = pytest.importorskip("openai")
    with library.OpenAI(base_url=f"{model_server().url}/v1", api_key="none") as client:
        hello = [{"role": "user", "content": "hello there"}]
        chatted = client.chat.completions.create(model="test", messages=hello, logprobs=True).choices[0].logprobs
        completed = client.completions.create(model="test", prompt="hello there", logprobs=0).choices[0].logprobs
        pieces = client.chat.completions.create(model="test", messages=hello, logprobs=True, stream=True)
        streamed = [piece.choices[0].logprobs for piece in pieces]
        with pytest.raises(library.BadRequestError, match="logprobs must be a boolean"):
            client.chat.completions.create(model="test", messages=hello, logprobs=3)
    expected = told("openai")
    assert [entry.token for entry in chatted.content] == completed.tokens == list(expected.tokens)
    assert [entry.logprob for entry in chatted.content] == completed.token_logprobs == expected.logprobs.tolist()
    assert completed.text_offset == [0, 6, 10, 16]
    assert [one.content[0].token for one in streamed[:-1]] == list(expected.tokens)


def test_the_official_client_of_ollama_reads_them(model_server):
    library = pytest.importorskip("ollama")
    client = library.Client(host=model_server().url, trust_env=False)
    with closing(client._client):
        whole = client.generate("test", "hello there", logprobs=True).logprobs
        streamed = list(client.chat("test", [{"role": "user", "content": "hello there"}], logprobs=True, stream=True))
    assert [entry.token for entry in whole] == token_texts(ANSWER)
    assert [piece.logprobs[0].logprob for piece in streamed[:-1]] == [entry.logprob for entry in whole]
