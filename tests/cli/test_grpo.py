"""`brim train grpo` and `brim train report` in real processes."""

import json
import os
import signal
import time

import pytest
from support.forked import Command, run

pytestmark = [pytest.mark.torch, pytest.mark.slow]

REWARD = """
def ascii(prompt, response, example):
    return sum(ord(letter) < 128 for letter in response) / max(len(response), 1)
"""
SHORT = (
    "--max-steps 2 --prompts-per-step 2 -g 3 --max-new-tokens 5 --train-truncated --eval-prompts 3 --lr 1e-3 "
    "--no-tensorboard"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A directory with a small model, a reward, prompts, and a run on them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from brim.data.tokenizer.base import ByteTokenizer
    from brim.train.model import save_tokenizer

    folder = tmp_path_factory.mktemp("grpo")
    shape = LlamaConfig(
        vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    save_tokenizer(ByteTokenizer(), folder / "model")
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"{n} + 1 =", "answer": n + 1} for n in range(8)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(f"brim train grpo -m model -d arithmetic --reward reward.py:ascii {SHORT} -o first", folder)
    return folder


def test_a_run_prints_its_figures_and_leaves_a_model_and_a_page(here):
    done = run(f"brim train grpo -m model -d arithmetic --reward reward.py:ascii {SHORT} --json -o out", here)
    facts = json.loads(done.stdout)
    assert facts["steps"] == facts["taken_now"] == 2
    assert facts["held_out_tasks"] == 3
    assert facts["attempts"] >= 2 * 2 * 3
    assert (here / "out/model/model.safetensors").exists()
    page = (here / "out/report.html").read_text()
    assert page.startswith("<!")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert done.stderr.count("\n") < 40


def test_a_finished_run_that_is_resumed_says_so_and_more_steps_can_be_asked_for(here):
    again = run("brim train grpo --resume first", here)
    assert "all 2 steps were taken before" in again.stderr
    more = json.loads(run("brim train grpo --resume first --max-steps 3 --json", here).stdout)
    assert (more["steps"], more["taken_now"]) == (3, 1)


def test_prompts_of_a_file_are_trained_on_without_evaluation(here):
    done = run(f"brim train grpo -m model -d tasks.jsonl --reward reward.py:ascii {SHORT} -o file", here)
    assert "no held-out prompts" in done.stderr
    assert "held-out reward" not in done.stdout


def test_a_signal_stops_a_run_with_a_checkpoint_and_exit_status_1(here):
    longer = SHORT.replace("--max-steps 2", "--max-steps 5000")
    line = f"brim train grpo -m model -d arithmetic --reward reward.py:ascii {longer} -o stopped"
    command = Command(line.split(), here)
    deadline = time.monotonic() + 120
    log = here / "stopped/log.jsonl"
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.02)

    os.kill(command.process.pid, signal.SIGTERM)
    done = command.wait()
    assert done.returncode == 1, done.stderr
    assert "continue with: brim train grpo --resume stopped" in done.stderr
    assert list((here / "stopped").glob("checkpoint-*"))


def test_several_runs_are_compared_on_one_page(here):
    run(f"brim train grpo -m model -d arithmetic --reward reward.py:ascii {SHORT} --seed 7 -o second", here)
    run("brim train report first second -o both.html", here)
    text = (here / "both.html").read_text()
    assert "first" in text
    assert "second" in text
    missing = run("brim train report nowhere", here, status=2)
    assert missing.stderr.count("\n") == 1


REFUSED = [
    ("", "name a model"),
    ("-m model", "name a data set"),
    ("-m model -d arithmetic -g 1", "group_size must be at least 2"),
    ("-m model -d aritmetic", "Did you mean"),
    ("-m nowhere -d arithmetic", "nowhere"),
    ("-m model -d arithmetic --reward nowhere:score", "nowhere"),
    ("-m model -d arithmetic --reward reward.py:asci", "Did you mean"),
    ("-m model -d arithmetic --reward 0*answer", "weight"),
    ("-m model -d arithmetic --games lights", "dataset or gym"),
    ("-m model --games lights --gym-port 1 --max-steps 1", "1"),
    ("-m model -d arithmetic --reference other", "kl_coef"),
    ("-m model -d arithmetic --judge-server http://127.0.0.1:1", "judge"),
    ("--resume nowhere", "nowhere"),
    ("-m model -d arithmetic --fsdp", "torchrun"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line or "nothing" for line, _ in REFUSED])
def test_what_cannot_work_is_refused_in_one_line_and_writes_nothing(here, line, message):
    done = run(f"brim train grpo {line} -q" + ("" if "--resume" in line else " -o refused"), here, status=2)
    assert message in done.stderr
    said = [one for one in done.stderr.splitlines() if not one.startswith(("Usage:", "Try "))]
    assert len([one for one in said if one.strip()]) == 1, done.stderr
    assert not (here / "refused").exists()


def test_help_shows_the_ten_options_that_matter_first(here):
    text = run("brim train grpo --help", here).stdout
    first = text[text.index("Main options:") : text.index("Rollouts:")]
    assert sum(line.startswith("  -") for line in first.splitlines()) == 10


def test_worked_solutions_of_a_data_set_are_written_once_and_not_over_other_files(here):
    run("brim sample-data --dataset arithmetic -o worked.jsonl", here)
    rows = [json.loads(line) for line in (here / "worked.jsonl").read_text().splitlines()]
    assert len(rows) == 2000
    assert rows[0]["text"].endswith("\n")
    run("brim sample-data --dataset arithmetic -o worked.jsonl", here)
    refused = run("brim sample-data --dataset arithmetic -o tasks.jsonl", here, status=2)
    assert "--force" in refused.stderr
    assert "leave out -n" in run("brim sample-data --dataset arithmetic -n 5 -o x.jsonl", here, status=2).stderr
