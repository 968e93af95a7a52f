"""Requests over real sockets: bounded, closed when they are cancelled, and nothing but failures when they fail."""

import asyncio
import copy
import gzip
import shutil
import ssl
import subprocess
import zlib
from contextlib import asynccontextmanager
from functools import partial

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.llm.call import Answer, Call, Sampling, chat
from brim.llm.config import Server
from brim.llm.failures import BadReply, Cancelled, Failure, ModelMissing, Rejected, ServerFailed, ServerLost
from brim.llm.wire.transport import HttpEndpoint

KEY = "sk-proj-0123456789abcdefghijklmnop"
CALL = Call(model="m", messages=chat("Hello"))
OK = orjson.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})


def http(body=OK, *headers, status="200 OK"):
    """A whole HTTP reply."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Peer:
    """A server of raw bytes: it answers requests with `replies`, in turn, and the last one ever after."""

    def __init__(self, *replies, keep=True):
        self.replies = list(replies)
        self.keep = keep
        self.requests = []
        self.connections = 0
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()

    async def __call__(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0
                )
                body = await reader.readexactly(int(length))
                self.requests.append((head, body))
                self.arrived.set()
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                if callable(reply):
                    await reply(reader, writer)
                else:
                    writer.write(reply)
                    await writer.drain()
                if not self.keep:
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.closed.set()
            writer.close()


@asynccontextmanager
async def serving(
    peer,
    *,
    protocol="openai",
    user="",
    scheme="http",
    tls=None,
    path="",
    max_body=2**20,
    key_env=None,
    host="127.0.0.1",
):
    server = await asyncio.start_server(peer, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    url = f"{scheme}://{user}{host}:{port}{path}"
    endpoint = HttpEndpoint(Server(url=url, protocol=protocol, key_env=key_env), max_body=max_body)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        server.close()
        await server.wait_closed()


def asked(peer, call=CALL, **options):
    """Return the answer or the failure of one call."""

    async def run():
        made = peer()
        async with serving(made, **options) as endpoint:
            try:
                return await endpoint.ask(call)
            except Failure as failure:
                return failure

    return asyncio.run(run())


def replied(reply, **options):
    return asked(partial(Peer, reply, keep=False), **options)


def refused(failure, kind, words):
    assert type(failure) is kind, failure
    assert words in str(failure)
    assert failure.server.startswith("http")
    assert failure.__context__ is None  # exceptions of aiohttp hold the request with its headers


def test_a_call_is_asked_and_answered():
    assert replied(http()) == Answer(text="Hi", model="m", finish_reason="stop")
    done = orjson.dumps({"message": {"content": "Hi"}, "done": True})
    assert replied(http(done), protocol="ollama") == Answer(text="Hi", model="m")


def test_the_request_says_what_it_must_and_no_more(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)

    async def run():
        peer = Peer(http(OK, "Set-Cookie: a=b"))
        async with serving(peer, key_env="MY_KEY", path="/v1", host="localhost") as endpoint:
            await endpoint.ask(CALL)
            await endpoint.ask(CALL)
        return peer

    peer = asyncio.run(run())
    first, second = (head for head, _ in peer.requests)
    assert first == second  # no cookie is kept
    assert first.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"Authorization: Bearer {KEY}\r\n" in first
    assert orjson.loads(peer.requests[0][1])["messages"] == [{"role": "user", "content": "Hello"}]
    assert peer.connections == 1  # the connection is kept open


def test_a_long_request_arrives_whole():
    text = "x" * 3_000_000
    answers = []

    async def run():
        peer = Peer(http())
        async with serving(peer) as endpoint:
            answers.append(await endpoint.ask(Call(model="m", messages=chat(text))))
        return orjson.loads(peer.requests[0][1])

    assert asyncio.run(run())["messages"][0]["content"] == text


def test_a_compressed_reply_is_read():
    assert replied(http(gzip.compress(OK), "Content-Encoding: gzip")).text == "Hi"
    assert replied(http(zlib.compress(OK), "Content-Encoding: deflate")).text == "Hi"


BROKEN = [
    (b"", ServerLost, "closed the connection before it answered"),
    (b"HTTP/1.1 200 OK\r\n", ServerLost, "closed the connection before it answered"),
    (http()[:-5], ServerLost, "before the whole reply had arrived"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", ServerLost, "before the whole reply"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", BadReply, "not HTTP"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", BadReply, "not HTTP"),
    (b"\x00\xff\x15\x03\r\n\r\n", BadReply, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000, BadReply, "not HTTP"),
    (http(b"no gzip", "Content-Encoding: gzip"), BadReply, "cannot be decompressed"),
    (http(b"no brotli", "Content-Encoding: br"), BadReply, "cannot be decompressed"),
    (http(b""), BadReply, "it is empty"),
    (http(b"Hello"), BadReply, "not JSON: Hello"),
    (http(b"", "Upgrade: websocket", "Connection: upgrade", status="101 Switching"), BadReply, "HTTP 101"),
    (http(b"no", status="500 Oh"), ServerFailed, "HTTP 500"),
    (http(b"no", status="422 Oh"), Rejected, "HTTP 422"),
]


@pytest.mark.parametrize(("reply", "kind", "words"), BROKEN)
def test_a_broken_reply_is_a_failure_of_its_kind(reply, kind, words):
    refused(replied(reply), kind, words)


@settings(max_examples=60)
@given(st.binary(max_size=40), st.sampled_from(["", "HTTP/1.1 ", "HTTP/1.1 200 OK\r\n", "body", "chunked", "gzip"]))
def test_any_bytes_from_a_server_are_an_answer_or_a_failure(garbage, form):
    reply = {
        "body": http(garbage),
        "gzip": http(garbage, "Content-Encoding: gzip"),
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + garbage,
    }.get(form, form.encode() + garbage)
    assert isinstance(replied(reply), (Answer, Failure))


def test_nobody_there_is_a_lost_server_with_a_way_out():
    async def run(url):
        endpoint = HttpEndpoint(Server(url=url, protocol="ollama"))
        try:
            await endpoint.ask(CALL)
        except Failure as failure:
            return failure
        finally:
            await endpoint.close()

    async def free_port():
        async with await asyncio.start_server(Peer(b""), "127.0.0.1", 0) as server:
            return server.sockets[0].getsockname()[1]

    port = asyncio.run(free_port())
    words = "connection refused: is a server running there? start one with `ollama serve` or `brim llm serve`"
    refused(asyncio.run(run(f"http://127.0.0.1:{port}")), ServerLost, words)
    refused(
        asyncio.run(run("http://no-such-host.invalid:1")), ServerLost, 'host "no-such-host.invalid" cannot be found'
    )


def test_https_to_a_plain_server_is_a_lost_server_that_says_so():
    async def plain(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    refused(asked(lambda: plain, scheme="https"), ServerLost, "write http:// in place of https://")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_an_unknown_certificate_is_a_lost_server_with_the_reason(tmp_path):
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*command, "-subj", "/CN=127.0.0.1", *files], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    failure = asked(partial(Peer, http()), scheme="https", tls=tls)
    refused(failure, ServerLost, "the TLS certificate is not accepted: self")
    assert "SSL_CERT_FILE" in str(failure)


async def pour(reader, writer, piece=b"x" * 65536):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


def test_an_endless_body_is_cut_off_and_the_connection_closed():
    async def run():
        peer = Peer(pour)
        async with serving(peer, max_body=500_000) as endpoint:
            with pytest.raises(BadReply, match="longer than 500000 bytes"):
                await endpoint.ask(CALL)
            await peer.closed.wait()

    asyncio.run(run())


def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_not():
    padded = OK + b" " * (1000 - len(OK))
    assert replied(http(padded), max_body=1000).text == "Hi"
    refused(replied(http(padded + b" "), max_body=1000), BadReply, "longer than 1000 bytes")


def test_a_body_compressed_to_explode_is_cut_off_early():
    bomb = gzip.compress(b"\0" * 50_000_000)
    read = []

    async def run():
        peer = Peer(http(bomb, "Content-Encoding: gzip"))
        async with serving(peer, max_body=400_000) as endpoint:
            inner = endpoint._connections._read

            async def watched(response):
                try:
                    return await inner(response)
                finally:
                    read.append(response.content.total_bytes)

            endpoint._connections._read = watched
            with pytest.raises(BadReply, match="longer than 400000 bytes"):
                await endpoint.ask(CALL)

    asyncio.run(run())
    assert read[0] < 3_000_000  # of 50 million that the body stands for


async def drip(reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
    while not reader.at_eof():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.001)


async def silence(reader, writer):
    await reader.read()


@pytest.mark.parametrize("behaviour", [silence, drip])
def test_a_cancelled_call_closes_its_connection_and_no_other(behaviour):
    async def run():
        slow = Peer(behaviour)
        async with serving(slow) as endpoint:
            task = asyncio.create_task(endpoint.ask(CALL))
            await slow.arrived.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(slow.closed.wait(), 10)
            slow.replies = [http()]
            assert (await endpoint.ask(CALL)).text == "Hi"

    asyncio.run(run())


def test_a_connection_that_the_server_closed_meanwhile_is_lost_or_renewed():
    async def answer_once(reader, writer):
        writer.write(http())
        await writer.drain()
        writer.close()

    async def run():
        peer = Peer(answer_once)
        async with serving(peer) as endpoint:
            outcomes = []
            for _ in range(20):
                try:
                    outcomes.append((await endpoint.ask(CALL)).text)
                except ServerLost:
                    outcomes.append("lost")
            assert set(outcomes) <= {"Hi", "lost"}
            assert "Hi" in outcomes

    asyncio.run(run())


def test_a_connection_that_changed_its_protocol_is_closed():
    async def run():
        peer = Peer(http(b"", "Upgrade: websocket", "Connection: upgrade", status="101 Switching"))
        async with serving(peer) as endpoint:
            with pytest.raises(BadReply, match="HTTP 101"):
                await endpoint.ask(CALL)
            await asyncio.wait_for(peer.closed.wait(), 10)

    asyncio.run(run(), debug=True)  # aiohttp warns about a response that nobody closed, in this mode only


def test_closing_ends_calls_under_way_and_refuses_new_ones():
    async def run():
        peer = Peer(silence)
        async with serving(peer) as endpoint:
            task = asyncio.create_task(endpoint.ask(CALL))
            await peer.arrived.wait()
            await endpoint.close()
            with pytest.raises(Cancelled):
                await task
            with pytest.raises(Cancelled):
                await endpoint.ask(CALL)

    asyncio.run(run())


def test_many_calls_at_once_get_their_own_answers():
    class Echo(Peer):
        async def __call__(self, reader, writer):
            async def back(_, out):
                prompt = orjson.loads(self.requests[-1][1])["prompt"]
                await asyncio.sleep(hash(prompt) % 3 / 1000)
                out.write(http(orjson.dumps({"choices": [{"text": prompt}]})))
                await out.drain()

            self.replies = [back]
            await super().__call__(reader, writer)

    async def run():
        async with serving(Echo()) as endpoint:
            calls = [Call(kind="complete", model="m", prompt=str(number)) for number in range(100)]
            return [answer.text for answer in await asyncio.gather(*map(endpoint.ask, calls))]

    assert asyncio.run(run()) == [str(number) for number in range(100)]


# --- redirects and secrets --------------------------------------------------------------------------------------------


def redirect(location, status="307 Temporary Redirect"):
    return http(b"", f"Location: {location}", status=status)


@pytest.mark.parametrize("status", ["307 T", "308 P"])
def test_a_redirect_on_the_same_server_is_followed_once(status):
    async def run():
        peer = Peer(redirect("/other?x=1", status), http())
        async with serving(peer) as endpoint:
            assert (await endpoint.ask(CALL)).text == "Hi"
        return peer.requests

    (_, first), (head, second) = asyncio.run(run())
    assert head.startswith("POST /other?x=1 ")
    assert first == second
    refused(asked(partial(Peer, redirect("/again", status))), Rejected, "redirects (HTTP")


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S"])
def test_a_redirect_that_would_change_the_request_is_not_followed(status):
    refused(asked(partial(Peer, redirect("/other", status), http())), Rejected, "/other, which is not followed")


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_a_redirect_to_another_server_is_not_followed_and_carries_no_key(status, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)

    async def run():
        other = Peer(http())
        async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            peer = Peer(redirect(f"http://me:pw@127.0.0.1:{port}/v1?key=1", status))
            async with serving(peer, key_env="MY_KEY") as endpoint:
                with pytest.raises(Rejected, match=rf"to http://127\.0\.0\.1:{port}/v1, which is not followed"):
                    await endpoint.ask(CALL)
        assert KEY in peer.requests[0][0]
        return other.connections

    assert asyncio.run(run()) == 0


def echo_head(peer, status):
    """A reply that quotes the whole head of the request."""

    async def reply(_, writer):
        said = orjson.dumps({"error": {"message": "you sent: " + peer.requests[-1][0]}})
        writer.write(http(said, "Location: https://x/?" + KEY, status=status))
        await writer.drain()

    return reply


STATUSES = ["200 O", "302 F", "307 T", "400 B", "401 U", "404 N", "422 U", "429 T", "500 I", "503 S"]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("where", ["variable", "url"])
def test_a_server_that_quotes_the_request_gets_no_secret_into_a_failure(status, where, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)

    async def run():
        peer = Peer(b"")
        peer.replies = [echo_head(peer, status)]
        options = {"key_env": "MY_KEY"} if where == "variable" else {"user": f"me:{KEY}@"}
        async with serving(peer, path="/v1?token=query-secret", **options) as endpoint:
            with pytest.raises(Failure) as raised:
                await endpoint.ask(CALL)
            basic = peer.requests[0][0].partition("Authorization: ")[2].split()[1]
            assert "query-secret" in peer.requests[0][0]
            return raised.value, basic, endpoint

    failure, basic, endpoint = asyncio.run(run())
    shown = (
        f"{failure} {failure!r} {failure.to_dict()} {copy.copy(failure)!r} {endpoint.name} {endpoint!r} {endpoint!s}"
    )
    for secret in (KEY, basic, "query-secret", KEY[:12], KEY[-12:]):
        assert secret not in shown
    assert failure.__context__ is None
    assert failure.__cause__ is None


def test_the_environment_has_no_say_in_where_a_request_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def run():
        peer = Peer(http())
        async with serving(peer) as endpoint:
            await endpoint.ask(CALL)
        return peer.requests[0][0]

    assert "Authorization" not in asyncio.run(run())


# --- missing models ---------------------------------------------------------------------------------------------------


class Tags(Peer):
    """Ollama with two models, which are listed by `tags`."""

    def __init__(self, tags):
        super().__init__(self.reply)
        self.tags = tags

    async def reply(self, _, writer):
        listing = self.requests[-1][0].startswith("GET /api/")
        writer.write(self.tags if listing else http(b'{"error":"model \'lama3\' not found"}', status="404 Not Found"))
        await writer.drain()


LISTED = http(orjson.dumps({"models": [{"name": "llama3:latest"}, {"name": "qwen:0.5b"}]}))


def test_a_missing_model_is_reported_with_the_nearest_name_and_the_list_is_fetched_once():
    async def run():
        peer = Tags(LISTED)
        async with serving(peer, protocol="ollama") as endpoint:
            calls = [endpoint.ask(Call(model="lama3", messages=chat("x"))) for _ in range(5)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert await endpoint.models() == ["llama3:latest", "qwen:0.5b"]
            assert await endpoint.loaded() == ["llama3:latest", "qwen:0.5b"]
        return failures, [head.split()[1] for head, _ in peer.requests]

    failures, paths = asyncio.run(run())
    for failure in failures:
        refused(failure, ModelMissing, 'does not have the model "lama3". Did you mean "llama3"?')
        assert "llama3:latest, qwen:0.5b" in str(failure)
        assert "ollama pull lama3" in str(failure)
    assert paths.count("/api/tags") == 1 + 1  # once for the failures, once for models()
    assert paths.count("/api/ps") == 1


@pytest.mark.parametrize("tags", [http(b"no"), http(b"", status="500 I"), b"garbage\r\n\r\n"])
def test_a_missing_model_is_reported_even_if_the_models_cannot_be_listed(tags):
    refused(asked(lambda: Tags(tags), protocol="ollama"), ModelMissing, "model 'lama3' not found")


def test_names_of_models_are_shown_in_one_line_whatever_they_are():
    names = http(orjson.dumps({"models": [{"name": "a\nb\x1b[31m"}]}))
    failure = asked(lambda: Tags(names), protocol="ollama", call=Call(model="x\ny", messages=chat("x")))
    refused(failure, ModelMissing, 'the model "x y". It has a b [31m.')


def test_many_names_are_cut_short():
    names = http(orjson.dumps({"models": [{"name": f"model-{number}"} for number in range(30)]}))
    refused(asked(lambda: Tags(names), protocol="ollama"), ModelMissing, "and 22 more")


def test_a_protocol_must_be_known_here():
    with pytest.raises(OptionError, match="open_endpoint"):
        HttpEndpoint(Server(url="http://host"))


def test_a_call_that_cannot_be_sent_is_rejected_before_it_is_sent():
    async def run():
        peer = Peer(http())
        async with serving(peer) as endpoint:
            with pytest.raises(Rejected, match="stream"):
                await endpoint.ask(Call(model="m", messages=chat("x"), sampling=Sampling(extra={"stream": True})))
        return peer.connections

    assert asyncio.run(run()) == 0
