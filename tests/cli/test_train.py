"""`brim train sft` and `lazarus train sft` as they are typed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.forked import run_command

import brim.cli.train.distill as distill_module
import brim.cli.train.online as online_module
import brim.cli.train.sft as sft_module
from brim.cli.train.distill import distill
from brim.cli.train.online import online
from brim.cli.train.sft import sft
from brim.core.fill import Fill
from brim.data.synthetic import write_sample_data
from brim.train.report import SftResult

pytestmark = pytest.mark.torch  # the commands import it

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A directory with train.jsonl, lengths and plan by gpt2, and a model with that tokenizer, all made by the
    commands.
    """
    folder = tmp_path_factory.mktemp("desk")
    write_sample_data(folder / "train.jsonl", 8)
    ok("brim", folder, "train sft --model tiny -t gpt2 --data train.jsonl --max-steps 1 --no-tensorboard -q -o first")
    (folder / "first" / "model").rename(folder / "model")
    ok("lazarus", folder, "data lengths build -d train.jsonl -t gpt2 -o lengths.jsonl")
    ok("lazarus", folder, "data batchplan build -l lengths.jsonl -e 3 -b 4096 -o batch_plan/")
    flags = "--model model --max-steps 1 --no-tensorboard -q --data train.jsonl"
    ok("brim", folder, f"train sft {flags} --batchplan batch_plan/ -o planned")
    ok("brim", folder, f"train sft {flags} --pack --pack-mode best_fit --pack-max-len 2048 -o packed")
    return folder


def command(name, folder, line):
    return run_command([name, *line.split()], folder, HF_HUB_OFFLINE="1")


def ok(name, folder, line):
    done = command(name, folder, line)
    assert done.returncode == 0, done.stderr
    return done


def test_every_line_of_the_pipeline_runs_as_written(desk):
    ok("lazarus", desk, "train sft --model model --data train.jsonl --batchplan batch_plan/")
    ok("lazarus", desk, "train sft --model model --data train.jsonl --bucket-edges 128,256,512 --token-budget 4096")
    shown = ok("lazarus", desk, "train sft --model model --data train.jsonl --pack --pack-max-len 2048")
    assert "checkpoints/sft-3" in shown.stderr
    assert {path.name for path in (desk / "checkpoints").iterdir()} == {"sft", "sft-2", "sft-3"}
    steps = [
        json.loads((desk / "checkpoints" / name / "log.jsonl").read_text().splitlines()[-1])
        for name in ("sft", "sft-2", "sft-3")
    ]
    assert steps[0]["epoch"] == 2  # the plan has three
    assert steps[2]["fill"] > 0.99  # packed


def test_the_line_that_plays_runs_as_written_and_goes_on(desk):
    """On a free port instead of 8023, and for two rounds."""
    from brim.envs.puzzle.wire.server import PuzzleServer

    short = "--rounds 2 --episodes-per-round 4 --games lights --difficulty-max 0.3 --guided 0.75"
    short += " --min-samples 4 --window-microbatches 2 --passes 1 -b 1024 --overflow truncate"
    with PuzzleServer() as server:
        where = f"--gym-host localhost --gym-port {server.port}"
        line = (
            f"train sft --model model --data train.jsonl --online {where} {short} -o played --json "
            "--max-episode-steps 4"
        )
        shown = ok("lazarus", desk, line)
        again = ok("brim", desk, f"train online --resume played --rounds 3 {where} -q --json")
    first, second = json.loads(shown.stdout), json.loads(again.stdout)
    assert (first["rounds"], second["rounds"], second["episodes"]) == (2, 3, 12)
    assert "round 1: solved" in shown.stderr
    assert again.stderr == ""
    assert second["steps"] > first["steps"]
    assert len((desk / "played" / "rounds.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train sft --data train.jsonl", "--model is missing"),
        ("train online --games lights", "--model is missing"),
        ("train online --resume first", "is of a run that does not play; resume it with brim train sft"),
        ("train sft --model tiny", "--data is missing"),
        (
            "train sft --model model --data train.jsonl --batchplan batch_plan/ --token-budget 8",
            "--token-budget has no effect with --batchplan",
        ),
        ("train sft --model model --data train.jsonl --pack-max-len 512", "--pack-max-len needs --pack"),
        ("train sft --model nowhere --data train.jsonl", "the model nowhere is neither a directory"),
        (
            "train sft --model model -t byte --data train.jsonl --batchplan batch_plan/",
            "this plan was built for another tokenizer",
        ),
        ("train sft --model model --data nothing.jsonl", "nothing.jsonl does not exist"),
        ("train sft --model model --data train.jsonl -b 16", "do not fit in 16 tokens"),
        ("train sft --resume nowhere", "nowhere does not exist, so there is nothing to resume"),
        ("train sft --resume first --learning-rate 3", "cannot change when a run is resumed: learning_rate"),
        ("train sft --resume first --output other", "a resumed run stays where it is"),
        ("train sft --resume planned --window 50", "--window has no effect on planned, which follows batch_plan/"),
        ("train sft --resume first --pack", "cannot change when a run is resumed: batching.packing"),
        ("train sft --model tiny --data train.jsonl --schedule wavy", "'wavy' is not one of"),
        ("train sft --model tiny --data train.jsonl --fsdp", "start several with torchrun"),
        ("train sft --model tiny --data train.jsonl --gym-port 8023", "--gym-port has no effect without --online"),
        ("train sft --model tiny --online --epochs 2", "--epochs has no effect in a run that plays"),
        ("train sft --model tiny --online --games chess", "there is no game 'chess'"),
        ("train sft --model tiny --online --gym-port 9", "brim gym serve"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(desk, line, message):
    before = sorted(desk.rglob("run.json"))
    done = command("brim", desk, line + ("" if "--resume" in line else " -o wrong"))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(desk.rglob("run.json")) == before


EVIL = """
from pathlib import Path

from transformers import PretrainedConfig

Path(__file__).with_name("marker").write_text("this code ran")


class EvilConfig(PretrainedConfig):
    model_type = "evil"
"""


def test_a_packed_run_is_resumed_with_the_line_it_was_started_with_and_with_parts_of_it(desk):
    for line in ("--pack --pack-max-len 2048", "--pack", "--pack --pack-mode best_fit"):
        assert json.loads(ok("brim", desk, f"train sft --resume packed {line} -q --json").stdout)["taken now"] == 0
    other = command("brim", desk, "train sft --resume packed --pack --pack-mode optimal")
    assert "batching.packing.mode (best_fit -> optimal)" in other.stderr


def test_code_in_a_model_directory_is_never_run_even_if_every_question_is_answered_with_yes(tmp_path):
    write_sample_data(tmp_path / "train.jsonl", 4)
    folder = tmp_path / "evil"
    folder.mkdir()
    code = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "architectures": ["Evil"], "auto_map": code}))
    (folder / "evil.py").write_text(EVIL)
    line = [
        sys.executable,
        "-m",
        "brim",
        "train",
        "sft",
        "--model",
        "evil",
        "--data",
        "train.jsonl",
        "-t",
        "byte",
        "-q",
        "-o",
        "run",
    ]
    cache = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run(
        line, cwd=tmp_path, env={**OFFLINE, **cache}, input="y\n" * 99, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the model evil needs Python code of its own" in done.stderr
    assert not list(tmp_path.rglob("marker"))
    assert not (tmp_path / "run").exists()


def result(**changes):
    values = {
        "steps": 9,
        "taken": 0,
        "first_loss": None,
        "last_loss": None,
        "eval_loss": None,
        "tokens": 0,
        "seconds": 0.1,
    }
    return SftResult(
        **{**values, "fill": Fill(), "model": Path("run/model"), "stopped": False, "left_out": {}, **changes}
    )


@pytest.mark.parametrize(
    ("outcome", "status", "line"),
    [
        ({"taken": 4, "stopped": True}, 1, "stopped with a checkpoint; continue with: brim train sft --resume run"),
        ({}, 0, "this run is finished: all 9 steps were taken before; the model is in run/model"),
    ],
)
def test_a_run_that_stopped_or_was_finished_says_so_and_what_to_do(monkeypatch, outcome, status, line):
    monkeypatch.setattr("brim.train.sft.train_sft", lambda config, **_: result(**outcome))
    done = CliRunner().invoke(sft, ["-m", "tiny", "-d", "train.jsonl", "-o", "run"], prog_name="brim train sft")
    assert done.exit_code == status
    assert done.stderr.splitlines()[-1] == line
    assert ("tokens/s" in done.stdout) == (outcome != {})


@pytest.mark.parametrize(
    ("command", "groups"), [(sft, sft_module.GROUPS), (online, online_module.GROUPS), (distill, distill_module.GROUPS)]
)
def test_help_is_in_groups_with_the_options_that_matter_first_and_fits_80_columns(command, groups):
    shown = CliRunner().invoke(command, ["--help"], terminal_width=80).stdout
    assert max(map(len, shown.splitlines())) <= 80
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [*groups, "Other"]
    assert len(groups["Main options"]) <= 11
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert re.search(
                rf"^  (-\w, )?{param.opts[-1] if len(param.opts) == 1 else param.opts[0]}\b", shown, re.MULTILINE
            ), param.name


def test_every_flag_of_brim_train_online_is_one_of_train_sft_too():
    ours, theirs = ({opt for param in command.params for opt in param.opts} for command in (online, sft))
    assert ours <= theirs
