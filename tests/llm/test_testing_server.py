"""The simulated model server over real sockets: both protocols as their official clients know them, and every fault."""

import asyncio
import base64
import gzip
import http.client
import json
import socket
import threading
import time
from contextlib import aclosing, closing, suppress

import numpy as np
import pytest

from brim.core.errors import BrimError, OptionError
from brim.llm.call import Call, chat
from brim.llm.config import Server
from brim.llm.failures import Failure
from brim.llm.testing import Behaviour, Faults, ModelServer, Refusal, VirtualServer, run
from brim.llm.testing.handler import bomb
from brim.llm.testing.replies import text_vector, token_texts
from brim.llm.testing.service import Service

pytest.importorskip("aiohttp")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")
pytest_plugins = ["brim.llm.testing.fixture"]

HELLO = [{"role": "user", "content": "hello there"}]
ANSWER = "answer to: hello there"
CHAT = {"model": "test", "messages": HELLO, "stream": False}


@pytest.fixture(scope="module")
def server():
    """A server that has two models and no faults."""
    with ModelServer(models=("test", "other:7b"), dim=8) as server:
        yield server


@pytest.fixture
def ollama_client(server):
    with closing(ollama.Client(host=server.url, trust_env=False)) as client:
        yield client


@pytest.fixture
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def send(server, path, body=None, headers=None, method=None):
    """Send one request; return status, headers and body. A body that ends early is an IncompleteRead."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request(method or ("GET" if data is None else "POST"), path, data, headers or {})
        with closing(connection.getresponse()) as response:
            return response.status, response.headers, response.read()


def until(condition):
    """Wait for something that another thread is about to do."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


# The official clients


def test_ollama_chats_generates_and_streams(ollama_client):
    assert ollama_client.chat("test", HELLO).message.content == ANSWER
    reply = ollama_client.generate("test", "hello there", options={"num_predict": 2})
    assert (reply.response, reply.done_reason, reply.eval_count) == ("answer to:", "length", 2)
    pieces = list(ollama_client.chat("test", HELLO, stream=True))
    assert "".join(piece.message.content for piece in pieces) == ANSWER
    assert [piece.done for piece in pieces] == [False] * 4 + [True]
    assert pieces[-1].total_duration >= pieces[-1].prompt_eval_duration
    texts = [piece.response for piece in ollama_client.generate("test", "hello there", stream=True)]
    assert "".join(texts) == ANSWER


def test_ollama_embeds_and_lists_models(ollama_client):
    reply = ollama_client.embed("test", ["one", "two"])
    assert np.allclose(reply.embeddings, [text_vector("one", 8), text_vector("two", 8)])
    assert np.allclose(ollama_client.embed("test", "one").embeddings, [text_vector("one", 8)])
    assert ollama_client.embed("test", []).embeddings == []
    assert np.allclose(ollama_client.embeddings("test", "one").embedding, text_vector("one", 8))
    assert [model.model for model in ollama_client.list().models] == ["test", "other:7b"]
    assert [model.model for model in ollama_client.ps().models] == ["test", "other:7b"]
    assert ollama_client.show("test").capabilities == ["completion", "embedding"]


def test_ollama_says_that_a_model_is_missing(ollama_client):
    for ask in (
        lambda: ollama_client.chat("missing", HELLO),
        lambda: ollama_client.generate("missing", "hello"),
        lambda: ollama_client.embed("missing", "hello"),
        lambda: ollama_client.show("missing"),
        lambda: list(ollama_client.chat("missing", HELLO, stream=True)),
    ):
        with pytest.raises(ollama.ResponseError, match=r"missing.* not found") as raised:
            ask()
        assert raised.value.status_code == 404


def test_ollama_loads_and_unloads_a_model_with_an_empty_prompt(ollama_client):
    assert ollama_client.generate("test", "").done_reason == "load"
    assert ollama_client.chat("test", [], keep_alive=0).done_reason == "unload"
    with pytest.raises(ollama.ResponseError, match="not found"):
        ollama_client.generate("missing", "")


def test_the_asynchronous_client_of_ollama_works(server):
    async def main():
        client = ollama.AsyncClient(host=server.url, trust_env=False)
        async with aclosing(client._client):
            assert (await client.chat("test", HELLO)).message.content == ANSWER
            pieces = [piece.response async for piece in await client.generate("test", "hello there", stream=True)]
            assert "".join(pieces) == ANSWER
            assert np.shape((await client.embed("test", ["a", "b"])).embeddings) == (2, 8)
            with pytest.raises(ollama.ResponseError, match="not found"):
                await client.chat("missing", HELLO)

    asyncio.run(main())


def test_openai_chats_completes_and_streams(openai_client):
    reply = openai_client.chat.completions.create(model="test", messages=HELLO)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (ANSWER, "stop")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (2, 4, 6)
    assert reply.timings["prompt_ms"] >= 0

    reply = openai_client.completions.create(model="test", prompt=["one", "and then two"], max_tokens=4)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in reply.choices] == [
        (0, "answer to: one", "stop"),
        (1, "answer to: and then", "length"),
    ]
    usage = {"include_usage": True}
    with openai_client.chat.completions.create(
        model="test", messages=HELLO, stream=True, stream_options=usage
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 4
    with openai_client.completions.create(model="test", prompt="hello there", stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER


def test_openai_embeds_as_numbers_and_as_base64_and_lists_models(openai_client):
    wanted = [text_vector("one", 8), text_vector("two", 8)]
    for encoding in ("float", "base64"):
        data = openai_client.embeddings.create(model="test", input=["one", "two"], encoding_format=encoding).data
        vectors = [item.embedding for item in data]
        if encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(vector), np.float32) for vector in vectors]
        assert np.allclose(vectors, wanted)
        assert [item.index for item in data] == [0, 1]
    assert np.allclose(openai_client.embeddings.create(model="test", input="one").data[0].embedding, wanted[0])
    assert [model.id for model in openai_client.models.list()] == ["test", "other:7b"]
    assert openai_client.models.retrieve("other:7b").id == "other:7b"


def test_openai_says_that_a_model_is_missing(openai_client):
    for ask in (
        lambda: openai_client.chat.completions.create(model="missing", messages=HELLO),
        lambda: openai_client.completions.create(model="missing", prompt="hello"),
        lambda: openai_client.embeddings.create(model="missing", input="hello"),
        lambda: openai_client.models.retrieve("missing"),
    ):
        with pytest.raises(openai.NotFoundError, match="model 'missing' not found") as raised:
            ask()
        assert (raised.value.type, raised.value.status_code) == ("not_found_error", 404)


def test_the_asynchronous_client_of_openai_works(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            reply = await client.chat.completions.create(model="test", messages=HELLO)
            assert reply.choices[0].message.content == ANSWER
            async with await client.completions.create(model="test", prompt="hello there", stream=True) as stream:
                assert "".join([chunk.choices[0].text async for chunk in stream]) == ANSWER
            assert len((await client.embeddings.create(model="test", input="one")).data[0].embedding) == 8
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="missing", messages=HELLO)

    asyncio.run(main())


def test_openai_knows_overload_failure_and_a_wrong_key(model_server):
    server = model_server(require_key="right", reject_status=429, retry_after=0.5)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right", max_retries=0) as client:
        server.next("reject", "error")
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model="test", messages=HELLO)
        assert raised.value.response.headers["Retry-After"] == "0.5"
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="test", messages=HELLO)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.models.list()
    assert "wrong" not in str(refused.value)
    assert send(server, "/api/tags")[0] == 401
    assert send(server, "/")[0] == 200


# The wire


def test_the_protocols_can_be_switched_off(model_server):
    only_openai = model_server(protocols=["openai"])
    status, _, body = send(only_openai, "/api/tags")
    assert (status, json.loads(body)["error"]["message"]) == (404, "File Not Found")
    assert send(only_openai, "/")[0] == send(only_openai, "/api/chat", CHAT)[0] == 404
    assert send(only_openai, "/v1/models")[0] == send(only_openai, "/health")[0] == 200

    only_ollama = model_server(protocols=["ollama"])
    assert send(only_ollama, "/v1/models")[::2] == (404, b"404 page not found")
    assert send(only_ollama, "/v1/chat/completions", CHAT)[0] == 404
    assert send(only_ollama, "/")[::2] == (200, b"Ollama is running")
    assert "version" in json.loads(send(only_ollama, "/api/version")[2])
    assert send(only_ollama, "/", method="HEAD")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/chat", b"", 400, "missing request body"),
        ("/api/chat", b"{", 400, "not JSON"),
        ("/v1/completions", b"[]", 400, "not a JSON object"),
        ("/api/generate", {"prompt": "x"}, 400, "model is required"),
        ("/api/show", {}, 400, "model is required"),
        ("/api/embed", {"model": "test", "input": [1]}, 400, "input must be"),
        ("/api/chat", {"model": "test", "messages": ["x"]}, 400, "messages must be"),
        ("/api/generate", {"model": "test", "prompt": "x", "options": {"top_p": 3}}, 400, "top_p"),
        ("/v1/embeddings", {"input": "x"}, 400, "model"),
        ("/v1/chat/completions", {"model": "test", "messages": []}, 400, "too short"),
        ("/v1/completions", {"model": "test", "prompt": [[1, 2]]}, 400, "prompt must be"),
        ("/v1/completions", {"model": "test", "prompt": []}, 400, "too short"),
        ("/v1/nothing", {}, 404, "not found"),
    ],
)
def test_bad_requests_are_refused_in_the_words_of_the_protocol(server, path, body, status, said):
    got, _, reply = send(server, path, body)
    assert got == status
    assert said in reply.decode()
    if status == 400:
        error = json.loads(reply)["error"]
        assert isinstance(error, str if path.startswith("/api") else dict)
    assert send(server, "/api/chat", method="DELETE")[0] == 405


def test_a_request_is_recorded_as_it_came(model_server):
    server = model_server()
    body = CHAT | {"format": "json", "options": {"num_predict": -1, "temperature": 0, "seed": 7, "stop": ["."]}}
    send(server, "/api/chat", body, {"X-Trace": "17"})
    (request,) = server.requests
    assert (request.path, request.body, request.headers["x-trace"]) == ("/api/chat", body, "17")
    sampling = request.call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (None, 0, 7, (".",))
    assert sampling.extra == {"format": "json"}
    assert (request.ending, request.content.texts) == ("served", (ANSWER,))


def test_a_large_request_is_read(model_server):
    texts = ["x" * 100_000] * 30
    assert len(json.loads(send(model_server(), "/api/embed", {"model": "m", "input": texts})[2])["embeddings"]) == 30


def test_durations_tell_how_long_a_request_waited(model_server):
    server = model_server(slots=1, latency=0.05, seconds_per_token=0.005)
    threads = [threading.Thread(target=send, args=(server, "/api/chat", CHAT)) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: server.counts.in_flight == 2)
    waits = json.loads(send(server, "/api/chat", CHAT)[2])
    for thread in threads:
        thread.join()
    work = waits["prompt_eval_duration"] + waits["eval_duration"]
    request = server.requests[-1]
    assert waits["total_duration"] - work == pytest.approx((request.started - request.arrived) * 1e9, abs=1e6)
    assert work >= (0.05 + 4 * 0.005) * 1e9
    assert waits["eval_duration"] / work == pytest.approx(0.02 / 0.07)

    timings = json.loads(send(server, "/v1/chat/completions", CHAT)[2])["timings"]
    assert timings["prompt_ms"] + timings["predicted_ms"] >= 70
    server.change(reports_durations=False)
    assert "total_duration" not in json.loads(send(server, "/api/chat", CHAT)[2])
    assert "timings" not in json.loads(send(server, "/v1/chat/completions", CHAT)[2])


def test_a_streamed_answer_comes_token_by_token(model_server):
    server = model_server(seconds_per_token=0.001)
    _, headers, body = send(server, "/api/generate", {"model": "m", "prompt": "hello there"})
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["response"] for line in lines] == ["answer", " to:", " hello", " there", ""]
    assert headers["Content-Type"] == "application/x-ndjson"
    assert lines[-1]["eval_count"] == 4
    _, headers, body = send(server, "/v1/completions", {"model": "m", "prompt": "x", "stream": True})
    assert headers["Content-Type"] == "text/event-stream"
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("text", ["", " ", "one", " one  two\n", "a\n\nb c "])
def test_the_tokens_of_a_text_are_the_text(text):
    assert "".join(token_texts(text)) == text


def test_a_refusal_of_one_text_fails_the_whole_list(model_server):
    def embedding(text):
        if text == "bad":
            raise Refusal("the input length exceeds the context length")
        return [1.0, 0.0]

    server = model_server(embedding=embedding)
    status, _, body = send(server, "/api/embed", {"model": "m", "input": ["good", "bad"]})
    assert (status, json.loads(body)) == (400, {"error": "the input length exceeds the context length"})
    assert json.loads(send(server, "/api/embed", {"model": "m", "input": "good"})[2])["embeddings"] == [[1.0, 0.0]]


# Faults


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_every_fault_looks_as_it_is_named(model_server, path, stream):
    server = model_server(error_status=502, redirect_to="http://127.0.0.1:9/away")

    def after(fault):
        server.next(fault)
        return send(server, path, CHAT | {"stream": stream})

    assert after("error")[0] == 502
    status, headers, body = after("reject")
    assert (status, headers["Retry-After"]) == (503, None)
    assert "server busy, please try again." in body.decode()
    assert after("empty")[::2] == (200, b"")
    status, headers, _ = after("redirect")
    assert (status, headers["Location"]) == (307, "http://127.0.0.1:9/away")
    status, _, body = after("ndjson_error")
    last = body.strip().splitlines()[-1].removeprefix(b"data: ")
    assert status == 200
    assert "error" in json.loads(last)
    assert (b"answer" in body) is stream
    for _ in range(4):
        status, _, body = after("garbage")
        assert status == 200
        assert b"answer" not in body
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            after("drop")
    with pytest.raises(http.client.IncompleteRead):
        after("cut")
    with pytest.raises(http.client.IncompleteRead) as whole:
        after("wrong_length")
    assert b"there" in whole.value.partial
    assert after(None)[0] == 200
    counts = server.counts
    assert (counts.failed, counts.rejected, counts.served) == (counts.faults.total() - 1, 1, 1)
    assert counts.in_flight == counts.in_service == 0


def test_embeddings_can_be_short_or_out_of_order(model_server):
    server = model_server(dim=3)
    body = {"model": "m", "input": list("abcd")}
    for path, name in (("/api/embed", "embeddings"), ("/v1/embeddings", "data")):
        server.next("short_embeddings")
        assert len(json.loads(send(server, path, body)[2])[name]) == 3
    server.next("shuffled_embeddings")
    data = json.loads(send(server, "/v1/embeddings", body)[2])["data"]
    assert sorted(item["index"] for item in data) == [0, 1, 2, 3]
    assert [item["index"] for item in data] != [0, 1, 2, 3]
    for item in data:
        assert np.allclose(item["embedding"], text_vector("abcd"[item["index"]], 3))
    server.next("short_embeddings")
    assert send(server, "/api/chat", CHAT)[0] == 200
    assert server.counts.faults == {"short_embeddings": 2, "shuffled_embeddings": 1}


@pytest.mark.parametrize("fault", ["drip", "endless"])
def test_a_body_without_end_goes_on_until_the_client_leaves(model_server, fault):
    server = model_server(slots=1, drip_seconds=0.001)
    server.next(fault)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request("POST", "/api/chat", json.dumps(CHAT))
        with closing(connection.getresponse()) as response:
            assert len(response.read(50)) == 50
            assert server.counts.in_service == 1
    until(lambda: server.counts.cancelled == 1)
    assert send(server, "/api/chat", CHAT)[0] == 200


def test_a_bomb_is_small_and_becomes_large(model_server):
    server = model_server()
    server.next("bomb")
    _, headers, body = send(server, "/api/chat", CHAT)
    assert headers["Content-Encoding"] == "gzip"
    assert len(body) < 400_000
    assert len(json.loads(gzip.decompress(bomb(2**22)))["response"]) == 2**22


def test_a_client_that_leaves_frees_its_slot(model_server):
    server = model_server(slots=1)
    server.next("hang")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request("POST", "/api/chat", json.dumps(CHAT))
        until(lambda: server.counts.in_service == 1)
    assert send(server, "/api/chat", CHAT)[0] == 200  # it waits in the queue if it has to
    assert (server.counts.cancelled, server.counts.served) == (1, 1)


def test_the_capacity_of_a_running_server_can_be_changed(model_server):
    server = model_server(slots=1, overflow="reject")
    server.next("hang")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request("POST", "/api/chat", json.dumps(CHAT))
        until(lambda: server.counts.in_service == 1)
        assert send(server, "/api/chat", CHAT)[0] == 503
        server.slots = 2
        assert send(server, "/api/chat", CHAT)[0] == 200
    assert server.slots == 2


# Starting and stopping


def test_stopping_cancels_what_hangs_and_the_same_port_serves_again(model_server):
    server = model_server()
    server.next("hang")
    lost = []

    def ask():
        try:
            send(server, "/api/chat", CHAT)
        except ConnectionError as error:
            lost.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: server.counts.in_service == 1)
    url = server.url
    server.stop()
    asking.join()
    assert len(lost) == 1
    assert (server.counts.cancelled, server.counts.in_flight) == (1, 0)
    server.slots = 3
    server.stop()
    with server, server.start() as again:
        assert again.url == url
        assert send(server, "/api/chat", CHAT)[0] == 200


def test_stopping_closes_connections_that_were_accepted_a_moment_before(model_server):
    for _ in range(10):
        server = model_server()
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(16)]
        server.stop()
        for client in clients:
            with client, suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_a_port_that_is_taken_and_wrong_options_are_one_clear_line(server):
    with pytest.raises(BrimError, match=rf"cannot listen on 127.0.0.1:{server.port}: .*choose another port"):
        ModelServer(port=server.port).start()
    with pytest.raises(OptionError, match="not both"):
        ModelServer(Behaviour(), slots=1)
    with pytest.raises(OptionError, match="'olama'"):
        ModelServer(protocols=["olama"])
    with pytest.raises(OptionError, match="at least one"):
        ModelServer(protocols=[])


def test_hundreds_of_connections_at_once_are_served_in_order_of_arrival(model_server):
    import aiohttp

    server = model_server(slots=16, latency=0.001)

    async def main():
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one():
                async with session.post(f"{server.url}/api/chat", json=CHAT) as reply:
                    return (await reply.json())["message"]["content"]

            return await asyncio.gather(*(one() for _ in range(400)))

    assert asyncio.run(main()) == [ANSWER] * 400
    counts = server.counts
    assert (counts.served, counts.in_flight) == (400, 0)
    assert counts.max_in_service <= 16
    starts = [request.started for request in server.requests]
    assert starts == sorted(starts)


def test_a_request_starts_when_it_is_given_a_slot_even_if_a_later_one_runs_first():
    async def main():
        service = Service(Behaviour(slots=1))
        call = Call(messages=chat("hello"), model="test")
        first, second, third = (service.request(call) for _ in range(3))
        await first.__aenter__()
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        service.change(Behaviour(slots=3))
        await third.__aenter__()  # before the task of the second one resumes
        assert not waiting.done()
        assert first.started <= second.started <= third.started
        await waiting

    asyncio.run(main())


# The two servers and the endpoints of brim


@pytest.mark.parametrize("protocol", ["ollama", "openai"])
@pytest.mark.parametrize("fault", [None, "error", "reject", "drop", "garbage", "empty", "ndjson_error", "cut"])
def test_the_server_without_sockets_fails_as_one_with_sockets(model_server, protocol, fault):
    from brim.llm.wire.detect import open_endpoint

    behaviour = Behaviour(reject_status=429, retry_after=3.0, models=("test",))
    real, virtual = model_server(behaviour), VirtualServer(behaviour)
    real.next(fault)
    virtual.next("drop" if fault == "cut" else fault)
    call = Call(messages=chat("hello there"), model="test")

    async def ask(endpoint):
        try:
            answer = await endpoint.ask(call)
            return answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, answer.model
        except Failure as failure:
            return type(failure), failure.retry_after
        finally:
            await endpoint.close()

    found = asyncio.run(ask(open_endpoint(Server(url=real.url, protocol=protocol))))
    assert found == run(ask(virtual))


def test_faults_over_sockets_repeat_by_seed(model_server):
    def story():
        server = model_server(faults=Faults(error=0.3, reject=0.2), seed=5)
        return [send(server, "/api/chat", CHAT)[0] for _ in range(20)]

    first = story()
    assert first == story()
    assert set(first) == {200, 500, 503}
