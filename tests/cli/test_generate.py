"""`brim generate`: what it writes, killed and resumed, on two ranks, from a server, and with bad input."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from rich.console import Console
from support.forked import Command, run_command

from brim.cli import TREE
from brim.cli.app import Group
from brim.cli.generate.progress import Tally
from brim.cli.llm.progress import shown
from brim.core.errors import BrimError, DataError, MismatchError, MissingExtraError, OptionError
from brim.core.fill import Fill
from brim.core.records import records_path
from brim.generate.config import GenerationConfig
from brim.generate.output.journal import ResponseJournal
from brim.llm.testing import ModelServer, Refusal

pytestmark = pytest.mark.torch  # the command imports it

SMALL = ("generate", "-m", "tiny", "-p", "prompts.jsonl", "-q", "--threads", 1)
SHORT = (*SMALL, "-G", 3, "--max-new-tokens", 6, "-o", "out.jsonl")
THREE = ("--gen-batch-size", 3)


def brim(*words):
    """Run a command in this process and return its exit status."""
    return Group("brim", "", TREE).main([str(word) for word in words], prog_name="brim", standalone_mode=False) or 0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with prompts.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_prompts(5)
    return tmp_path


def write_prompts(count, path="prompts.jsonl"):
    rows = ({"prompt": "x" * (7 * at % 11) + f" {at} + 1 =", "answer": at + 1, "stop": "\n"} for at in range(count))
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines_of(path="out.jsonl"):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def pairs(prompts, samples):
    """The answer to each prompt of `write_prompts`, and the number of the sample, in order."""
    return [(str(at + 1), sample) for at in range(prompts) for sample in range(samples)]


def test_every_prompt_gets_its_responses_in_order_and_a_second_start_finds_nothing_missing(here, capsys):
    assert brim(*SHORT) == 0
    lines = lines_of()
    assert [(line["answer"], line["sample"]) for line in lines] == [
        (str(at + 1), g) for at in range(5) for g in range(3)
    ]
    assert {line["finish_reason"] for line in lines} <= {"eos", "stop", "length"}
    assert all(1 <= line["tokens"] <= 6 for line in lines)
    assert "logprob" not in lines[0]  # they were not asked for
    assert {line["score"] for line in lines} <= {0.0, 1.0}
    told = capsys.readouterr()
    assert "out.jsonl" in told.out
    assert "pass rate" in told.out
    assert sorted(os.listdir()) == ["out.jsonl", "out.run.json", "prompts.jsonl"]
    before = Path("out.jsonl").stat()
    assert brim(*SHORT, "--json") == 0
    told = capsys.readouterr()
    assert "nothing is missing in out.jsonl" in told.err
    facts = json.loads(told.out)
    assert (facts["responses"], facts["resumed"], facts["failed"]) == (15, 15, 0)
    assert facts["tokens"] == sum(line["tokens"] for line in lines)
    assert sum(facts["finish_reasons"].values()) == 15
    assert Path("out.jsonl").stat() == before


def test_the_figures_are_those_of_the_lines(here, capsys):
    assert brim(*SHORT, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    lines = lines_of()
    assert facts["tokens"] == sum(line["tokens"] for line in lines)
    assert facts["mean_length"] == pytest.approx(facts["tokens"] / 15)
    assert facts["checked"] == 15
    assert facts["pass_rate"] == sum(line["score"] for line in lines) / 15
    assert facts["seconds"] > 0
    assert facts["tokens_per_second"] == pytest.approx(facts["tokens"] / facts["seconds"], rel=0.05)
    assert facts["resumed"] == 0


def test_the_responses_are_those_of_the_processor_at_any_batch_size(here):
    from brim.generate.processor import SequenceProcessor
    from brim.train.config import CausalConfig
    from brim.train.model import find_tokenizer, load_model

    config = CausalConfig(model="tiny", output="unused")
    tokenizer = find_tokenizer(config, None)
    processor = SequenceProcessor(
        load_model(config, tokenizer), tokenizer, GenerationConfig(max_new_tokens=6, seed=0, stop=("\n",), top_p=0.8)
    )
    prompts = [line["prompt"] for line in lines_of("prompts.jsonl")]
    expected = {(one.prompt, one.sample): one for one in processor.stream(prompts, 3)}
    for size in (1, 4):
        assert brim(*SHORT, "--logprobs", "--top-p", 0.8, "--gen-batch-size", size) == 0
        for at, line in enumerate(lines_of()):
            response = expected[divmod(at, 3)]
            assert line["token_ids"] == response.token_ids.tolist()
            assert line["prompt_ids"] == list(line["prompt"].encode())
            assert (line["response"], line["finish_reason"]) == (response.text, response.finish_reason)
            for name in ("logprobs", "sampling_logprobs", "entropies"):
                np.testing.assert_allclose(line[name], getattr(response, name), atol=1e-5)
            assert line["logprob"] == pytest.approx(sum(line["logprobs"]), abs=1e-4)
            assert line["entropy"] == pytest.approx(np.mean(line["entropies"]), abs=1e-4)
        Path("out.jsonl").rename(f"{size}.jsonl")
    assert Path("1.jsonl").read_bytes() == Path("4.jsonl").read_bytes()


def test_a_data_set_is_drawn_by_the_seed_and_its_stops_end_responses(here):
    words = ("generate", "-m", "tiny", "--dataset", "arithmetic", "--split", "test", "--num-prompts", 4, "-G", 2, "-q")
    words = (*words, "--max-new-tokens", 4, "--threads", 1)
    assert brim(*words, "-o", "a.jsonl") == brim(*words, "-o", "b.jsonl") == 0
    assert brim(*words, "-o", "c.jsonl", "--seed", 1) == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()
    assert {line["id"] for line in lines_of("a.jsonl")} != {line["id"] for line in lines_of("c.jsonl")}
    assert len({line["id"] for line in lines_of("a.jsonl")}) == 4
    assert json.loads(Path("a.run.json").read_text())["options"]["stop"] == ["\n"]


def test_options_reach_the_generation(here, monkeypatch):
    class Reached(Exception):  # noqa: N818
        pass

    def processor(model, tokenizer, config):
        raise Reached(config)

    monkeypatch.setattr("brim.generate.processor.SequenceProcessor", processor)
    words = "--temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --seed 3 --gen-batch-size auto --gen-token-budget 999 "
    words += "--memory-budget 1000000 --stop END --stop . --stop-token 7"
    with pytest.raises(Reached) as reached:
        brim(*SHORT, *words.split())
    expected = GenerationConfig(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=3,
        gen_batch_size="auto",
        gen_token_budget=999,
        memory_budget=1_000_000,
        max_new_tokens=6,
        stop=("END", ".", 7),
    )
    assert reached.value.args == (expected,)
    with pytest.raises(Reached) as reached:
        brim(*SHORT, "--greedy")
    assert reached.value.args == (GenerationConfig(do_sample=False, seed=0, max_new_tokens=6, stop=("\n",)),)


def test_weights_are_in_float32_or_on_request_in_bfloat16(here, monkeypatch):
    from brim.generate.processor import SequenceProcessor

    types = []

    def processor(model, tokenizer, config):
        types.append(str(model.dtype))
        return SequenceProcessor(model, tokenizer, config)

    monkeypatch.setattr("brim.generate.processor.SequenceProcessor", processor)
    assert brim(*SHORT, "--logprobs") == 0
    exact = lines_of()
    with pytest.raises(MismatchError, match=r"bf16 \(False -> True\)"):
        brim(*SHORT, "--logprobs", "--bf16")
    assert brim(*SHORT, "--logprobs", "--bf16", "--force") == 0
    assert types == ["torch.float32", "torch.bfloat16"]
    assert exact != lines_of()


def test_progress_says_how_far_how_fast_and_how_full():
    tally = Tally(total=96, before=12, started=time.monotonic() - 10)
    tally.decoding = lambda: SimpleNamespace(tokens=15_000, live=32, fill=Fill(97, 100))
    for _ in range(21):
        tally.add({"finish_reason": "eos", "tokens": 9})
    line = "33/96 responses, 1.5k tokens/s, 32 live rows, fill 97%, ETA 0:30"
    assert tally.line() == line
    with Console(width=80).capture() as captured:
        Console(width=80, file=None).print(shown(tally, None))
    assert len(line) < 80, captured
    tally.name = "rank 0 of 8: "
    assert tally.line().startswith("rank 0 of 8: 33/96 responses, ")


def test_a_tenth_of_the_work_is_told_where_there_is_no_terminal(here, capsys):
    assert brim(*(word for word in SHORT if word != "-q")) == 0
    assert "15/15 responses, " in capsys.readouterr().err


def test_the_command_is_described_without_heavy_imports():
    code = "import sys, brim.cli.generate.command; print({'torch', 'transformers', 'aiohttp'} & {*sys.modules} or '')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


# The report, and Weights & Biases.


def test_a_report_is_written_with_the_output_or_later_about_it(here, capsys):
    assert brim(*SHORT, "--report", "page.html") == 0
    page = Path("page.html").read_text()
    assert page.startswith("<!")
    capsys.readouterr()
    Path("page.html").unlink()
    assert brim("generate", "--report", "page.html", "-o", "out.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"written": "page.html"}
    assert Path("page.html").read_text() == page
    Path("mine.html").write_text("<p>mine</p>")
    with pytest.raises(OptionError, match=r"will not replace mine.html: it is not a report"):
        brim("generate", "--report", "mine.html", "-o", "out.jsonl")
    with pytest.raises(OptionError, match=r"must end in .html, got page.txt"):
        brim("generate", "--report", "page.txt", "-o", "out.jsonl")
    with pytest.raises(DataError, match=r"none.jsonl does not exist; generate it first"):
        brim("generate", "--report", "page.html", "-o", "none.jsonl")


def test_curves_go_to_wandb_only_if_asked_for(here, monkeypatch):
    logged = []
    asked = []
    run = SimpleNamespace(
        log=lambda point, step: logged.append((step, point)), finish=lambda exit_code=0: logged.append(exit_code)
    )

    def init(**options):
        asked.append(options)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setattr("brim.cli.generate.curves.EVERY", 0)
    assert brim(*SHORT) == 0
    assert asked == []
    assert brim(*SHORT[:-1], "other.jsonl", "--wandb", "my-project") == 0
    assert asked[0]["project"] == "my-project"
    assert asked[0]["config"]["samples"] == 3
    assert logged[-1] == 0
    step, last = logged[-2]
    assert step == last["responses"] == 15
    assert [step for step, _ in logged[:-2]] == list(range(1, 16))
    assert last.keys() >= {"tokens_per_second", "live_rows", "mean_length", "entropy", "pass_rate", "fill"}
    assert sum(count for name, count in last.items() if name.startswith("finish_reason/")) == 15


def test_without_wandb_the_message_says_what_to_install(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="run: pip install wandb"):
        brim(*SHORT, "--wandb", "my-project")
    assert os.listdir() == ["prompts.jsonl"]


# Killed and resumed, in real processes.


def forked(*words, **environment):
    return Command(["brim", *map(str, words)], Path.cwd(), **environment)


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def wait_until_grown(commands, journal, goal):
    while size_of(journal) <= goal and all(command.process.is_alive() for command in commands):
        time.sleep(0.0005)


def kill(*commands):
    for command in commands:
        command.process.kill()
    return [command.wait().returncode for command in commands]


LONGER = (*SMALL, "-G", 3, "--max-new-tokens", 12, *THREE, "--temperature", 0.9, "--logprobs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The output of `LONGER` for 10 prompts, never interrupted."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("whole"))
        write_prompts(10)
        assert brim(*LONGER, "-o", "whole.jsonl") == 0
        return Path("whole.jsonl").read_bytes()


def test_killed_at_random_moments_and_resumed_it_writes_the_same_bytes_and_generates_nothing_again(here, whole):
    write_prompts(10)
    chance = random.Random(17)
    journal = records_path(Path("out.jsonl"))
    for _ in range(3):
        command = forked(*LONGER, "-o", "out.jsonl")
        wait_until_grown([command], journal, size_of(journal) + chance.randint(300, 2000))
        assert kill(command) == [-signal.SIGKILL]
    assert journal.exists()
    assert not Path("out.jsonl").exists()
    done = run_command(["brim", *map(str, LONGER), "-o", "out.jsonl", "--json"], here)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert f"resuming: {facts['resumed']} of 30 responses are finished already" in done.stderr
    assert 3 <= facts["resumed"] < 30
    assert Path("out.jsonl").read_bytes() == whole
    assert sorted(os.listdir()) == ["out.jsonl", "out.run.json", "prompts.jsonl"]


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_resume(here):
    write_prompts(40)
    command = forked(*LONGER, "-o", "out.jsonl")
    wait_until_grown([command], records_path(Path("out.jsonl")), 5000)
    os.kill(command.process.pid, signal.SIGINT)
    done = command.wait()
    assert done.returncode == 130
    kept = records_path(Path("out.jsonl")).read_bytes().count(b'"finish_reason"')
    assert f"{kept} of 120 responses are kept, and the same command resumes\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupted_with_several_responses_in_a_batch_it_generates_the_same_responses(here, monkeypatch, capsys):
    words = (*SHORT, "--logprobs", "--gen-batch-size", 4)
    assert brim(*words[:-4], "whole.jsonl", *words[-3:]) == 0
    append = ResponseJournal.append_fields
    left = [7]

    def interrupted(self, *response):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, *response)

    with monkeypatch.context() as patched:
        patched.setattr(ResponseJournal, "append_fields", interrupted)
        with pytest.raises((KeyboardInterrupt, click.Abort)):
            brim(*words)
    assert "7 of 15 responses are kept, and the same command resumes\n" in capsys.readouterr().err
    assert brim(*words) == 0
    assert "resuming: 7 of 15 responses are finished already" in capsys.readouterr().err
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_a_run_that_was_killed_while_it_wrote_the_output_is_resumed(here, monkeypatch):
    class KilledError(Exception):
        pass

    def killed(*_, **__):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("brim.cli.generate.run.write_failed", killed)
        with pytest.raises(KilledError):
            brim(*SHORT)
    assert Path("out.jsonl").exists()
    assert not Path("out.run.json").exists()
    whole = Path("out.jsonl").read_bytes()
    # The model is not even loaded.
    monkeypatch.setattr("brim.train.model.load_model", killed)
    assert brim(*SHORT) == 0
    assert Path("out.jsonl").read_bytes() == whole
    assert sorted(os.listdir()) == ["out.jsonl", "out.run.json", "prompts.jsonl"]


def test_a_full_disk_ends_with_one_line_and_what_is_finished_is_kept(here, whole):
    write_prompts(10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
    try:
        with pytest.raises(
            OptionError, match=r"^cannot write out.jsonl: File too large; (\d+) of 30 responses are kept, and the same"
        ) as caught:
            brim(*LONGER, "-o", "out.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert brim(*LONGER, "-o", "out.jsonl") == 0
    assert Path("out.jsonl").read_bytes() == whole


def test_other_options_are_refused_by_name_unless_forced(here):
    assert brim(*SHORT) == 0
    with pytest.raises(MismatchError, match=r"temperature \(1.0 -> 0.5\).*--force to replace out.jsonl") as caught:
        brim(*SHORT, "--temperature", 0.5)
    assert "\n" not in str(caught.value)
    write_prompts(6)
    with pytest.raises(MismatchError, match=r"prompts \(.*\)"):
        brim(*SHORT)
    assert brim(*SHORT, "--temperature", 0.5, "--force") == 0
    assert len(lines_of()) == 18
    Path("out.jsonl").write_text("mine\n")
    with pytest.raises(OptionError, match=r"^will not replace out.jsonl: "):
        brim(*SHORT, "--temperature", 0.5)
    assert Path("out.jsonl").read_text() == "mine\n"
    assert brim(*SHORT, "--temperature", 0.5, "--force") == 0
    assert len(lines_of()) == 18


def test_batch_sizes_may_change_when_a_run_is_resumed_and_log_probs_may_not(here, monkeypatch):
    class KilledError(Exception):
        pass

    def killed(*_, **__):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("brim.cli.generate.run.write_responses", killed)
        with pytest.raises(KilledError):
            brim(*SHORT)
    with pytest.raises(MismatchError, match=r"logprobs \(False -> True\)"):
        brim(*SHORT, "--logprobs")
    assert brim(*SHORT, "--gen-batch-size", 2, "--gen-token-budget", 500) == 0
    assert len(lines_of()) == 15


# Ranks.


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def ranks_of(*words):
    """Start two ranks under torchrun's variables."""
    port = str(free_port())
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [forked(*words, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(2)]


def test_two_ranks_under_torchrun_write_the_bytes_of_one_process(here):
    write_prompts(7)
    words = [str(word) for word in (*SHORT[:-2], *THREE, "--logprobs")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launcher += ["--master-port", str(free_port()), "-m", "brim", *words, "-o", "two.jsonl", "--json"]
    done = subprocess.run(launcher, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads(done.stdout)
    assert brim(*words, "-o", "one.jsonl") == 0
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert (facts["responses"], facts["resumed"]) == (21, 0)
    assert facts["tokens_per_second"] == pytest.approx(facts["tokens"] / facts["seconds"], rel=0.05)  # of both ranks
    assert sorted(os.listdir()) == ["one.jsonl", "one.run.json", "prompts.jsonl", "two.jsonl", "two.run.json"]


def test_killed_on_two_ranks_it_is_resumed_on_one(here, whole):
    write_prompts(10)
    ranks = ranks_of(*LONGER, "-o", "out.jsonl")
    wait_until_grown(ranks, Path(".out.jsonl.rank1.journal"), 2000)
    wait_until_grown(ranks, records_path(Path("out.jsonl")), 2000)
    assert kill(*ranks) == [-signal.SIGKILL] * 2
    assert Path(".out.jsonl.rank1.journal").exists()
    done = run_command(["brim", *map(str, LONGER), "-o", "out.jsonl", "--json"], here)
    assert done.returncode == 0, done.stderr
    assert 2 <= json.loads(done.stdout)["resumed"] < 30
    assert Path("out.jsonl").read_bytes() == whole
    assert sorted(os.listdir()) == ["out.jsonl", "out.run.json", "prompts.jsonl"]


def test_what_one_rank_cannot_do_ends_all_of_them(here):
    Path("out.jsonl").write_text("mine\n")
    told = [command.wait() for command in ranks_of(*SHORT)]
    assert [done.returncode for done in told] == [2, 2]
    assert all("will not replace out.jsonl" in done.stderr for done in told)
    assert Path("out.jsonl").read_text() == "mine\n"


# A server instead of a model of this machine.

SERVED = ("generate", "-m", "test", "-p", "prompts.jsonl", "-G", 2, "--max-new-tokens", 16, "-o", "out.jsonl", "-q")


def test_a_server_generates_and_failed_responses_are_asked_for_again(here, capsys):
    def answer(call):
        if call.prompt.endswith(" 3 + 1 ="):
            raise Refusal("the prompt is too long", 400)
        return "4"

    with ModelServer(answers=answer) as server:
        words = (*SERVED, "--server", server.url + "/v1")
        assert brim(*words, "--json") == 1
        facts = json.loads(capsys.readouterr().out)
        assert (facts["responses"], facts["failed"], facts["failed_responses"]) == (8, 2, "out.failed.jsonl")
        failed = lines_of("out.failed.jsonl")
        assert [(line["row"], line["sample"], line["failure"]["type"]) for line in failed] == [
            (3, 0, "Rejected"),
            (3, 1, "Rejected"),
        ]
        assert len(lines_of()) == 8
        asked = server.counts.arrived
        server.change(answers=lambda call: "4")
        assert brim(*words) == 0
        assert server.counts.arrived == asked + 2
    lines = lines_of()
    assert [(line["answer"], line["sample"]) for line in lines] == [
        (str(at + 1), g) for at in range(5) for g in range(2)
    ]
    assert [line["score"] for line in lines] == [float(line["answer"] == "4") for line in lines]
    assert sorted(os.listdir()) == ["out.jsonl", "out.run.json", "prompts.jsonl"]


def test_a_server_is_asked_with_these_options_and_tells_log_probs(here):
    with ModelServer() as server:
        words = "--temperature 0.5 --top-k 3 --seed 7 --stop END --limit 2 --logprobs --chat"
        assert brim(*SERVED, "--server", server.url + "/v1", *words.split()) == 0
        call = server.requests[-1].call
        assert server.counts.max_in_flight <= 2
    assert call.messages[-1]["role"] == "user"
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.max_tokens) == (0.5, 3, 16)
    assert call.sampling.stop == ("END",)
    assert call.sampling.logprobs
    line = lines_of()[0]
    assert line["prompt"] == [{"role": "user", "content": lines_of("prompts.jsonl")[0]["prompt"]}]
    options = json.loads(Path("out.run.json").read_text())["options"]
    assert options["server_logprobs"] is True


def test_log_probs_of_a_server_cannot_be_added_when_a_run_is_resumed(here):
    with ModelServer() as server:
        assert brim(*SERVED, "--server", server.url + "/v1") == 0
        with pytest.raises(MismatchError, match=r"server_logprobs \(False -> True\)"):
            brim(*SERVED, "--server", server.url + "/v1", "--logprobs")


def test_a_server_that_does_not_answer_or_has_another_model_ends_the_run(here):
    with ModelServer(models=("test",)) as server:
        with pytest.raises(BrimError, match=r"no server has the model 'tset' .*Did you mean test\?"):
            brim(*("tset" if word == "test" else word for word in SERVED), "--server", server.url + "/v1")
    with pytest.raises(BrimError, match="refused"):
        brim(*SERVED, "--server", server.url)
    assert os.listdir() == ["prompts.jsonl"]


def test_texts_and_conversations_are_not_sent_to_a_server_in_one_run(here):
    Path("prompts.jsonl").write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    with ModelServer() as server:
        with pytest.raises(OptionError, match=r"1 of 2 prompts are conversations.*pass --chat"):
            brim(*SERVED, "--server", server.url + "/v1")
        assert brim(*SERVED, "--server", server.url + "/v1", "--chat") == 0
    assert len(lines_of()) == 4


# Bad input: one line, and nothing is left behind.


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        ("-m tiny -o out.jsonl", click.UsageError, "there are no prompts: give -p FILE or --dataset NAME"),
        ("-p prompts.jsonl -o out.jsonl", click.UsageError, "-m MODEL is missing"),
        ("-m tiny -p prompts.jsonl", click.UsageError, "-o FILE is missing"),
        ("-m tiny -p prompts.jsonl --dataset arithmetic -o out.jsonl", click.UsageError, "-p and --dataset exclude"),
        ("-m tiny -p prompts.jsonl -G 0 -o out.jsonl", OptionError, "G must be at least 1, got 0"),
        ("-m tiny -p prompts.jsonl --max-new-tokens 0 -o out.jsonl", OptionError, "max_new_tokens must be at least 1"),
        ("-m tiny -p prompts.jsonl --temperature -1 -o out.jsonl", OptionError, "temperature must not be negative"),
        ("-m tiny -p prompts.jsonl --gen-batch-size many -o out.jsonl", click.UsageError, "neither a number nor auto"),
        ("-m tiny -p prompts.jsonl --gen-batch-size 0 -o out.jsonl", OptionError, "gen_batch_size must be at least 1"),
        ("-m tiny -p prompts.jsonl --threads 0 -o out.jsonl", OptionError, "threads must be at least 1, got 0"),
        (
            "-m tiny -p prompts.jsonl --seed -1 -o out.jsonl",
            OptionError,
            "seed must be an integer that is not negative",
        ),
        ("-m tiny -p prompts.jsonl --stop-token 999 -o out.jsonl", OptionError, "999 is not the id of a token"),
        ("-m tiny -p prompts.jsonl --chat -o out.jsonl", OptionError, "the byte tokenizer has no chat template"),
        ("-m tiny -p prompts.jsonl --num-prompts 3 -o out.jsonl", click.UsageError, "no effect without --dataset"),
        ("-m tiny -p prompts.jsonl --limit 3 -o out.jsonl", click.UsageError, "--limit has no effect without --server"),
        ("-m a -p prompts.jsonl --threads 2 --server x -o o.jsonl", click.UsageError, "no effect with --server"),
        ("-m tiny -p prompts.jsonl --greedy --top-k 3 -o out.jsonl", click.UsageError, "no effect with --greedy"),
        (
            "-m tiny --dataset arithmetic --num-prompts 201 --split test -o out.jsonl",
            OptionError,
            "has 200; ask",
        ),
        ("-m tiny --dataset arithmetik -o out.jsonl", OptionError, 'unknown data set .*Did you mean "arithmetic"'),
        (
            "-m no/such/model -p prompts.jsonl -o out.jsonl",
            OptionError,
            "no/such/model is neither a directory",
        ),
        ("-m tiny -p none.jsonl -o out.jsonl", DataError, "^none.jsonl does not exist"),
        ("-m tiny -p empty.jsonl -o out.jsonl", DataError, "^empty.jsonl .*(no rows|empty)"),
        ("-m tiny -p torn.jsonl -o out.jsonl", DataError, "^torn.jsonl:2: "),
        (
            "-m tiny -p wrong.jsonl -o out.jsonl",
            DataError,
            r'^wrong.jsonl:2: "prompt", "question" or .* is missing',
        ),
        ("-m tiny -p prompts.jsonl -o prompts.jsonl", OptionError, "prompts.jsonl is the input"),
        ("-m tiny -p prompts.jsonl -o out.csv", OptionError, "must end in .jsonl, got out.csv"),
        ("-m tiny -p prompts.jsonl -o mine.jsonl", OptionError, "^will not replace mine.jsonl"),
        ("-m tiny -p prompts.jsonl -o prompts.jsonl/out.jsonl", OptionError, "^cannot write prompts.jsonl/out.jsonl: "),
        ("-m tiny -p prompts.jsonl -o /proc/out.jsonl", OptionError, "^cannot write /proc/out.jsonl: "),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_left_behind(here, words, kind, reason):
    Path("mine.jsonl").write_text('{"text": "mine"}\n')
    Path("empty.jsonl").write_text("")
    Path("torn.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b')
    Path("wrong.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    before = sorted(os.listdir())
    with pytest.raises(kind, match=reason) as caught:
        brim("generate", *words.split(), "-q")
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir()) == before


def test_a_prompt_that_fills_the_context_is_named_and_nothing_is_left_behind(here):
    Path("prompts.jsonl").write_text(json.dumps({"prompt": "x" * 9000}) + "\n")
    with pytest.raises(BrimError, match=r"prompt 0 has 9000 tokens, the model's context is 8192"):
        brim(*SHORT)
    assert os.listdir() == ["prompts.jsonl"]


def test_the_command_ends_with_2_and_one_line(here):
    done = run_command(["brim", *("none.jsonl" if word == "prompts.jsonl" else str(word) for word in SHORT)], here)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "DataError: none.jsonl does not exist\n")
