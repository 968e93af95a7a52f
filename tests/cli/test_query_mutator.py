"""`brim train query-mutator` as it is typed."""

import json
import os
import re
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from support.forked import run_command
from support.terminals import read_to_end

from brim.cli.llm.progress import shown
from brim.cli.train.query_mutator import ENVIRONMENT, PPO, RENAMED, REWARDS, query_mutator
from brim.cli.train.query_progress import Running
from brim.envs.query.config import QueryConfig
from brim.envs.query.rewards import REWARDS as ALL_REWARDS
from brim.envs.query.scripted import scripted_answer
from brim.llm.testing import ModelServer
from brim.train.ppo.config import PpoConfig
from brim.train.query.config import QueryMutatorConfig
from brim.train.query.report import UpdateReport

pytestmark = pytest.mark.torch  # the command imports it

SHORT = "--num-processes 4 --num-steps 4 --num-env-steps 32 --num-mini-batch 2 --ppo-epoch 1 --eval-questions 4"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return tmp_path_factory.mktemp("desk")


@pytest.fixture(scope="module")
def server():
    with ModelServer(answers=scripted_answer, models=("scripted", "other")) as running:
        yield running


def brim(folder, line):
    return run_command(["brim", "train", "query-mutator", *line.split()], folder)


def test_it_trains_without_a_server_says_so_and_writes_a_page(desk):
    done = brim(desk, f"{SHORT} -o alone --no-tensorboard")
    assert done.returncode == 0, done.stderr
    assert "no server is named, so a scripted model in this process answers; it is no language model" in done.stderr
    assert re.search(r"update 2/2, [\d.]+ steps/s, reward [\d.]+, 0.0% invalid", done.stderr)
    assert "alone/report.html" in done.stdout
    assert (desk / "alone" / "report.html").exists()
    again = brim(desk, "--resume alone")
    assert "this run is finished: all 2 updates were made before" in again.stderr
    longer = brim(desk, "--resume alone --num-env-steps 48 --json -q")
    assert (longer.returncode, longer.stderr) == (0, "")
    assert json.loads(longer.stdout)["updates"] == 3
    assert json.loads(longer.stdout)["updates_now"] == 1


def test_a_real_server_is_asked_and_an_option_that_would_change_the_run_is_refused(desk, server):
    line = f"--server {server.url} -m scripted {SHORT} -o asked --no-tensorboard --json -q"
    done = brim(desk, line)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["calls"] == 64
    assert (facts["invalid"], facts["questions_compared"]) == (0, 4)
    for option in ("-m other", "--gamma 0.5", "--reward exact", "--seed 1", "--num-processes 2"):
        refused = brim(desk, f"--resume asked {option}")
        assert refused.returncode == 2
        assert re.match(r"resuming|MismatchError: these options cannot change when a run is resumed: ", refused.stderr)
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-mini-batch 1000", "num_mini_batch must be at most 512"),
        ("-d questions.jsonl", "data needs a server"),
        ("--mutators rephrase,shortn", 'Did you mean "shorten"'),
        ("--reward best", "Invalid value for '--reward'"),
        ("--resume nowhere", "nowhere does not exist, so there is nothing to resume"),
        ("--server http://127.0.0.1:9", "connection refused"),
        ("--mutators ./template.txt", "does not contain {query}"),
    ],
)
def test_a_mistake_is_one_clear_line(desk, line, message):
    (desk / "template.txt").write_text("# Says nothing of the query.\nRewrite it.\n")
    done = brim(desk, f"{line} -o mistake")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (desk / "mistake" / "run.json").exists()


def test_after_a_wrong_address_and_a_wrong_file_the_same_output_can_be_used(desk, server):
    wrong = brim(desk, f"{SHORT} --server http://127.0.0.1:9 -m scripted -o corrected --no-tensorboard")
    assert wrong.returncode == 2
    assert "connection refused" in wrong.stderr
    missing = brim(desk, f"{SHORT} --server {server.url} -m scripted -d missing.jsonl -o corrected --no-tensorboard")
    assert "missing.jsonl does not exist" in missing.stderr
    right = brim(desk, f"{SHORT} -o corrected --no-tensorboard")
    assert right.returncode == 0, right.stderr
    (desk / "theirs").mkdir()
    (desk / "theirs" / "updates.jsonl").write_text("a file of somebody else\n")
    refused = brim(desk, f"{SHORT} -o theirs --no-tensorboard")
    assert refused.returncode == 2
    assert "updates.jsonl is not a file of a query-mutator run, and would be overwritten" in refused.stderr


def test_rows_without_references_and_a_single_question_are_refused_by_name(desk, server):
    (desk / "open.jsonl").write_text('{"question": "Why?"}\n{"question": "What for?"}\n')
    (desk / "one.jsonl").write_text('{"question": "2 + 2?", "reference": 4}\n')
    done = brim(desk, f"--server {server.url} -m scripted -d open.jsonl --reward exact -o refused")
    assert done.returncode == 2
    assert "reference" in done.stderr.splitlines()[-1]
    done = brim(desk, f"--server {server.url} -m scripted -d one.jsonl -o refused")
    assert done.returncode == 2
    assert "crossover" in done.stderr.splitlines()[-1]


def test_the_defaults_in_the_help_are_those_of_the_options():
    config = QueryMutatorConfig(output="x")
    assert tuple(ALL_REWARDS) == REWARDS
    names = {**ENVIRONMENT, **PPO, **RENAMED}
    checked = 0
    for option in query_mutator.params:
        told = re.search(r"\[default: ([^]]*)\]", getattr(option, "help", None) or "")
        if told is None or not isinstance(option, click.Option):
            continue
        name = names.get(option.name, option.name)
        holder = QueryConfig() if option.name in ENVIRONMENT else PpoConfig() if option.name in PPO else config
        value = getattr(holder, name)
        if name in ("learning_rate",):
            value = config.base_learning_rate
        if value is None or option.name in ("output", "data", "servers"):
            continue
        if value is True:
            value = option.name.replace("_", "-")
        elif isinstance(value, tuple):
            value = ",".join(value)
        assert told[1] == (value if isinstance(value, str) else f"{value:g}"), option.name
        checked += 1
    assert checked > 30


def test_every_option_of_the_command_reaches_the_run(desk):
    """No flag is without an effect: each is an option of the run, of its environment or of PPO."""
    fields = QueryMutatorConfig.__dataclass_fields__.keys()
    for option in query_mutator.params:
        name = option.name
        if name in ("resume", "quiet", "as_json"):
            continue
        if name in ENVIRONMENT:
            assert ENVIRONMENT[name] in QueryConfig.__dataclass_fields__
        elif name in PPO:
            assert PPO[name] in PpoConfig.__dataclass_fields__
        else:
            assert RENAMED.get(name, name) in fields, name


def test_help_shows_examples_and_exit_statuses():
    shown = CliRunner().invoke(query_mutator, ["--help"]).output
    assert "Examples:" in shown
    assert "Exit status:" in shown
    assert max(map(len, shown.splitlines())) <= 100


def report(update):
    return UpdateReport(
        update=update,
        updates=4,
        env_steps=64 * update,
        steps=64,
        invalid={"TimedOut": 4},
        fallbacks=0,
        reward=0.25,
        episodes=10,
        solved=5,
        episode_return=0.5,
        calls=128,
        cached=0,
        seconds=2.0,
        rollout_seconds=1.0,
        policy_seconds=0.25,
        update_seconds=1.0,
        server_seconds=9.75,
        queue_seconds=0.0,
        fill=0.5,
        metrics={},
        chosen={},
    )


def test_the_live_table_tells_how_far_how_well_and_how_fast_and_obeys_no_text_of_a_server():
    running = Running(4, 64)
    running.on_update(report(1))
    running.on_step(SimpleNamespace(valid=True, reward=1.0))
    running.on_step(SimpleNamespace(valid=False, reward=float("nan")))
    line = running.line()
    parts = ("update 1/4", "reward 1.000", "step 2/64, 50.0% invalid", "slots 50% used", "10.0x one call at a time")
    assert [part for part in parts if part not in line] == []
    figures = SimpleNamespace(
        servers=[
            SimpleNamespace(
                name="\x1b[31m[red]http://x[/red]",
                limit=4,
                in_flight=2,
                latency_p50=0.1,
                requests=9,
                refused=0,
                state="closed",
            )
        ]
    )
    console = Console(width=140, record=True, file=StringIO())
    console.print(shown(running, figures))
    text = console.export_text()
    assert "[red]http://x[/red]" in text
    assert "\x1b" not in text


def test_resuming_elsewhere_is_refused(desk):
    brim(desk, f"{SHORT} -o first --no-tensorboard -q")
    done = brim(desk, "--resume first -o second")
    assert done.returncode == 2
    assert "a resumed run stays where it is" in done.stderr


def test_on_a_terminal_a_table_is_drawn_until_the_run_is_over(desk):
    """The table asks the pool for figures until it is closed, which is before the last drawing."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "brim", "train", "query-mutator", *SHORT.split(), "-o", "live", "--no-tensorboard"]
    with subprocess.Popen(words, cwd=desk, stdout=subprocess.DEVNULL, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = read_to_end(ours)
    os.close(ours)
    assert process.returncode == 0, shown
    assert "update 2/2" in shown
    assert "scripted" in shown
    assert "BrimError" not in shown
