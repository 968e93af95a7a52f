"""Three servers with errors, hangs, storms of refusals and garbage, one of them killed and restarted: no call is lost.

BRIM_CHAOS_CALLS=10000 makes it larger.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack

import pytest

from brim.llm import Failure, LLMPool, PoolConfig, Reply, Sampling, read_trace
from brim.llm.engine.job import Job

CALLS = int(os.environ.get("BRIM_CHAOS_CALLS", "1200"))
FAULTS = ("error=0.05", "hang=0.02", "garbage=0.01", "drop=0.01", "ndjson_error=0.005")


class Process:
    """A pretended server in a process of its own, which can be killed and started again on the same port."""

    def __init__(self, *options):
        self.options = [*options, *(f"--fault={fault}" for fault in FAULTS)]
        self.port = 0
        self.start()

    def start(self):
        command = [sys.executable, "-m", "brim.llm.testing", f"--port={self.port}", *self.options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def change(self, **options):
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def servers():
    latency = "--latency=lognormal:0.01:0.5"
    with ExitStack() as stack:
        found = []
        for options in (
            ("--slots=16", "--overflow=queue"),
            ("--slots=16", "--overflow=reject", "--reject-status=429"),
            ("--slots=8", "--overflow=queue", "--no-durations"),
        ):
            found.append(Process(latency, *options))
            stack.callback(found[-1].stop)
        yield found


def make_trouble(servers, stop):
    """Kill one server and restart it, and let another refuse nearly everything for a moment, again and again."""
    _, storming, dying = servers
    while not stop.wait(0.3):
        storming.change(slots=1)
        dying.process.kill()
        dying.process.communicate()
        stop.wait(0.3)
        storming.change(slots=16)
        dying.start()


def test_every_call_ends_exactly_once_in_order_with_an_answer_or_a_typed_failure(servers, tmp_path, capsys):
    config = PoolConfig(timeout=20.0, patience=20.0)
    stop = threading.Event()
    trouble = threading.Thread(target=make_trouble, args=(servers, stop))
    prompts = [f"chaos {number}" for number in range(CALLS)]
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with LLMPool([server.url for server in servers], model="m", config=config, trace=tmp_path / "trace") as pool:
        trouble.start()
        try:
            results = pool.map(prompts, sampling=Sampling(temperature=0.0))
        finally:
            stop.set()
            trouble.join()
        stats = pool.stats()

    # Every call has its own answer, in its own place, or says why not.
    assert len(results) == CALLS
    for prompt, result in zip(prompts, results, strict=True):
        if isinstance(result, Reply):
            assert result.text == f"answer to: {prompt}"
        else:
            assert isinstance(result, Failure)
            assert result.attempts
            assert result.server
    lost = Counter(type(result).__name__ for result in results if isinstance(result, Failure))
    assert lost.total() <= 0.01 * CALLS

    # No slot leaks, and nothing of a call stays in memory.
    assert stats.open == 0
    assert [server.in_flight for server in stats.servers] == [0, 0, 0]
    gc.collect()
    jobs = [object for object in gc.get_objects() if type(object) is Job]
    assert not [job for job in jobs if job.call.messages and job.call.messages[-1]["content"].startswith("chaos")]

    # Every call ends once, and no request is sent after the end of its call or after its deadline.
    sent, ended = defaultdict(list), {}
    for event in read_trace(tmp_path / "trace"):
        if event["event"] == "ended":
            assert event["call"] not in ended
            ended[event["call"]] = event["at"]
        else:
            sent[event["call"]].append(event["at"] - event["seconds"])
    assert len(ended) == CALLS
    for call, times in sent.items():
        assert max(times) <= ended[call] + 1e-5
        assert max(times) - min(times) <= config.timeout + 1e-5

    with capsys.disabled():
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"\nchaos: {CALLS} calls in {time.monotonic() - began:.1f} s, {stats.requests} requests, failed: "
            f"{dict(lost) or 'none'}, {memory // 1024} MB more memory at the peak"
        )
