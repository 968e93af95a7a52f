"""`brim llm map` and `brim llm embed`: against a server on loopback, killed and resumed, and with bad input."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from rich.console import Console

from brim.cli.app import Group
from brim.cli.llm.progress import Tally, duration, shown
from brim.core.errors import BrimError, DataError, MismatchError, OptionError
from brim.core.records import RecordFile, records_path
from brim.llm.config import PoolConfig, Server
from brim.llm.failures import ModelMissing, Rejected, ServerLost
from brim.llm.pool import LLMPool
from brim.llm.testing import Behaviour, ModelServer, Refusal, Uniform

TREE = {
    "llm": (
        "Ask language models.",
        {"map": ("brim.cli.llm.map:map_rows", "Ask."), "embed": ("brim.cli.llm.embed:embed", "Embed.")},
    )
}
ROWS = 300


def brim(*words):
    """Run a command in this process and return its exit status."""
    return Group("brim", "", TREE).main(["llm", *map(str, words)], prog_name="brim", standalone_mode=False) or 0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with prompts.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_prompts(20)
    return tmp_path


def write_prompts(count):
    lines = (json.dumps({"id": f"r{at}", "question": f"question {at} {{id}}"}) + "\n" for at in range(count))
    Path("prompts.jsonl").write_text("".join(lines))


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


MAP = ("map", "-i", "prompts.jsonl", "-o", "answers.jsonl", "--template", "{question}", "-m", "test", "-q")


def answer(call):
    """Refuse two of the rows; answer the others."""
    text = call.messages[-1]["content"]
    if text.startswith(("question 3 ", "question 7 ")):
        raise Refusal("the prompt is too long", 400)
    return f"{call.sampling.seed} {text}"


# What it writes.


def test_every_row_gets_its_answer_in_order(here, capsys):
    with ModelServer(latency=Uniform(0, 0.02)) as server:
        assert brim(*MAP, "--server", server.url) == 0
        lines = [
            {"id": f"r{at}", "question": f"question {at} {{id}}", "response": f"answer to: question {at} {{id}}"}
            for at in range(20)
        ]
        assert lines_of("answers.jsonl") == lines
        assert "answers.jsonl" in capsys.readouterr().out
        assert brim(*MAP, "--server", server.url) == 0  # nothing is missing
        assert "nothing is missing" in capsys.readouterr().err
        assert server.counts.arrived == 20
    assert sorted(os.listdir()) == ["answers.jsonl", "answers.run.json", "prompts.jsonl"]


def test_each_sample_has_its_line_and_a_seed_of_its_own(here):
    with ModelServer(answers=lambda call: str(call.sampling.seed)) as server:
        assert brim(*MAP, "--server", server.url, "--samples", 3, "--seed", 7, "--temperature", 1) == 0
    lines = lines_of("answers.jsonl")
    assert [(line["id"], line["sample"]) for line in lines] == [(f"r{at}", k) for at in range(20) for k in range(3)]
    assert len({line["response"] for line in lines}) == 3


def test_options_of_the_request_reach_the_server(here):
    with ModelServer() as server:
        options = ("--system", "be brief", "--max-tokens", 5, "--temperature", 0.5, "--top-p", 0.9, "--stop", "END")
        assert brim(*MAP, "--server", server.url, "--limit", 2, *options) == 0
        call = server.requests[-1].call
        assert server.counts.max_in_flight <= 2
    assert call.messages[0] == {"role": "system", "content": "be brief"}
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.stop) == (5, 0.5, 0.9, ("END",))


def test_options_of_servers_reach_the_pool(here, monkeypatch):
    class Reached(Exception):  # noqa: N818
        pass

    def pool(servers, **options):
        raise Reached(servers, options)

    monkeypatch.setattr("brim.llm.pool.LLMPool", pool)
    words = (
        "--server http://a --server http://b --server http://a --protocol openai --key-env KEY --limit 3 --max-limit 9 "
        "--rpm 5 --tpm 7.5 --timeout 11 --attempts 2 --patience 4 --hedge --cache c.db --cache-mode read --trace t.jl"
    )
    with pytest.raises(Reached) as reached:
        brim(*MAP, *words.split())
    servers, options = reached.value.args
    assert servers == [
        Server(url=url, protocol="openai", key_env="KEY", limit=3, max_limit=9, rpm=5, tpm=7.5)
        for url in ("http://a", "http://b")
    ]
    assert options == {
        "model": "test",
        "config": PoolConfig(timeout=11, attempts=2, patience=4, hedge=True),
        "cache": "c.db",
        "cache_mode": "read",
        "trace": "t.jl",
    }


def test_the_key_comes_from_the_environment_and_the_template_from_a_file(here, monkeypatch):
    monkeypatch.setenv("MODEL_KEY", "planted-secret")
    Path("template.txt").write_text("In {{one}} word:\n{question}")
    with ModelServer(require_key="planted-secret") as server:
        words = ("map", "-i", "prompts.jsonl", "-o", "answers.jsonl", "-m", "test", "--template-file", "template.txt")
        assert (
            brim(*words, "--server", server.url, "--key-env", "MODEL_KEY", "--details", "--trace", "trace.jsonl") == 0
        )
    assert lines_of("answers.jsonl")[0]["response"] == "answer to: In {one} word:\nquestion 0 {id}"
    for path in here.iterdir():
        assert b"planted-secret" not in path.read_bytes()


def test_progress_is_a_line_for_each_tenth_without_a_terminal_and_a_table_in_one(here, capsys):
    with ModelServer(latency=0.005) as server:
        assert brim(*MAP[:-1], "--server", server.url, "--limit", 1) == 0
        lines = capsys.readouterr().err.splitlines()
        assert 1 <= len(lines) <= 10
        assert lines[-1].startswith("20/20, ")
        with LLMPool(server.url, model="test") as pool:
            pool.map(["a", "b"])
            console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
            console.print(shown(Tally(total=4, before=1, answered=1, failed=1, tokens=9), pool.stats()))
            console.file.close()
    text = console.export_text()
    assert text.startswith("3/4, ")
    assert "ETA 0:" in text
    assert "1 failed" in text
    assert server.url in text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (75, "1:15"), (3675, "1:01:15")])
def test_a_time_span_is_shown_in_minutes_and_hours(seconds, text):
    assert duration(seconds) == text


def test_rows_come_as_they_finish_if_that_is_asked_for(here):
    with ModelServer(latency=Uniform(0, 0.05)) as server:
        assert brim(*MAP, "--server", server.url, "--order", "ready", "--details") == 0
    lines = lines_of("answers.jsonl")
    ids = [line["id"] for line in lines]
    assert sorted(ids) == sorted(f"r{at}" for at in range(20))
    assert ids != [f"r{at}" for at in range(20)]
    assert {line["details"]["server"] for line in lines} == {server.url}


def test_failed_rows_are_listed_and_the_next_start_asks_only_for_them(here, capsys):
    with ModelServer(answers=answer) as server:
        assert brim(*MAP, "--server", server.url, "--json") == 1
        facts = json.loads(capsys.readouterr().out)
        assert (facts["answered"], facts["failed"], facts["failed_rows"]) == (18, 2, "answers.failed.jsonl")
        failed = lines_of("answers.failed.jsonl")
        assert [(line["where"], line["fields"]["id"]) for line in failed] == [
            ("prompts.jsonl:4", "r3"),
            ("prompts.jsonl:8", "r7"),
        ]
        assert {line["failure"]["type"] for line in failed} == {"Rejected"}
        assert len(lines_of("answers.jsonl")) == 18
        before = server.counts.arrived
        server.change(answers=None)
        assert brim(*MAP, "--server", server.url) == 0
        assert server.counts.arrived == before + 2
    assert [line["id"] for line in lines_of("answers.jsonl")] == [f"r{at}" for at in range(20)]
    assert not Path("answers.failed.jsonl").exists()
    assert not records_path(Path("answers.jsonl")).exists()


def test_a_cache_answers_without_a_server(here):
    with ModelServer() as server:
        assert brim(*MAP, "--server", server.url, "--cache", "cache.db", "--trace", "trace.jsonl") == 0
    whole = Path("answers.jsonl").read_bytes()
    assert Path("trace.jsonl").stat().st_size
    Path("answers.jsonl").unlink()
    assert brim(*MAP, "--server", server.url, "--cache", "cache.db", "--cache-mode", "replay") == 0
    assert Path("answers.jsonl").read_bytes() == whole


def test_rows_of_parquet_are_asked_like_those_of_jsonl(here):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"question": ["a", "b"], "raw": [b"\x01", b"\x02"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, "prompts.parquet")
    with ModelServer() as server:
        words = (
            "map",
            "-i",
            "prompts.parquet",
            "-o",
            "answers.jsonl",
            "--prompt-field",
            "question",
            "-m",
            "test",
            "-q",
        )
        assert brim(*words, "--server", server.url) == 0
    assert lines_of("answers.jsonl") == [
        {"question": "a", "raw": "01", "response": "answer to: a"},
        {"question": "b", "raw": "02", "response": "answer to: b"},
    ]


# Bad input: one line, nothing asked, nothing lost.


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        (["--template", "{quest}"], DataError, r'^prompts.jsonl:1: "quest" .* missing .*Did you mean "question"\?'),
        (["--template", "{question"], OptionError, "has a single {"),
        (["--model", "tset"], ModelMissing, r"no server has the model 'tset' \(models: test\). Did you mean test\?"),
        (["--output", "prompts.jsonl"], OptionError, "prompts.jsonl is the input"),
        (["--output", "mine.jsonl"], OptionError, "^will not replace mine.jsonl"),
        (["--output", "answers.csv"], OptionError, r"must end in .jsonl, got answers.csv"),
        (["--output", "no/such/../../prompts.jsonl/x.jsonl"], OptionError, "cannot write"),
        (["--input", "none.jsonl"], DataError, "none.jsonl does not exist"),
        (["--response-field", "question"], DataError, '^prompts.jsonl:1: the row has a field "question" already'),
        (["--temperature", "-1"], OptionError, "temperature must lie between"),
        (["--template-file", "none.txt"], click.UsageError, "exclude each other"),
        (["--cache-mode", "replay"], click.UsageError, "needs --cache FILE"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(here, words, kind, reason):
    Path("mine.jsonl").write_text('{"text": "mine"}\n')
    given = dict(zip(MAP[1:-1:2], MAP[2:-1:2], strict=True))
    given = {
        {"-i": "--input", "-o": "--output", "-m": "--model"}.get(name, name): value for name, value in given.items()
    }
    given |= dict(zip(words[::2], words[1::2], strict=True))
    with ModelServer(models=("test",)) as server:
        with pytest.raises(kind, match=reason):
            brim("map", *(word for pair in given.items() for word in pair), "-q", "--server", server.url)
        assert server.counts.arrived == 0
    assert Path("mine.jsonl").read_text() == '{"text": "mine"}\n'
    assert not Path("answers.jsonl").exists()
    assert not records_path(Path("answers.jsonl")).exists()


def test_a_mistake_in_the_last_row_is_found_before_anything_is_asked(here):
    with open("prompts.jsonl", "a") as file:
        file.write('{"question": null}\n')
    with ModelServer() as server:
        with pytest.raises(DataError, match=r"^prompts.jsonl:21: "):
            brim(*MAP, "--server", server.url)
        assert server.counts.arrived == 0


def test_a_server_that_cannot_be_reached_or_refuses_the_key_ends_the_run(here):
    with ModelServer(require_key="secret") as server:
        with pytest.raises(Rejected, match=r"401|key"):
            brim(*MAP, "--server", server.url)
    with pytest.raises(ServerLost, match="refused"):
        brim(*MAP, "--server", server.url)
    assert sorted(os.listdir()) == ["prompts.jsonl"]


def test_one_of_two_servers_is_enough(here, capsys):
    with ModelServer() as gone:
        pass
    with ModelServer() as server:
        assert brim(*MAP, "--server", gone.url, "--server", server.url) == 0
    assert "a server does not answer, the others are used: " in capsys.readouterr().err
    assert len(lines_of("answers.jsonl")) == 20


def test_other_options_are_refused_by_name_unless_forced(here):
    with ModelServer() as server:
        brim(*MAP, "--server", server.url)
        with pytest.raises(MismatchError, match=r"max_tokens \(None -> 9\).*--force to replace answers.jsonl"):
            brim(*MAP, "--server", server.url, "--max-tokens", 9)
        assert brim(*MAP, "--server", server.url, "--max-tokens", 9, "--force") == 0
        Path("answers.jsonl").write_text(Path("answers.jsonl").read_text().replace("answer", "edited"))
        with pytest.raises(OptionError, match=r"will not replace answers.jsonl"):
            brim(*MAP, "--server", server.url, "--max-tokens", 9)


def test_an_output_that_was_edited_between_two_runs_is_kept(here):
    with ModelServer(answers=answer) as server:
        assert brim(*MAP, "--server", server.url) == 1
        whole = Path("answers.jsonl").read_text()
        Path("answers.jsonl").write_text(whole.replace("question", "edited by hand"))
        with pytest.raises(OptionError, match=r"^will not replace answers.jsonl: "):
            brim(*MAP, "--server", server.url)
        assert "edited by hand" in Path("answers.jsonl").read_text()
        assert brim(*MAP, "--server", server.url, "--force") == 1
        assert Path("answers.jsonl").read_text() == whole
        assert server.counts.arrived == 20 + 2  # the refused run asked nothing, the forced one what had failed


def test_a_run_that_was_killed_while_it_wrote_the_output_is_resumed(here, monkeypatch):
    class KilledError(Exception):
        pass

    def killed(*_, **__):
        raise KilledError

    with ModelServer() as server:
        with monkeypatch.context() as patched:
            patched.setattr("brim.cli.llm.answering.write_failed", killed)
            with pytest.raises(KilledError):
                brim(*MAP, "--server", server.url)
        assert Path("answers.jsonl").exists()
        assert not Path("answers.run.json").exists()
        assert brim(*MAP, "--server", server.url) == 0
        assert server.counts.arrived == 20
    assert sorted(os.listdir()) == ["answers.jsonl", "answers.run.json", "prompts.jsonl"]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_asked(here):
    with ModelServer() as server:
        with pytest.raises(OptionError, match=r"cannot write /proc/answers.jsonl: "):
            brim(*MAP[:3], "-o", "/proc/answers.jsonl", *MAP[5:], "--server", server.url)
        assert server.counts.arrived == 0


def test_servers_lost_in_the_middle_end_the_run_and_the_next_one_resumes(here):
    write_prompts(200)
    server = ModelServer(latency=0.005, slots=4).start()
    stopping = server.counts.served + 40

    def stop_early(call):
        if server.counts.served >= stopping:
            os.kill(os.getpid(), signal.SIGUSR1)
        return "answer"

    server.change(answers=stop_early)
    before = signal.signal(signal.SIGUSR1, lambda *_: server.stop())
    try:
        with pytest.raises(ServerLost, match=r"; \d+ of 200 answers are kept, and the same command resumes"):
            brim(*MAP, "--server", server.url, "--patience", 0.2, "--limit", 4)
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.stop()
    assert not Path("answers.jsonl").exists()
    server.change(answers=lambda call: "answer")
    with server:
        asked = server.counts.arrived
        assert brim(*MAP, "--server", server.url) == 0
        assert server.counts.arrived - asked <= 200 - 40
    assert [line["id"] for line in lines_of("answers.jsonl")] == [f"r{at}" for at in range(200)]


# Killed and resumed, in real processes.

COMMAND = f"from brim.cli.app import run; run('brim', '', {TREE!r})"


def start(*words):
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "llm", *map(str, words)], stdout=pipe, stderr=pipe, text=True
    )


def stored(output):
    """The numbers of the rows whose answers are in a journal."""
    if not records_path(output).exists():
        return set()
    file = RecordFile(output, kinds=(b"H", b"T"))
    found = {int(record.data.split(b"\n")[0]) for record in file.recover() if record.kind == b"T"}
    file.close(keep=True)
    return found


def rows_asked(server, since):
    return [int(request.call.messages[-1]["content"].split()[1]) for request in server.requests[since:]]


def test_killed_ten_times_and_resumed_it_writes_the_same_bytes_and_asks_nothing_again(here):
    write_prompts(ROWS)
    output = Path("answers.jsonl")
    limit = 8
    chance = random.Random(15)
    with ModelServer(Behaviour(latency=Uniform(0.005, 0.02), record=10 * ROWS)) as server:
        words = (*MAP, "--server", server.url, "--limit", limit)
        for _ in range(10):
            before, asked = stored(output), len(server.requests)
            goal = server.counts.served + chance.randint(1, 30)
            process = start(*words)
            while server.counts.served < goal and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            while server.counts.in_flight:  # until the server has noticed
                time.sleep(0.001)
            again = rows_asked(server, asked)
            assert not before & set(again)
            # A reply frees its slot before it is written, so those on their way are in flight, too.
            assert len(again) - len(stored(output) - before) <= 2 * limit
        before, asked = stored(output), len(server.requests)
        process = start(*words)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert sorted(rows_asked(server, asked)) == sorted(set(range(ROWS)) - before)
        resumed = output.read_bytes()
        assert brim("map", "-i", "prompts.jsonl", "-o", "whole.jsonl", *MAP[5:], "--server", server.url) == 0
    assert resumed == Path("whole.jsonl").read_bytes()
    assert not records_path(output).exists()


def test_ctrl_c_keeps_the_answers_and_says_how_to_resume(here):
    write_prompts(ROWS)
    with ModelServer(latency=0.02, slots=4) as server:
        process = start(*MAP, "--server", server.url)
        while server.counts.served < 8 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"{len(stored(Path('answers.jsonl')))} of {ROWS} answers are kept, and the same command resumes\n" in errors


# Vectors.

EMBED = ("embed", "-i", "prompts.jsonl", "--text-field", "question", "-q")


def test_vectors_over_http_and_in_this_process_are_in_order(here):
    with ModelServer(dim=5, embedding=lambda text: np.full(5, int(text.split()[1]), np.float32)) as server:
        assert brim(*EMBED, "-o", "v.npy", "-m", "test", "--server", server.url, "--batch", 3) == 0
        assert max(len(request.call.inputs) for request in server.requests) <= 3
        served = server.counts.arrived
        assert brim(*EMBED, "-o", "v.npy", "-m", "test", "--server", server.url, "--batch", 3) == 0
        assert server.counts.arrived == served
    vectors = np.load("v.npy")
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == list(range(20))
    assert brim(*EMBED, "-o", "h.npy", "-m", "hash") == 0
    from brim.llm.embed import open_embedder

    texts = [line["question"] for line in lines_of("prompts.jsonl")]
    np.testing.assert_array_equal(np.load("h.npy"), open_embedder("hash").encode(texts))


def test_vectors_are_not_written_before_all_are_there_unless_missing_ones_are_allowed(here):
    def embedding(text):
        if text.startswith("question 3 "):
            raise Refusal("too long", 400)
        return np.ones(4, np.float32)

    with ModelServer(embedding=embedding) as server:
        words = (*EMBED, "-o", "v.npy", "-m", "test", "--server", server.url)
        for allowed in ((), ("--allow-missing",)):
            assert brim(*words, *allowed) == 1
            assert Path("v.npy").exists() == bool(allowed)
            assert [line["row"] for line in lines_of("v.npy.failed.jsonl")] == [3]
        assert np.isnan(np.load("v.npy")).any(axis=1).tolist() == [at == 3 for at in range(20)]
        server.change(embedding=lambda text: np.ones(4, np.float32))
        assert brim(*words) == 0
    assert np.load("v.npy").tolist() == [[1.0] * 4] * 20
    assert not Path("v.npy.failed.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-m", "hash", "--rpm", "5"], "--rpm has no effect on a model that runs in this process"),
        (["-m", "x", "--device", "cpu"], "--device has no effect on a model that runs on a server"),
        (["-m", "hash", "--id-field", "id"], "--id-field has no effect on NPY"),
        (["-m", "hash-0"], "hash-0"),
    ],
)
def test_options_without_an_effect_on_vectors_are_refused(here, words, reason):
    with pytest.raises((click.UsageError, BrimError), match=reason):
        brim(*EMBED, "-o", "v.npy", *words)
