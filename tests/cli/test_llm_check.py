"""`brim llm check` and `brim llm bench`: what they ask servers, what they report, and what they refuse."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import DataError, OptionError
from brim.cli.app import Group
from brim.cli.llm.bench_plot import draw
from brim.llm.checkup import SETTLED, ServerCheck, Settling
from brim.llm.config import Server
from brim.llm.failures import ServerFailed, ServerLost
from brim.llm.measure import CURVE, ENOUGH, Found, Level, LoadCurve, measure_curve
from brim.llm.testing import ModelServer

TREE = {"llm": ("", {name: (f"brim.cli.llm.{name}:{name}", "") for name in ("check", "bench")})}
ALONE = 1 + 2 * (1 + 3)
"""Requests of a check before those that are sent together."""


@pytest.fixture
def start():
    """A function that starts a `ModelServer`, which is stopped after the test."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(ModelServer(**options))


@pytest.fixture
def brim(capsys):
    """A function that runs a command in this process, and returns its exit status and what it printed."""

    def run(*words):
        capsys.readouterr()
        status = Group("brim", "", TREE).main(["llm", *map(str, words)], prog_name="brim", standalone_mode=False)
        return status, " ".join(capsys.readouterr().out.split())

    return run


@pytest.fixture
def facts(brim):
    """A function that runs a command with --json, and returns its exit status and what it printed."""

    def run(*words):
        status, printed = brim(*words, "--json")
        return status, json.loads(printed)

    return run


def closed_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def level(concurrency, rate, *, latency=0.1, refused=0, failed=0, tokens=None):
    """A level that answered `rate` requests in one second."""
    return Level(
        concurrency=concurrency,
        requests=rate + failed,
        seconds=1.0,
        tokens=tokens,
        latency_p50=latency,
        latency_p90=latency,
        latency_p99=latency,
        refused=refused,
        failures={"ServerFailed": failed} if failed else {},
        failure=ServerFailed("it failed") if failed else None,
    )


def curve(*levels):
    return LoadCurve(server="http://s", protocol="openai", model="m", max_tokens=8, levels=levels)


# check


@pytest.mark.parametrize("protocol", ["ollama", "openai"])
def test_a_check_tells_protocol_models_and_speed(start, facts, protocol):
    server = start(protocols=[protocol], slots=8, latency=0.005, models=("a",))
    status, shown = facts("check", "--server", server.url)
    (one,) = shown["servers"]
    assert (status, shown["fine"], one["fine"], one["failure"]) == (0, True, True, None)
    assert (one["server"], one["protocol"], one["models"], one["model"]) == (server.url, protocol, ["a"], "a")
    assert one["loaded"] == (["a"] if protocol == "ollama" else [])
    assert one["first_request_seconds"] > 0
    assert one["first_token_seconds"] > 0
    assert (one["alone"]["requests"], one["alone"]["concurrency"], one["alone"]["tokens"]) == (3, 1, 3 * 16)
    assert one["together"]["tokens_per_second"] > 0
    assert one["together"]["requests"] <= 256
    assert (server.requests[0].call.sampling.max_tokens, server.requests[-1].call.sampling.max_tokens) == (1, 16)
    assert len({str(request.call.messages) for request in server.requests}) == len(server.requests)


def test_the_protocol_can_be_given_and_requests_bounds_what_is_sent_together(start, facts):
    server = start(latency=0.001)
    status, shown = facts("check", "--server", server.url, "--protocol", "openai", "--requests", 5)
    assert (status, shown["servers"][0]["protocol"]) == (0, "openai")
    assert shown["servers"][0]["together"]["requests"] == 5
    assert server.counts.arrived == ALONE + 5


@pytest.mark.slow
def test_a_server_with_one_slot_is_told_how_to_get_more(start, brim):
    server = start(slots=1, latency=0.1)
    status, said = brim("check", "--server", server.url, "--requests", 10)
    assert status == 0
    assert "hardly faster than one after another" in said
    assert "`OLLAMA_NUM_PARALLEL=8 ollama serve`" in said
    assert "first token" in said
    assert "max_tokens=1" in said


@pytest.mark.parametrize(
    ("protocol", "limit", "together", "words"),
    [
        ("ollama", 1, 10, "one request at a time. Let it work on more with `OLLAMA_NUM_PARALLEL=8 ollama serve`"),
        ("openai", 2, 10, "llama.cpp with `-np 8` (`brim llm serve --slots 8`)"),
        ("openai", None, 10, "or one keeps its processor busy already"),
        ("openai", 8, 10, "works on about 8 at once: one keeps its processor busy already, and more slots would not"),
        ("ollama", 8, 80, None),
        ("ollama", 1, 7, None),
    ],
)
def test_advice_follows_from_the_speed_together_and_the_limit(protocol, limit, together, words):
    check = ServerCheck(
        server="http://s",
        found=Found(protocol=protocol, models=("m",), loaded=()),
        model="m",
        alone=level(1, 10),
        together=level(8, together),
        limit=limit,
    )
    assert len(check.advice) == (words is not None)
    assert words is None or words in check.advice[0]


def test_a_server_that_refuses_requests_is_fine_and_the_refusals_are_counted(start, facts, brim):
    server = start(slots=2, overflow="reject", latency=0.01)
    status, shown = facts("check", "--server", server.url)
    (one,) = shown["servers"]
    assert (status, one["fine"], one["together"]["failed"]) == (0, True, 0)
    assert one["together"]["refused"] > 0
    assert one["limit"] is not None
    assert "because the server was busy (HTTP 429, 503)" in brim("check", "--server", server.url)[1]


def test_an_unknown_model_is_answered_with_the_nearest_name_and_how_to_get_it(start, brim):
    server = start(models=("llama3:latest", "qwen3"))
    status, said = brim("check", "--server", server.url, "--model", "lama3")
    assert status == 1
    assert 'ModelMissing: the server does not have the model "lama3". Did you mean "llama3"?' in said
    assert "ollama pull lama3" in said


def test_of_several_models_none_is_asked_unless_it_is_named(start, brim):
    server = start(models=("llama3", "qwen3"))
    status, said = brim("check", "--server", server.url)
    assert status == 0
    assert "llama3, qwen3" in said
    assert "Name a model with --model" in said
    assert server.counts.arrived == 0
    assert brim("check", "--server", server.url, "-m", "qwen3", "--requests", 2)[0] == 0
    assert {request.call.model for request in server.requests} == {"qwen3"}


def test_a_refused_connection_names_the_commands_that_start_a_server_and_others_are_checked_all_the_same(start, brim):
    server = start()
    dead = f"http://127.0.0.1:{closed_port()}"
    status, said = brim("check", "--server", dead, "--server", server.url, "--requests", 2)
    assert status == 1
    assert "connection refused" in said
    assert "`ollama serve` or `brim llm serve`" in said
    assert dead in said
    assert f"server {server.url} protocol ollama" in said


def test_a_server_that_wants_a_key_names_key_env_and_the_key_is_never_shown(start, brim, facts, monkeypatch):
    server = start(require_key="planted-secret")
    status, said = brim("check", "--server", server.url)
    assert status == 1
    assert "(HTTP 401)" in said
    assert "--key-env" in said
    monkeypatch.setenv("MY_KEY", "planted-secret")
    status, shown = facts("check", "--server", server.url, "--key-env", "MY_KEY", "--requests", 2)
    assert status == 0
    assert "planted-secret" not in json.dumps(shown)
    with pytest.raises(OptionError, match="NO_SUCH_KEY"):
        brim("check", "--server", server.url, "--key-env", "NO_SUCH_KEY")


def test_failed_requests_are_counted_and_the_exit_status_says_so(start, brim, facts):
    server = start()
    server.next(*[None] * ALONE, "error", "error")
    status, shown = facts("check", "--server", server.url, "--requests", 20)
    together = shown["servers"][0]["together"]
    assert (status, shown["fine"]) == (1, False)
    assert (together["failed"], together["failures"]) == (2, {"ServerFailed": 2})
    server.next(*[None] * ALONE, "error")
    assert "1 of 20 requests failed; ServerFailed:" in brim("check", "--server", server.url, "--requests", 20)[1]


def test_a_server_that_never_answers_is_given_up_after_the_timeout(start, brim):
    server = start()
    server.next("hang")
    status, said = brim("check", "--server", server.url, "--timeout", 0.2)
    assert status == 1
    assert "TimedOut: no answer within 0.2 s" in said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["check", "--requests", "0"], click.UsageError),
        (["check", "--timeout", "0"], click.UsageError),
        (["check", "--timeout", "nan"], OptionError),
        (["bench", "--timeout", "inf"], OptionError),
        (["check", "--protocol", "grpc"], click.UsageError),
        (["check", "--server", "not a url"], OptionError),
        (["bench", "--concurrency", "1,0"], click.UsageError),
        (["bench", "--concurrency", "few"], click.UsageError),
        (["bench", "--concurrency", ","], click.UsageError),
        (["bench", "--prompt", "a", "-i", "b.jsonl"], click.UsageError),
        (["bench", "--prompt-field", "a"], click.UsageError),
        (["bench", "--prompt", " "], OptionError),
        (["bench", "-i", "missing.jsonl"], DataError),
        (["bench", "--plot", "bench.gif"], OptionError),
        (["bench", "--plot", "same.png", "-o", "same.png"], OptionError),
        (["bench", "--server", "http://user:x@127.0.0.1:9", "--key-env", "HOME"], OptionError),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(brim, tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        brim(*words)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(5, 100)), st.lists(st.integers(1, 100), min_size=SETTLED - 1, max_size=SETTLED - 1))
def test_a_limit_is_found_a_while_after_it_was_lowered_for_the_first_time(rising, later):
    settling = Settling()
    assert not any(settling(SimpleNamespace(limit=limit)) for limit in sorted(rising))
    assert settling.limit is None
    *before, last = [settling(SimpleNamespace(limit=limit)) for limit in (3, *later)]
    assert last
    assert not any(before)
    assert settling.limit == round(median([3, *later]))


# bench


def test_a_bench_sends_as_many_at_once_as_each_level_says(start, facts, tmp_path):
    server = start(latency=0.01)
    output = tmp_path / "bench.json"
    status, shown = facts(
        "bench", "--server", server.url, "--concurrency", "3,1", "--requests-per-level", 6, "-o", output
    )
    assert status == 0
    assert [(one["concurrency"], one["requests"], one["failed"]) for one in shown["levels"]] == [(1, 6, 0), (3, 6, 0)]
    assert all(one["tokens_per_second"] > 0 and one["latency_p50"] <= one["latency_p99"] for one in shown["levels"])
    assert shown["knee"] in (1, 3)
    assert server.counts.max_in_flight == 3
    # One to load the model, one for each connection, and those that are counted.
    assert server.counts.arrived == 1 + (1 + 6) + (3 + 6)
    assert CURVE.read(output) == shown


def test_progress_counts_every_request_of_all_levels(start):
    told = []
    server = Server(url=start().url)
    measure_curve(server, concurrency=(2, 1), requests=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 7) for done in range(1, 8)]


def test_a_bench_asks_the_given_prompts_in_turn(start, brim, tmp_path):
    server = start()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"q": "question {number}"}}\n' for number in range(3)))
    few = ("--concurrency", "1", "--requests-per-level", 2, "--max-tokens", 5)
    status, said = brim("bench", "--server", server.url, "-i", prompts, "--prompt-field", "q", *few)
    assert status == 0
    assert "1, knee" in said
    asked = [(request.call.messages[-1]["content"], request.call.sampling.max_tokens) for request in server.requests]
    assert asked == [(f"question {number % 3}", 5) for number in range(1 + 1 + 2)]
    assert brim("bench", "--server", server.url, "--prompt", "all the same", *few)[0] == 0
    assert [request.call.messages[-1]["content"] for request in server.requests][4:] == ["all the same"] * 4


def test_a_level_at_which_the_server_refuses_requests_is_the_last_one_and_not_the_knee(start, brim, facts):
    server = start(slots=2, overflow="reject", latency=0.02)
    words = ("bench", "--server", server.url, "--concurrency", "2,8,16", "--requests-per-level", 16)
    status, shown = facts(*words)
    assert status == 0
    assert [one["concurrency"] for one in shown["levels"]] == [2, 8]
    assert shown["levels"][1]["refused"] > 4
    assert shown["knee"] == 2
    said = brim(*words)[1]
    assert "At 8 at once the server was busy" in said
    assert "no larger number was tried" in said


def test_failures_are_counted_by_level_and_the_exit_status_says_so(start, facts, brim):
    server = start()
    words = ("bench", "--server", server.url, "--concurrency", "1", "--requests-per-level", 8)
    server.next(None, None, "error", None, "garbage")
    status, shown = facts(*words)
    assert status == 1
    assert (shown["levels"][0]["requests"], shown["levels"][0]["failed"]) == (8, 2)
    assert shown["levels"][0]["failures"] == {"BadReply": 1, "ServerFailed": 1}
    server.next(None, None, "error")
    assert "1 of 8 requests failed at 1 at once; the first one: ServerFailed:" in brim(*words)[1]


def test_a_server_that_is_not_there_is_no_measurement(brim):
    with pytest.raises(ServerLost, match="connection refused"):
        brim("bench", "--server", f"http://127.0.0.1:{closed_port()}")


def test_a_bench_needs_a_model_if_there_are_several(start, brim):
    server = start(models=("llama3", "qwen3"))
    with pytest.raises(OptionError, match="name a model: the server has llama3, qwen3"):
        brim("bench", "--server", server.url)


def test_a_plot_is_written_and_files_of_others_are_kept(start, brim, tmp_path):
    server = start()
    plot, output = tmp_path / "bench.png", tmp_path / "bench.json"
    words = ("bench", "--server", server.url, "--concurrency", "1,2", "--requests-per-level", 2, "--plot", plot)
    brim(*words, "-o", output)
    assert plot.read_bytes().startswith(b"\x89PNG")
    brim(*words, "-o", output)  # its own earlier outputs are replaced
    for path in (plot, output):
        path.write_text('{"mine": 1}')
        with pytest.raises(OptionError, match=f"will not replace {path}"):
            brim(*words, "-o", output)
        assert Path(path).read_text() == '{"mine": 1}'
        brim(*words, "-o", output, "--force")


def test_the_plot_marks_the_knee_the_failures_and_the_refusals():
    figure = draw(curve(level(1, 10), level(2, 20, failed=1), level(4, 21), level(8, 1, refused=9)))
    throughput, latency = figure.axes
    assert [text.get_text() for text in throughput.texts] == ["knee: 2"]
    labels = [text.get_text() for text in throughput.get_legend().get_texts()]
    assert labels == ["some requests failed", "the server refused requests"]
    assert [list(line.get_xdata()) for line in latency.lines][:3] == [[1, 2, 4]] * 3


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_the_knee_is_the_lowest_level_that_reaches_nine_tenths_of_the_best_throughput(rates):
    measured = curve(*(level(2**at, rate) for at, rate in enumerate(rates)))
    fast = [2**at for at, rate in enumerate(rates) if rate >= ENOUGH * max(rates)]
    assert (measured.knee and measured.knee.concurrency) == (fast[0] if any(rates) else None)


def test_throughput_is_compared_in_tokens_where_they_are_counted():
    measured = curve(level(1, 100, tokens=100), level(2, 50, tokens=500))
    assert (measured.best, measured.knee.concurrency) == (500, 2)
    assert curve(level(1, 100), level(2, 50)).knee.concurrency == 1


def test_a_level_at_which_the_server_was_overloaded_does_not_count():
    measured = curve(level(2, 10), level(8, 100, refused=90))
    assert (measured.best, measured.knee.concurrency) == (10, 2)
    assert curve(level(2, 100, refused=90), level(8, 10)).knee.concurrency == 8
    assert curve(level(8, 100, refused=90)).knee is None
