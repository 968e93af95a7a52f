"""Keys and passwords are planted in every place they can come from, and looked for in everything that comes out."""

import asyncio
import base64
import logging
import pickle
import stat
import traceback

import pytest
from aiohttp import web

from brim.cli import TREE
from brim.cli.app import Group
from brim.core.wait.loop import LoopThread
from brim.llm import Failure, LLMPool, PoolConfig, Reply, Server, check_server
from brim.llm.testing import Behaviour, Faults, ModelServer

KEY = "sk-planted-0123456789-key"
PASSWORD = "planted-password-abcdef"
BASIC = base64.b64encode(f"someone:{PASSWORD}".encode()).decode()
SECRETS = (KEY, PASSWORD, BASIC)


def leaks(text):
    return [secret for secret in SECRETS if secret in text]


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setenv("PLANTED_KEY", KEY)


@pytest.fixture
def echo():
    """A server that answers every request with an error which quotes all of the request's headers."""
    thread = LoopThread("echo")
    seen = []

    async def answer(request):
        seen.append(dict(request.headers))
        said = f"cannot serve {dict(request.headers)}"
        status = 400 if len(seen) % 2 else 500
        return web.json_response({"error": {"message": said}, "detail": said}, status=status, reason=KEY)

    async def start():
        runner = web.AppRunner(web.Application(), access_log=None)
        runner.app.router.add_route("*", "/{tail:.*}", answer)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, site._server.sockets[0].getsockname()[1]

    runner, port = thread.call(start())
    yield port, seen
    thread.stop(runner.cleanup())


def spoken(failure):
    """Everything that a failure can say."""
    said = [str(failure), repr(failure), repr(vars(failure)), str(failure.to_dict()), str(failure.args)]
    said += traceback.format_exception(failure)
    said.append(str(pickle.loads(pickle.dumps(failure)).__dict__))
    return "\n".join(said)


@pytest.mark.parametrize("protocol", ["ollama", "openai"])
def test_a_server_that_quotes_the_key_is_not_quoted(echo, protocol, tmp_path, caplog):
    port, seen = echo
    caplog.set_level(logging.DEBUG)
    config = PoolConfig(attempts=2)
    servers = [
        Server(url=f"http://127.0.0.1:{port}", protocol=protocol, key_env="PLANTED_KEY"),
        Server(url=f"http://someone:{PASSWORD}@127.0.0.1:{port}/p?token={KEY}", protocol=protocol),
    ]
    for server in servers:
        paths = tmp_path / "cache", tmp_path / "trace.jsonl"
        with LLMPool(server, model="m", config=config, cache=paths[0], trace=paths[1]) as pool:
            failures = [*pool.map(["a", "b", "c"]), *pool.embed(["x"]), *pool.models().values()]
            said = [repr(pool), repr(pool.stats()), repr(server), str(server), repr(pool.config)]
        assert all(isinstance(failure, Failure) for failure in failures)
        said += [spoken(failure) for failure in failures]
        assert not leaks("\n".join(said))
    assert any(KEY in headers.get("Authorization", "") for headers in seen), "the key did not reach the server"
    assert any(BASIC in headers.get("Authorization", "") for headers in seen), "the password did not reach the server"
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(written) >= 2
    for path in written:
        assert not leaks(path.read_bytes().decode("latin-1")), path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not leaks(caplog.text)


def test_a_key_that_is_refused_is_not_shown_but_its_variable_is():
    with ModelServer(require_key="another key") as server:
        with LLMPool(Server(url=server.url, key_env="PLANTED_KEY"), model="test") as pool:
            [failure] = pool.map(["a"])
    assert not leaks(spoken(failure))
    assert "PLANTED_KEY" in str(failure)


def test_a_key_is_not_sent_to_another_host(monkeypatch):
    with ModelServer() as other:
        behaviour = Behaviour(faults=Faults(redirect=1.0), redirect_to=f"http://localhost:{other.port}/v1/models")
        with ModelServer(behaviour) as server:
            with LLMPool(Server(url=server.url, protocol="openai", key_env="PLANTED_KEY"), model="test") as pool:
                [failure] = pool.map(["a"])
        assert isinstance(failure, Failure)
        assert other.counts.arrived == 0
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ModelServer() as server:
        with LLMPool(server.url, model="test") as pool:
            assert isinstance(pool.map(["a"])[0], Reply)
        assert not any(leaks(str(dict(request.headers))) for request in server.requests)


def run_command(capfd, *words):
    status = 0
    try:
        Group("brim", "", TREE).main([str(word) for word in words], prog_name="brim", standalone_mode=False)
    except SystemExit as left:
        status = left.code
    except Exception as error:
        status = 2
        print("".join(traceback.format_exception(error)))
    out, err = capfd.readouterr()
    return status, out + err


@pytest.mark.parametrize("faults", [Faults(), Faults(error=0.5), Faults(error=1.0)])
def test_commands_write_and_print_no_secret(tmp_path, capfd, monkeypatch, faults):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "q{number}"}}\n' for number in range(8)))
    with ModelServer(Behaviour(faults=faults, models=("test",)), require_key=KEY) as server:
        url = server.url.replace("http://", f"http://someone:{PASSWORD}@")
        for address, key in ((server.url, ["--key-env", "PLANTED_KEY"]), (url, [])):
            common = ["--server", address, *key, "--model", "test"]
            asking = [*common, "--attempts", 2, "--patience", 0.1, "--cache", "c.cache", "--trace", "t.jsonl"]
            for words in (
                ["map", "-i", "prompts.jsonl", "-o", "answers.jsonl", *asking, "--details"],
                ["embed", "-i", "prompts.jsonl", "-o", "vectors.npy", *asking, "--text-field", "prompt"],
                ["check", *common, "--requests", 2, "--timeout", 5],
                ["bench", *common, "--concurrency", "1", "--requests-per-level", 1, "-o", "bench.json"],
            ):
                status, said = run_command(capfd, "llm", *words)
                assert not leaks(said), words
                assert status == 0 or faults.error or not key, said
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    for path in written:
        assert not leaks(path.read_bytes().decode("latin-1")), path


def test_a_checkup_shows_no_secret(echo):
    port, _ = echo
    server = Server(url=f"http://someone:{PASSWORD}@127.0.0.1:{port}", key_env=None)
    assert not leaks(str(check_server(server, timeout=5.0).to_dict()))


def test_debug_output_of_the_event_loop_shows_no_secret(caplog, monkeypatch):
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    caplog.set_level(logging.DEBUG)
    with ModelServer(require_key=KEY, latency=0.01) as server:
        with LLMPool(Server(url=server.url, key_env="PLANTED_KEY"), model="test") as pool:
            assert isinstance(pool.map(["a"])[0], Reply)
            assert asyncio.run(pool.map_async(["a"]))
    assert not leaks(caplog.text)
