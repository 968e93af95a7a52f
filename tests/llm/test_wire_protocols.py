"""The protocols of Ollama and OpenAI as functions from bytes to answers: no socket is opened here."""

from datetime import UTC, datetime
from email.utils import format_datetime

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim.llm.call import Answer, Call, Sampling, chat
from brim.llm.failures import BadReply, Failure, ModelMissing, Overloaded, Rejected, ServerFailed
from brim.llm.wire.address import parse_address
from brim.llm.wire.ollama import Ollama, has_model
from brim.llm.wire.openai import OpenAI
from brim.llm.wire.statuses import retry_after

KEY = "sk-proj-0123456789abcdefghijklmnop"
ADDRESS = parse_address("http://host:8000", key_env="MY_KEY", environ={"MY_KEY": KEY})
OLLAMA, OPENAI = Ollama(ADDRESS), OpenAI(ADDRESS)
CHAT = Call(model="m", messages=chat("Hello", system="Be brief."))
COMPLETE = Call(kind="complete", model="m", prompt="Once")
EMBED = Call(kind="embed", model="m", inputs=("a", "b", "c"))
SAMPLING = Sampling(max_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop=("\n",))
protocols = pytest.mark.parametrize("protocol", [OLLAMA, OPENAI], ids=["ollama", "openai"])


def body_of(protocol, call):
    path, data = protocol.request(call)
    return path, orjson.loads(data)


def answer(protocol, call, reply, status=200, headers=None):
    return protocol.answer(call, status, headers or {}, reply if isinstance(reply, bytes) else orjson.dumps(reply))


def openai_reply(content="Hi", **choice):
    return {"choices": [{"message": {"role": "assistant", "content": content}, **choice}]}


# --- requests ---------------------------------------------------------------------------------------------------------


def test_requests_to_ollama_never_stream_and_put_sampling_into_options():
    options = {"temperature": 0.5, "seed": 3, "num_predict": 7, "top_p": 0.9, "stop": ["\n"]}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert body_of(OLLAMA, CHAT) == ("/api/chat", {"model": "m", "messages": messages, "stream": False})
    sampled = Call(kind="complete", model="m", prompt="Once", sampling=SAMPLING)
    expected = {"model": "m", "prompt": "Once", "stream": False, "options": options}
    assert body_of(OLLAMA, sampled) == ("/api/generate", expected)
    assert body_of(OLLAMA, EMBED) == ("/api/embed", {"model": "m", "input": ["a", "b", "c"], "stream": False})


def test_requests_to_openai_servers_have_the_options_at_the_top():
    sampled = Call(model="m", messages=chat("Hello"), sampling=SAMPLING)
    options = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["\n"]}
    messages = [{"role": "user", "content": "Hello"}]
    expected = {"model": "m", "messages": messages, "stream": False, **options}
    assert body_of(OPENAI, sampled) == ("/v1/chat/completions", expected)
    assert body_of(OPENAI, COMPLETE) == ("/v1/completions", {"model": "m", "prompt": "Once", "stream": False})
    assert body_of(OPENAI, EMBED) == ("/v1/embeddings", {"model": "m", "input": ["a", "b", "c"]})


def test_openai_itself_is_told_the_limit_under_its_new_name():
    hosted = OpenAI(parse_address("https://api.openai.com", environ={}))
    _, body = body_of(hosted, Call(model="m", messages=chat("Hello"), sampling=SAMPLING))
    assert body["max_completion_tokens"] == 7
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("url", "chat_path", "ollama_path"),
    [
        ("http://host", "/v1/chat/completions", "/api/chat"),
        ("http://host/v1", "/v1/chat/completions", "/api/chat"),
        ("http://host/openai/v1/", "/openai/v1/chat/completions", "/openai/api/chat"),
        ("http://host/v1beta/openai", "/v1beta/openai/chat/completions", "/v1beta/openai/api/chat"),
        ("http://host/api", "/api/v1/chat/completions", "/api/chat"),
        ("http://host/proxy", "/proxy/v1/chat/completions", "/proxy/api/chat"),
    ],
)
def test_a_path_in_the_url_is_kept(url, chat_path, ollama_path):
    address = parse_address(url, environ={})
    assert OpenAI(address).request(CHAT)[0] == chat_path
    assert Ollama(address).request(CHAT)[0] == ollama_path


def test_further_fields_go_to_the_top_and_options_are_merged():
    extra = {"format": "json", "options": {"num_ctx": 512, "seed": 9}}
    call = Call(model="m", messages=chat("Hello"), sampling=Sampling(max_tokens=7, seed=3, extra=extra))
    _, body = body_of(OLLAMA, call)
    assert body["format"] == "json"
    assert body["options"] == {"num_predict": 7, "num_ctx": 512, "seed": 9}
    embed = Call(kind="embed", model="m", inputs=("a",), sampling=Sampling(extra={"dimensions": 8}))
    assert body_of(OPENAI, embed)[1]["dimensions"] == 8


@protocols
@pytest.mark.parametrize("extra", [{"stream": True}, {"model": "x"}, {"n": 2}, {"x": {1, 2}}, {"x": "\ud800"}])
def test_a_call_that_cannot_be_sent_as_asked_is_rejected(protocol, extra):
    with pytest.raises(Rejected):
        protocol.request(Call(model="m", messages=chat("Hello"), sampling=Sampling(extra=extra)))


def test_options_that_are_no_object_are_rejected():
    with pytest.raises(Rejected, match="must be an object"):
        OLLAMA.request(Call(model="m", messages=chat("x"), sampling=Sampling(seed=1, extra={"options": [1]})))


# --- answers ----------------------------------------------------------------------------------------------------------

DONE = {"model": "m:latest", "done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 5}
TIMES = {"total_duration": 9e9, "load_duration": 1e9, "prompt_eval_duration": 2e9, "eval_duration": 4e9}


def test_an_ollama_chat_is_read_with_its_counts_and_durations():
    got = answer(OLLAMA, CHAT, {"message": {"role": "assistant", "content": "Hi"}, **DONE, **TIMES})
    assert got == Answer(
        text="Hi",
        model="m:latest",
        finish_reason="stop",
        prompt_tokens=11,
        completion_tokens=5,
        service_seconds=7.0,
        queue_seconds=2.0,
    )
    assert answer(OLLAMA, COMPLETE, {"response": "upon", **DONE}).text == "upon"


@given(st.fixed_dictionaries({}, optional={name: st.floats() | st.integers() | st.none() for name in TIMES}))
def test_durations_are_never_negative_and_unknown_where_parts_are_missing(times):
    body = b'{"response": "x", %s}' % b", ".join(
        b'"%s": %s' % (name.encode(), str(value).encode().replace(b"None", b"null")) for name, value in times.items()
    )
    try:
        got = answer(OLLAMA, COMPLETE, body.replace(b", }", b"}"))
    except BadReply:  # NaN and infinity are no JSON
        return
    assert got.queue_seconds is None or got.queue_seconds >= 0
    assert (got.queue_seconds is None) == (got.service_seconds is None)


def test_only_a_total_says_nothing_about_waiting():
    got = answer(OLLAMA, COMPLETE, {"response": "x", "total_duration": 9e9})
    assert (got.service_seconds, got.queue_seconds) == (None, None)


def test_a_stream_that_nobody_asked_for_is_joined():
    lines = [{"message": {"content": word}, "done": False} for word in ("O", "n", "ce ")]
    stream = b"\n".join(map(orjson.dumps, [*lines, {"message": {"content": "."}, **DONE, **TIMES}])) + b"\n"
    got = answer(OLLAMA, CHAT, stream)
    assert (got.text, got.finish_reason, got.queue_seconds) == ("Once .", "stop", 2.0)
    lines = [{"response": word, "done": False} for word in ("O", "n")]
    stream = b"\r\n\r\n".join(map(orjson.dumps, [*lines, {"response": "", "done": True}]))
    assert answer(OLLAMA, COMPLETE, stream).text == "On"


def test_an_error_within_a_stream_is_a_failure_though_the_status_is_200():
    stream = b'{"response":"Once","done":false}\n{"error":"an error was encountered while running the model: EOF"}\n'
    with pytest.raises(ServerFailed, match="while running the model: EOF"):
        answer(OLLAMA, COMPLETE, stream)
    with pytest.raises(ServerFailed, match="out of memory"):
        answer(OLLAMA, COMPLETE, {"error": "out of memory"})
    with pytest.raises(ModelMissing):
        answer(OLLAMA, COMPLETE, {"error": 'model "m" not found, try pulling it first'})


@pytest.mark.parametrize(
    ("call", "reply", "reason"),
    [
        (CHAT, b'{"message":{"content":"O"},"done":false}\n{"message":{"content":"n"},"done":false}', "ends early"),
        (CHAT, {"message": {"content": "O"}, "done": False}, "ends before the answer does"),
        (COMPLETE, {"response": "", "done": True, "done_reason": "load"}, "prompt is empty"),
        (CHAT, {"message": {"content": "", "tool_calls": [{}]}, "done": True}, "called a tool"),
        (CHAT, {"done": True}, "message.content"),
        (COMPLETE, {"response": 3, "done": True}, '"response"'),
        (EMBED, {"done": True}, '"embeddings"'),
        (CHAT, [1], "no JSON object"),
        (CHAT, b"", "it is empty"),
        (CHAT, b"<html>", "not JSON: <html>"),
    ],
)
def test_half_an_answer_from_ollama_is_a_bad_reply(call, reply, reason):
    with pytest.raises(BadReply, match=reason):
        answer(OLLAMA, call, reply)


def test_an_openai_chat_is_read_with_its_counts_and_timings():
    reply = openai_reply(finish_reason="length") | {
        "model": "real-m",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "timings": {"prompt_ms": 250.0, "predicted_ms": 1000},
    }
    assert answer(OPENAI, CHAT, reply) == Answer(
        text="Hi",
        model="real-m",
        finish_reason="length",
        prompt_tokens=3,
        completion_tokens=4,
        service_seconds=1.25,
    )
    assert answer(OPENAI, COMPLETE, {"choices": [{"text": " upon"}]}).text == " upon"
    parts = [{"type": "thinking"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert answer(OPENAI, CHAT, openai_reply(parts)).text == "ab"


def test_an_empty_answer_is_an_answer():
    assert answer(OPENAI, CHAT, openai_reply("", finish_reason="stop")).text == ""
    assert answer(OLLAMA, CHAT, {"message": {"content": ""}, **DONE}).text == ""


@pytest.mark.parametrize(
    ("call", "reply", "reason"),
    [
        (CHAT, {}, '"choices"'),
        (CHAT, {"choices": []}, '"choices"'),
        (CHAT, openai_reply(None), "message.content"),
        (CHAT, {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, "called a tool"),
        (CHAT, {"choices": [{"message": {"content": None, "refusal": "No."}}]}, "refused"),
        (CHAT, openai_reply([{"type": "image"}]), "message.content"),
        (COMPLETE, openai_reply(), '"text"'),
        (CHAT, b'data: {"choices":[]}\n\ndata: [DONE]\n', "streams"),
        (EMBED, {}, '"data"'),
    ],
)
def test_half_an_answer_from_an_openai_server_is_a_bad_reply(call, reply, reason):
    with pytest.raises(BadReply, match=reason):
        answer(OPENAI, call, reply)


def test_an_error_under_http_200_counts_with_the_status_it_names():
    with pytest.raises(Overloaded) as raised:
        answer(OPENAI, CHAT, {"error": {"message": "slow down", "code": 429}})
    assert raised.value.status == 429
    with pytest.raises(ServerFailed, match="broken"):
        answer(OPENAI, CHAT, {"error": {"message": "broken"}})


vectors = st.integers(1, 6).flatmap(
    lambda size: st.lists(st.lists(st.floats(-1, 1, width=32), min_size=size, max_size=size), min_size=1, max_size=8)
)


@given(vectors, st.randoms())
def test_vectors_in_any_order_of_index_come_back_in_order(rows, random):
    call = Call(kind="embed", model="m", inputs=tuple(map(str, range(len(rows)))))
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    random.shuffle(data)
    got = answer(OPENAI, call, {"data": data, "usage": {"prompt_tokens": 9}})
    assert got.vectors.dtype == np.float32
    assert got.prompt_tokens == 9
    assert np.array_equal(got.vectors, np.array(rows, np.float32))
    same = answer(OLLAMA, call, {"embeddings": rows, "prompt_eval_count": 9})
    assert np.array_equal(same.vectors, got.vectors)
    assert same.prompt_tokens == 9


def test_vectors_in_base64_are_read():
    data = [{"index": 0, "embedding": "AACAPwAAAEA="}]
    got = answer(OPENAI, Call(kind="embed", model="m", inputs=("a",)), {"data": data})
    assert got.vectors.tolist() == [[1.0, 2.0]]


V = [0.5, 1.0]
WRONG_ROWS = [
    [V, V],
    [V, V, V, V],
    [V, V, [0.5]],
    [V, V, []],
    [V, V, None],
    [V, V, ["a", "b"]],
    [V, V, [None, 1]],
    [V, V, [1e300, 1]],
    [V, V, [[1], [2]]],
    [[V], [V], [V]],
    [V, V, "no base64"],
    [[True, True]] * 3,
    [],
]


@pytest.mark.parametrize("rows", WRONG_ROWS)
def test_short_ragged_or_unusable_vectors_are_a_bad_reply(rows):
    with pytest.raises(BadReply):
        answer(OLLAMA, EMBED, {"embeddings": rows})
    with pytest.raises(BadReply):
        answer(OPENAI, EMBED, {"data": [{"index": index, "embedding": row} for index, row in enumerate(rows)]})


@pytest.mark.parametrize("indices", [(0, 1, 1), (0, 1, 3), (0, 1, None), (0, 1, "2"), (-1, 0, 1), (0, 1, True)])
def test_an_index_that_is_missing_or_twice_there_is_a_bad_reply(indices):
    with pytest.raises(BadReply, match="index"):
        answer(OPENAI, EMBED, {"data": [{"index": index, "embedding": V} for index in indices]})


FIELDS = ["error", "message", "content", "response", "done", "choices", "text", "data", "index", "embedding", "code"]
FIELDS += ["embeddings", "usage", "timings", "total_duration", "eval_duration", "tool_calls", "models", "detail"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)
replies = (
    st.binary(max_size=60)
    | json_values.map(orjson.dumps)
    | st.lists(json_values).map(lambda lines: b"\n".join(map(orjson.dumps, lines)))
)
headers = st.dictionaries(
    st.sampled_from(["Retry-After", "retry-after-ms", "Location", "Date"]), st.text(max_size=12), max_size=3
)


@given(
    protocol=st.sampled_from([OLLAMA, OPENAI]),
    call=st.sampled_from([CHAT, COMPLETE, EMBED]),
    status=st.sampled_from([200, 200, 200, 201]) | st.integers(100, 999),
    headers=headers,
    body=replies,
)
@example(OLLAMA, CHAT, 200, {}, b'{"a":1}\n{"b":' + b"[" * 2000)
@example(OPENAI, CHAT, 302, {"Location": "http://[x"}, b"")
@example(OPENAI, CHAT, 503, {"Retry-After": "Mon, 99 Jan 99999 00:00:00 GMT"}, b"\xff")
def test_any_reply_is_an_answer_or_a_failure(protocol, call, status, headers, body):
    for read in (lambda: protocol.answer(call, status, headers, body), lambda: protocol.models(status, headers, body)):
        try:
            got = read()
        except Failure as failure:
            got = failure
        if isinstance(got, Failure):
            assert got.server == "http://host:8000"
            assert str(got).isprintable()
        else:
            assert 200 <= status < 300
            assert isinstance(got, (Answer, list))


# --- statuses ---------------------------------------------------------------------------------------------------------

KINDS = {
    **dict.fromkeys((429, 503, 529), Overloaded),
    **dict.fromkeys((408, 409, 425, 499, 500, 502, 504, 505, 507, 520, 599), ServerFailed),
    **dict.fromkeys((301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405, 413, 415, 422, 451, 501), Rejected),
    **dict.fromkeys((100, 101, 600, 999), BadReply),
}


@protocols
@pytest.mark.parametrize("status", KINDS)
def test_every_status_has_its_failure(protocol, status):
    with pytest.raises(Failure) as raised:
        answer(protocol, CHAT, {"error": {"message": "the reason"}}, status)
    assert type(raised.value) is KINDS[status]
    assert raised.value.status == status
    assert str(status) in str(raised.value)
    assert ("the reason" in str(raised.value)) == (400 <= status < 600)


MISSING = [
    {"error": "model 'llama9' not found"},
    {"error": 'model "llama9" not found, try pulling it first'},
    {"error": {"message": "The model `llama9` does not exist.", "type": "NotFoundError", "code": 404}},
    {"error": {"message": "no access", "code": "model_not_found"}},
    {"message": "Invalid model: llama9"},
]


@protocols
@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("body", MISSING)
def test_a_missing_model_is_recognized(protocol, status, body):
    with pytest.raises(ModelMissing):
        answer(protocol, CHAT, body, status)


def test_a_missing_page_is_no_missing_model():
    with pytest.raises(Rejected) as raised:
        answer(OLLAMA, CHAT, b"404 page not found", 404)
    assert not isinstance(raised.value, ModelMissing)
    with pytest.raises(Rejected) as raised:
        answer(OPENAI, CHAT, {"error": {"message": "the model does not take the unknown option 'mirostat'"}}, 400)
    assert not isinstance(raised.value, ModelMissing)


def test_what_cannot_succeed_later_is_rejected_whatever_the_status():
    with pytest.raises(Rejected, match="quota"):
        answer(OPENAI, CHAT, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 429)
    with pytest.raises(Rejected, match="too large"):
        answer(
            OPENAI, EMBED, {"error": {"message": "input (600 tokens) is too large to process. increase the ..."}}, 500
        )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "one"}}', "one"),
        (b'{"error": "two"}', "two"),
        (b'{"message": "three"}', "three"),
        (b'{"detail": "four"}', "four"),
        (b'{"detail": [{"loc": ["body"], "msg": "five"}, {"msg": "six"}]}', "five; six"),
        (b'{"other": 1}', '{"other": 1}'),
        (b"<html>\n\n\x00<b>Bad  Gateway\xff</html>", "<html> <b>Bad Gateway\ufffd</html>"),
        (b'{"error": {"message": "a\\u0000b\\u2028c\\u001b[31m"}}', "a b c [31m"),
    ],
)
def test_the_servers_own_words_are_quoted_in_one_line(body, expected):
    with pytest.raises(Rejected) as raised:
        answer(OPENAI, CHAT, body, 422)
    assert raised.value.message == f"the server refuses the request (HTTP 422): {expected}"


def test_long_words_are_cut():
    with pytest.raises(ServerFailed) as raised:
        answer(OPENAI, CHAT, b"x" * 100_000, 500)
    assert len(raised.value.message) < 250


@given(
    before=st.text(max_size=250), kept=st.integers(8, len(KEY)), status=st.sampled_from([400, 401, 404, 429, 500, 200])
)
def test_a_server_that_quotes_the_key_does_not_get_it_into_a_failure(before, kept, status):
    for body in (
        orjson.dumps({"error": {"message": f"{before}Authorization: Bearer {KEY[:kept]}"}}, default=str),
        f"{before}Authorization: Bearer {KEY[:kept]}".encode(),
    ):
        with pytest.raises(Failure) as raised:
            answer(OPENAI, CHAT, body, status)
        assert KEY[:8] not in str(raised.value)
        assert raised.value.__context__ is None or KEY[:8] not in repr(raised.value.__context__)


def test_a_refused_key_is_named_by_its_variable():
    with pytest.raises(Rejected, match="check the API key in the environment variable MY_KEY"):
        answer(OPENAI, CHAT, b"", 401)
    hosted = OpenAI(parse_address("https://api.openai.com/v1", environ={}))
    with pytest.raises(Rejected, match="set the environment variable OPENAI_API_KEY"):
        answer(hosted, CHAT, b"", 401)
    with pytest.raises(Rejected, match="key_env"):
        answer(OpenAI(parse_address("http://host", environ={})), CHAT, b"", 403)
    with pytest.raises(Rejected, match="user and password"):
        answer(OpenAI(parse_address("http://me:pw@host", environ={})), CHAT, b"", 403)


def test_a_redirect_says_where_it_points_without_secrets():
    with pytest.raises(Rejected, match=r"to https://other/v1, which is not followed") as raised:
        answer(OPENAI, CHAT, b"", 301, {"location": f"https://me:{KEY}@other/v1?key={KEY}"})
    assert KEY not in str(raised.value)
    with pytest.raises(Rejected, match=r"to http://host:8000/login,"):
        answer(OPENAI, CHAT, b"", 302, {"Location": "/login"})
    with pytest.raises(Rejected, match="does not say where to"):
        answer(OPENAI, CHAT, b"", 302)


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "86400"}, 120.0),
        ({"retry-after": "inf"}, 120.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:15 GMT"}, 10.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:15 GMT", "date": "Fri, 02 Jan 2026 03:04:12 GMT"}, 3.0),
        ({"retry-after": "Fri, 02 Jan 2025 03:04:15 GMT"}, 0.0),
    ],
)
def test_the_pause_a_server_asks_for_is_between_0_and_120_seconds(headers, seconds):
    assert retry_after(headers, now=NOW) == seconds


@given(st.integers(-1000, 1000))
def test_a_date_to_retry_after_is_the_time_until_then(seconds):
    until = datetime.fromtimestamp(NOW.timestamp() + seconds, UTC)
    assert retry_after({"retry-after": format_datetime(until, usegmt=True)}, now=NOW) == min(max(seconds, 0), 120)


def test_a_refusal_carries_the_pause():
    with pytest.raises(Overloaded) as raised:
        answer(OLLAMA, CHAT, {"error": "server busy"}, 503, {"Retry-After": "7"})
    assert raised.value.retry_after == 7.0


# --- models -----------------------------------------------------------------------------------------------------------


def test_models_are_listed():
    tags = {"models": [{"name": "llama3:latest", "model": "llama3:latest"}, {"model": "qwen:0.5b"}, {}, 3]}
    assert OLLAMA.models(200, {}, orjson.dumps(tags)) == ["llama3:latest", "qwen:0.5b"]
    assert OLLAMA.models(200, {}, b'{"models":null}') == []
    assert OPENAI.models(200, {}, b'{"data":[{"id":"a"},{"id":"b"},{"id":4}]}') == ["a", "b"]
    with pytest.raises(BadReply, match="list of models is missing"):
        OPENAI.models(200, {}, b"{}")


def test_latest_may_be_left_out_of_a_name():
    assert has_model(["llama3:latest"], "llama3")
    assert has_model(["llama3:latest"], "llama3:latest")
    assert not has_model(["llama3:8b"], "llama3")
    assert OLLAMA.nearby(["llama3:latest", "qwen:0.5b"]) == ["llama3", "llama3:latest", "qwen:0.5b"]
