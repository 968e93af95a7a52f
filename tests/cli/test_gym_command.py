"""`brim gym` and `lazarus gym`, run as a user runs them, on real servers."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked import run

from brim.envs.puzzle.wire.server import PuzzleServer
from brim.stream.replay.buffer import ReplayBuffer

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def server():
    with PuzzleServer("telnet") as server:
        yield server


@pytest.mark.parametrize(
    "line",
    [
        "lazarus gym run -t gpt2 --mock --num-episodes 10",
        "lazarus gym run -t gpt2 --host localhost --port 8023",
        "lazarus gym run -t gpt2 --mock --output buffer.json",
        "lazarus gym info",
    ],
)
def test_every_line_of_the_documents_runs_as_written(tmp_path, server, line):
    done = run(line.replace("8023", str(server.port)), tmp_path)
    assert done.stdout
    if "buffer.json" in line:
        assert ReplayBuffer.load(tmp_path / "buffer.json").size == 50


def test_what_was_played_is_reported_and_written(tmp_path, server):
    line = (
        f"brim gym run -t byte --port {server.port} --games lights,nqueens --difficulty-max 0.4 -n 20 --lanes 3 -o "
        "buffer.brim --json"
    )
    done = run(line, tmp_path)
    facts = json.loads(done.stdout)
    assert facts["episodes"] == 20
    assert facts["by_status"] == {"success": 20}
    assert facts["success_by_difficulty"] == {"easy": {"episodes": 20, "successes": 20}}
    assert facts["errors"] == {}
    assert "episode 20/20" in done.stderr
    buffer = ReplayBuffer.load(tmp_path / "buffer.brim")
    assert buffer.size == facts["samples"] == facts["buffer"]["size"]
    assert {sample.episode_id.split("-")[0] for sample in buffer.get_all()} == {"lights", "nqueens"}
    assert json.loads(run(line, tmp_path).stdout)["tokens"] == facts["tokens"]


def test_options_of_playing_have_their_effect(tmp_path, server):
    base = f"brim gym run -t byte --port {server.port} --games lights -n 6 --json -q "
    few = json.loads(run(base + "--max-samples 4 --buffer-size 3", tmp_path).stdout)
    assert (few["samples"], few["buffer"]) == (4, {"size": 3, "evicted": 1})
    nothing = run(base.replace("-q", "") + "--policy random --max-steps 1 --keep success", tmp_path)
    assert json.loads(nothing.stdout)["filtered"]["not kept"] > 0
    assert "episode 6/6" in nothing.stderr
    script = {"game": "lights", "difficulty": "easy", "seed": 0, "actions": ["press 1 1"]}
    (tmp_path / "moves.jsonl").write_text(json.dumps(script) + "\n")
    assert json.loads(run(base + "--policy scripted --script moves.jsonl", tmp_path).stdout)["by_status"] == {
        "failure": 6
    }
    mock = json.loads(
        run(
            "brim gym run -t byte --mock -n 4 --steps-per-episode 3 --success-rate 1 --seed 1 --json -q", tmp_path
        ).stdout
    )
    assert (mock["samples"], mock["success_rate"]) == (12, 1.0)


def test_a_server_that_stops_answering_is_exit_status_one(tmp_path):
    """It listens, and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        line = f"brim gym run -t byte --host 127.0.0.1 --port {port} --retries 0 -n 3 --json"
        facts = json.loads(run(line + " --timeout 0.2", tmp_path, status=1).stdout)
        assert facts["by_status"] == {"error": 3}
        assert facts["errors"] == {"ServerTimeout": 3}
        facts = json.loads(run(line + " --timeout 9 --episode-timeout 0.2", tmp_path, status=1).stdout)
        assert facts["errors"] == {"ServerTimeout": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--port 1", "nothing listens on localhost:1; start a server with `brim gym serve --port 1`"),
        ("--mock --lanes 3", "--lanes has no effect with --mock"),
        ("--success-rate 0.5", "--success-rate has no effect without --mock"),
        ("--policy scripted", "--policy scripted and --script FILE go together"),
        ("--games sodoku", 'Did you mean "sudoku"?'),
        ("--games einstein", "cannot be played to its end"),
        ("--difficulty-min 0.9", "no difficulty lies in 0.9..1.0"),
        ("--host .foo", "no host can be called '.foo'"),
        ("--mock -o .", "cannot write .: it is a directory"),
        ("--mock -o moves.jsonl/buffer.json", "is a file"),
        ("--timeout nan", "timeout must be a number above 0"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_two(tmp_path, options, message):
    (tmp_path / "moves.jsonl").touch()
    assert message in run(f"brim gym run -t byte {options}", tmp_path, status=2).stderr.splitlines()[-1]


def test_info_tells_what_there_is_and_who_answers(tmp_path, server):
    facts = json.loads(run(f"lazarus gym info --port {server.port} --json", tmp_path).stdout)
    assert len(facts["games"]) == 30
    assert sum(game["playable"] for game in facts["games"]) == 28
    assert (facts["server"]["answers"], facts["server"]["transport"]) == (True, "telnet")
    assert facts["server_installed"] is True
    assert json.loads(run("brim gym info --json", tmp_path).stdout)["server"] is None
    assert "nothing listens" in run("brim gym info --port 1", tmp_path, status=1).stdout
    assert "connect_timeout must be" in run("brim gym info --timeout -1", tmp_path, status=2).stderr
    help = run("brim gym run --help", tmp_path).stdout
    assert all(len(line) <= 80 for line in help.splitlines() if line.strip().startswith("brim gym"))
    assert "130 interrupted" in " ".join(help.split())


@pytest.mark.server
def test_serving_until_it_is_interrupted(tmp_path):
    command = [str(BIN / "brim"), "gym", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        host, port = serving.stdout.readline().strip().split(":")
        done = run(f"brim gym run -t byte --host {host} --port {port} -n 2 --games nqueens --json -q", tmp_path)
        assert json.loads(done.stdout)["by_status"] == {"success": 2}
        serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 130
        assert "Traceback" not in serving.stderr.read()
    run(f"brim gym info --host {host} --port {port}", tmp_path, status=1)


def test_interrupted_playing_keeps_what_was_played(tmp_path, server):
    words = f"brim gym run -t byte --port {server.port} --games nqueens -n 200 -o buffer.brim --max-steps 50".split()
    with subprocess.Popen(
        [str(BIN / words[0]), *words[1:]], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as playing:
        assert playing.stderr.readline().startswith("episode ")  # the first tenth is played
        playing.send_signal(signal.SIGINT)
        said = playing.stderr.read()
        assert playing.wait(20) == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "interrupted"
    assert f"wrote the {ReplayBuffer.load(tmp_path / 'buffer.brim').size} samples so far to buffer.brim" in said
