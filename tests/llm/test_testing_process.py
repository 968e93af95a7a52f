"""The simulated model server as a process of its own: `python -m brim.llm.testing`."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from brim.core.errors import OptionError
from brim.llm.testing import Constant, Faults, LogNormal, Uniform
from brim.llm.testing.__main__ import read_faults, read_latency

pytest.importorskip("aiohttp")
COMMAND = [sys.executable, "-W", "error", "-m", "brim.llm.testing"]


def start(*options):
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SOME_KEY": "secret"},
    )
    return process, process.stdout.readline().strip()


def status(url, body, key="secret"):
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/api/generate", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_serves_until_its_input_ends_and_changes_options_on_the_way():
    process, url = start("--model", "tiny", "--key-env", "SOME_KEY", "--latency", "uniform:0:0.001", "--no-durations")
    with process:
        body = {"model": "tiny", "prompt": "hello"}
        assert status(url, body) == 200
        assert status(url, body, key="wrong") == 401
        assert status(url, body | {"model": "other"}) == 404
        process.stdin.write('{"models": ["other"]}\n{"slots": 0}\nnonsense\n')
        process.stdin.close()
        process.wait(20)
        errors = process.stderr.read().splitlines()
        assert [error.split(":")[0] for error in errors] == ["error", "error"]
        counts = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert (counts["served"], counts["refused"], counts["in_flight"]) == (1, 1, 0)


def test_it_ends_on_sigterm():
    process, url = start("--fault", "error=1", "--slots", "2")
    with process:
        assert status(url, {"model": "tiny", "prompt": "hello"}) == 500
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(output)["faults"] == {"error": 1}


def test_wrong_options_are_one_line_and_exit_status_2():
    done = subprocess.run([*COMMAND, "--latency", "fast"], input="", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "got 'fast'" in done.stderr


def test_pytest_and_aiohttp_are_not_imported_by_the_modules():
    names = "behaviour, handler, ollama_wire, openai_wire, replies, server, service, virtual, wires, __main__"
    code = f"import sys\nfrom brim.llm.testing import {names}\nprint({{'pytest', 'aiohttp'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_latencies_and_faults_are_read_from_text():
    assert read_latency("0.5") == Constant(0.5)
    assert read_latency("uniform:1:2") == Uniform(1, 2)
    assert read_latency("lognormal:0.1:0.5") == LogNormal(0.1, 0.5)
    assert read_faults(["error=0.01", "hang=0.5"]) == Faults(error=0.01, hang=0.5)
    for text in ("", "fast", "normal:1:2", "uniform:1", "lognormal:a:b"):
        with pytest.raises(OptionError, match="latency must be"):
            read_latency(text)
    with pytest.raises(OptionError, match=r"KIND=PROBABILITY.*'error'"):
        read_faults(["error"])
    with pytest.raises(OptionError, match="unknown fault 'eror'"):
        read_faults(["eror=1"])
