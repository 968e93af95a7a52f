"""The real server as a process of ours."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from brim.core.errors import MissingExtraError, OptionError
from brim.envs.puzzle.wire import server as module
from brim.envs.puzzle.wire.errors import ConnectionFailed
from brim.envs.puzzle.wire.server import PuzzleServer


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split(")")[1].split()[0] != "Z"


def test_it_listens_when_it_has_started_and_not_any_more_when_it_has_stopped():
    server = PuzzleServer().start()
    pid = server.pid
    socket.create_connection((server.host, server.port), timeout=5).close()
    assert server.running
    assert server.start().pid == pid
    server.stop()
    assert not server.running
    assert not alive(pid)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.host, server.port), timeout=5)
    server.stop()


def test_it_does_not_outlive_the_program_that_started_it(tmp_path):
    code = (
        "import time; from brim.envs.puzzle.wire.server import PuzzleServer; "
        "s = PuzzleServer().start(); print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as program:
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.send_signal(signal.SIGKILL)
        program.wait()
    for _ in range(500):
        if not alive(pid):
            assert list(tmp_path.iterdir()) == []
            return
        time.sleep(0.02)
    pytest.fail("the server is still there")


def test_a_port_that_is_taken_and_options_that_are_wrong_are_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConnectionFailed, match=r"something listens on .* already"):
            PuzzleServer(port=taken.getsockname()[1]).start()
    for host in ('a"b', "300.0.0.1", "no.such.host.invalid", ".foo"):
        with pytest.raises(ConnectionFailed, match="cannot listen on") as raised:
            PuzzleServer(host=host).start()
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(OptionError, match="transport"):
        PuzzleServer("http")


def test_a_server_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(
        module, "_CONFIG", "host: {host}\nport: {port}\ntransport: {transport}\nhandler_class: no.such:Thing\n"
    )
    with pytest.raises(ConnectionFailed, match=r"did not start on .*Could not load handler class"):
        PuzzleServer().start()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"brim\[gym\]"):
        PuzzleServer().start()
