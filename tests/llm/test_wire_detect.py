"""Which protocol a server speaks is found out once, shared by all calls, and tried again after a failure."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from brim.llm.call import Call, chat
from brim.llm.config import Server
from brim.llm.failures import Cancelled, Failure, Overloaded, Rejected, ServerFailed, ServerLost
from brim.llm.wire.detect import DetectingEndpoint, open_endpoint
from brim.llm.wire.shared import Shared
from brim.llm.wire.transport import HttpEndpoint

CALL = Call(model="m", messages=chat("Hello"))
VERSION = web.json_response, {"version": "0.12.0"}
MODELS = web.json_response, {"object": "list", "data": [{"id": "m"}]}
CHAT = web.json_response, {"choices": [{"message": {"content": "from openai"}}]}
API_CHAT = web.json_response, {"message": {"content": "from ollama"}, "done": True}
SHOP = web.Response, {"text": "<h1>Welcome to my shop</h1>", "content_type": "text/html"}


def reply(text="", status=200):
    return web.Response, {"text": text, "status": status}


class App:
    """A server with the given pages; it counts what it is asked."""

    def __init__(self, pages, *, otherwise=(web.Response, {"text": "404 page not found", "status": 404})):
        self.pages = pages
        self.otherwise = otherwise
        self.asked = []

    async def __call__(self, request):
        self.asked.append(request.path)
        make, content = self.pages.get(request.path, self.otherwise)
        return make(content) if make is web.json_response else make(**content)


@asynccontextmanager
async def serving(app, path="", **options):
    runner = web.ServerRunner(web.Server(app), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint = open_endpoint(Server(url=f"http://127.0.0.1:{runner.addresses[0][1]}{path}", **options))
    try:
        yield endpoint
    finally:
        await endpoint.close()
        await runner.cleanup()


def found(pages, path="", **options):
    """Return the protocol, the answer or failure of a call, and the pages that were asked for."""

    async def run():
        app = App(pages, **options)
        async with serving(app, path) as endpoint:
            assert endpoint.protocol == "auto"
            try:
                answer = (await endpoint.ask(CALL)).text
            except Failure as failure:
                answer = failure
            return endpoint.protocol, answer, app.asked

    return asyncio.run(run())


def test_ollama_is_recognized_by_its_version():
    protocol, answer, asked = found({"/api/version": VERSION, "/v1/models": MODELS, "/api/chat": API_CHAT})
    assert (protocol, answer, asked) == ("ollama", "from ollama", ["/api/version", "/api/chat"])


def test_ollama_is_recognized_by_its_front_page():
    protocol, answer, _ = found({"/": reply("Ollama is running"), "/api/chat": API_CHAT})
    assert (protocol, answer) == ("ollama", "from ollama")


def test_a_path_that_ends_in_v1_is_the_openai_protocol_and_nothing_is_asked():
    protocol, answer, asked = found({"/v1/chat/completions": CHAT}, "/v1/")
    assert (protocol, answer, asked) == ("openai", "from openai", ["/v1/chat/completions"])


def test_a_server_that_lists_models_speaks_the_openai_protocol():
    protocol, answer, _ = found({"/v1/models": MODELS, "/v1/chat/completions": CHAT})
    assert (protocol, answer) == ("openai", "from openai")
    protocol, answer, _ = found({"/proxy/v1/models": MODELS, "/proxy/v1/chat/completions": CHAT}, "/proxy")
    assert (protocol, answer) == ("openai", "from openai")


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_for_its_models_speaks_the_openai_protocol(status):
    protocol, answer, _ = found({}, otherwise=reply("who are you?", status))
    assert protocol == "openai"
    assert isinstance(answer, Rejected)
    assert "key_env" in str(answer)


def test_llama_cpp_is_recognized_by_its_health():
    protocol, answer, _ = found({"/health": (web.json_response, {"status": "ok"}), "/v1/chat/completions": CHAT})
    assert (protocol, answer) == ("openai", "from openai")


@pytest.mark.parametrize("pages", [{"/": SHOP}, {"/": SHOP, "/v1/models": SHOP, "/api/version": SHOP, "/health": SHOP}])
def test_another_server_is_refused_with_what_it_answered(pages):
    protocol, answer, _ = found(pages)
    assert protocol == "auto"
    assert type(answer) is Rejected
    assert "not a model server we know: it answered GET / with HTTP 200 text/html" in str(answer)
    assert "Welcome to my shop" in str(answer)


@pytest.mark.parametrize(
    ("otherwise", "kind"),
    [
        (reply("Loading model", 503), Overloaded),
        (reply("slow down", 429), Overloaded),
        (reply("Bad Gateway", 502), ServerFailed),
        ((web.Response, {"status": 301, "headers": {"Location": "https://elsewhere/"}}), Rejected),
    ],
)
def test_a_server_that_is_busy_broken_or_elsewhere_is_reported_as_that(otherwise, kind):
    protocol, answer, _ = found({}, otherwise=otherwise)
    assert protocol == "auto"
    assert type(answer) is kind
    assert "not a model server" not in str(answer)


def test_concurrent_first_calls_share_one_detection():
    async def run():
        app = App({"/api/version": VERSION, "/api/chat": API_CHAT, "/api/tags": (web.json_response, {"models": []})})
        async with serving(app) as endpoint:
            await asyncio.gather(*(endpoint.ask(CALL) for _ in range(10)), endpoint.models())
            await endpoint.ask(CALL)
        return app.asked

    asked = asyncio.run(run())
    assert asked.count("/api/version") == 1
    assert asked.count("/api/chat") == 11


def test_concurrent_first_calls_share_a_failure_and_the_next_call_tries_again():
    async def run():
        app = App({}, otherwise=reply("Loading model", 503))
        async with serving(app) as endpoint:
            failures = await asyncio.gather(*(endpoint.ask(CALL) for _ in range(10)), return_exceptions=True)
            tried = app.asked.count("/api/version")
            app.pages = {"/api/version": VERSION, "/api/chat": API_CHAT}
            return failures, tried, (await endpoint.ask(CALL)).text

    failures, tried, text = asyncio.run(run())
    assert all(type(failure) is Overloaded for failure in failures)
    assert len(set(map(id, failures))) == 10  # each call writes its attempts and time into its own
    assert (tried, text) == (1, "from ollama")


def test_nobody_there_is_a_lost_server():
    async def run():
        async with serving(App({})) as endpoint:
            url = endpoint.name
        gone = open_endpoint(Server(url=url))
        try:
            with pytest.raises(ServerLost, match="connection refused"):
                await gone.ask(CALL)
            with pytest.raises(ServerLost, match="connection refused"):
                await gone.models()
        finally:
            await gone.close()

    asyncio.run(run())


def test_a_given_protocol_is_not_asked_for():
    assert isinstance(open_endpoint(Server(url="http://host")), DetectingEndpoint)
    for protocol in ("ollama", "openai"):
        endpoint = open_endpoint(Server(url="http://host", protocol=protocol))
        assert isinstance(endpoint, HttpEndpoint)
        assert endpoint.protocol == protocol


def test_closing_while_the_protocol_is_asked_for_ends_the_call():
    async def run():
        class Hanging(App):
            async def __call__(self, request):
                self.asked.append(request.path)
                arrived.set()
                await asyncio.sleep(3600)

        arrived = asyncio.Event()
        async with serving(Hanging({})) as endpoint:
            task = asyncio.create_task(endpoint.ask(CALL))
            await arrived.wait()
            await endpoint.close()
            with pytest.raises(Cancelled):
                await task

    asyncio.run(run())


# --- one run for all who wait -----------------------------------------------------------------------------------------


def test_a_shared_run_goes_on_until_nobody_waits():
    async def run():
        started, ended = [], []

        async def make():
            started.append(1)
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(1)

        shared = Shared(make)
        tasks = [asyncio.create_task(shared.get()) for _ in range(3)]
        await asyncio.sleep(0.01)
        for number, task in enumerate(tasks):
            assert (len(started), len(ended)) == (1, 0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), number
        await asyncio.sleep(0)
        return len(started), len(ended)

    assert asyncio.run(run()) == (1, 1)


def test_a_shared_result_is_kept():
    async def run():
        made = []

        async def make():
            made.append(1)
            await asyncio.sleep(0)
            return len(made)

        shared = Shared(make)
        first = await asyncio.gather(shared.get(), shared.get())
        return first, await shared.get()

    assert asyncio.run(run()) == ([1, 1], 1)
