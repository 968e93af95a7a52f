"""Many model calls at once: `brim.llm` beside the seed's design, `AsyncOpenAI` and litellm's `Router`, on loopback.

The servers are those of `brim.llm.testing`: they pretend to have a model, with a number of slots, a distribution of
latencies and faults. A server refuses (HTTP 429) or queues what exceeds its slots. brim is never told how many slots
there are; its peers are given a semaphore of the right size, except the seed's design, which has 8 threads.

    virtual time   brim's engine and a server in one event loop whose clock jumps to the next timer: what the scheduler
                   does, exactly, whatever else the machine is doing. The worst of several seeds counts in each column.
    real sockets   the server in a process of its own, every client in a fresh one; prompts of about 170 characters

Latencies that scatter widely are log-normal with sigma 1; all others differ by up to a fifth from their mean. `x ideal`
compares the time with N calls * mean latency / slots. A call is lost if it has no answer or a wrong one. `refused %` is
the share of requests that the server refused because it was full, as the server counts them. In virtual time, `seconds`
are those of the virtual clock. Over sockets, a request that hangs does so for ever: brim gives it up by itself, and its
peers get a time-out of 5 s, without which they would not end. They also get fewer calls there, so that one hung call
weighs more in their time: compare their `x ideal` in the tables without faults.

Capacity 32 -> 8 -> 32, 5 s each, is "followed" from the moment on after which in every window of one second

    at least 0.9 of the throughput that the present capacity allows is served, and
    the median latency is at most 1.3 times the service time (2.2 times if the server queues and reports no durations),

and not more than 2% of the requests are refused from 2 s after a change on. A queueing server serves at full throughput
however many requests are sent to it, so latency shows there whether its capacity was found. 4.05 s is the largest value
that can come out: the change was not followed before the next one.

CPU per call is user and system time of the client's process, all threads, on a server without a limit whose answers
take half a second, after a round of calls that opens the connections. brim's limit is set by hand there, so that it is
known how many calls are in flight.

    --stretch 5    latencies of the real servers times 5, for a machine that is too busy for 640 calls/s
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from harness import STAMP, Report, Row, print_table

from brim.core.wait.virtual_time import run
from brim.llm.call import Call, Reply, chat
from brim.llm.config import PoolConfig
from brim.llm.engine.engine import Engine
from brim.llm.engine.server import ServerState
from brim.llm.engine.stats import PoolStats
from brim.llm.failures import Failure
from brim.llm.testing.behaviour import Behaviour, Faults, LogNormal, Uniform
from brim.llm.testing.virtual import VirtualServer

CLIENTS = Path(__file__).resolve().parent / "llm_clients.py"
BRIM, SEED, OPENAI, AIOHTTP, LITELLM = "brim", "seed", "openai", "openai, aiohttp", "litellm"
NEEDS = {SEED: ("ollama",), OPENAI: ("openai",), AIOHTTP: ("openai", "httpx_aiohttp"), LITELLM: ("litellm",)}
"""Modules of the peers."""
PACKAGES = {"httpx_aiohttp": "httpx-aiohttp"}
SEED_ROW = "seed, 8 threads"

SERVICE = 0.05
"""Mean latency of the main server in seconds; each call takes up to a fifth more or less."""
SLOTS = 32
WIDE = 1.0
"""Sigma of log-normal latencies that scatter widely."""
FAULTS = {"error": 0.006, "hang": 0.002, "drop": 0.002}
UNLIKE = ((32, 0.05), (16, 0.08), (4, 0.2))
"""(slots, mean latency) of three servers."""
STEPS = (32, 8, 32)
"""Slots of a server that changes, each for `STEP_SECONDS`."""
STEP_SECONDS, FOLLOW_SECONDS, WINDOW, GRAIN = 5.0, 2.0, 1.0, 0.05
REPORTED, FELT = 1.3, 2.2
"""Upper limits of the median latency, as a multiple of the service time: with and without reported durations."""
PEER_TIMEOUT = 5.0
IN_FLIGHT = (64, 256, 1024)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    seeds: int = 5
    """Seeds for each scenario in virtual time."""
    calls: int = 10_000
    """Calls of the main scenario in virtual time."""
    socket_calls: int = 10_000
    """Calls of the main scenario over sockets."""
    unlike_calls: int = 4000
    peer_calls: int = 1500
    """Calls of the peers in the main scenario."""
    queue_calls: int = 3000
    """Calls of brim on queueing servers, over sockets; its peers, which need no time to find a limit, get half."""
    waves: int = 24
    """Calls of the CPU measurements, as a multiple of those in flight. `AsyncOpenAI` needs this many: the first calls,
    which all begin at once, cost it several times as much as later ones."""
    most: int = 8192
    """Upper limit of these calls."""
    rounds: int = 2
    patience: float = 6.0
    """Seconds after which a client sits out the second round."""
    slots: Sequence[int] = (32, 64)
    everybody: bool = True
    """Whether all peers are measured; if not, only the seed's design is, on queueing servers."""


QUICK = Effort(seeds=1, socket_calls=2000, queue_calls=1200, waves=2, most=2048, rounds=1, slots=(32,), everybody=False)


class Target(NamedTuple):
    """A target, what was reached, and whether it holds; None if it was not measured."""

    what: str
    target: str
    reached: str
    holds: bool | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, few calls: a look at whether everything runs")
    parser.add_argument("--stretch", type=float, default=1.0, help="factor for the latencies of real servers")
    parser.add_argument(
        "--only", nargs="+", choices=("virtual", "sockets", "cpu"), default=("virtual", "sockets", "cpu")
    )
    options = parser.parse_args()
    report = Report("llm")
    effort = QUICK if options.quick else Effort()
    targets: list[Target] = []
    if "virtual" in options.only:
        targets += virtual(report, effort)
    bench = Bench(report, effort, options.stretch)
    if "sockets" in options.only:
        targets += bench.main_scenario()
        for slots in effort.slots:
            targets += bench.queueing(slots)
    if "cpu" in options.only:
        targets += bench.cpu()
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    report.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in targets]})
    lines = [(one.what, one.target, one.reached, words[one.holds]) for one in targets]
    print_table("Targets", ["", "target", "reached", ""], lines)
    print(f"written: {report.close()}")


# Virtual time


def virtual(report: Report, effort: Effort) -> Iterator[Target]:
    """Run every scenario, show the table, and yield the targets."""
    n, few = effort.calls, effort.unlike_calls
    fault_free = {"slots": SLOTS, "latency": spread(SERVICE)}
    main = Behaviour(**fault_free, overflow="reject", reject_status=429, faults=Faults(**FAULTS))
    queue = Behaviour(**fault_free, overflow="queue")
    silent = Behaviour(**fault_free, overflow="queue", reports_durations=False)
    wide = replace(silent, latency=LogNormal(SERVICE / math.exp(WIDE**2 / 2), WIDE))
    good = Behaviour(**fault_free, overflow="reject", reject_status=429)
    unlike = [Behaviour(slots=slots, latency=spread(mean)) for slots, mean in UNLIKE]
    refusing = [Behaviour(slots=slots, latency=spread(mean), overflow="reject") for slots, mean in UNLIKE]
    broken = Behaviour(latency=0.0, faults=Faults(error=1.0))
    scenarios = {
        f"refuses beyond {SLOTS}, 1% faults": Scenario([main], n),
        f"queues beyond {SLOTS}, reports durations": Scenario([queue], n),
        f"queues beyond {SLOTS}, reports none": Scenario([silent], n),
        "the same, latencies scatter widely": Scenario([wide], n),
        "three unlike ones, refuse": Scenario(refusing, few),
        "three unlike ones, queue": Scenario(unlike, few),
        "a good one, and one that answers 500": Scenario([good, broken], few),
        "a good one, and one that refuses connections": Scenario([good, Behaviour()], few, down=True),
        "refuses, 32 -> 8 -> 32": Scenario([good], steps=True),
        "queues, reports durations, 32 -> 8 -> 32": Scenario([queue], steps=True),
        "queues, reports none, 32 -> 8 -> 32": Scenario([silent], steps=True, longest=FELT),
    }
    rows = {name: worst(name, scenario, effort.seeds) for name, scenario in scenarios.items()}
    columns = {
        **{"calls": ",", "x ideal": ".3f", "lost": ",", "refused %": ".2f", "x service": ".2f"},
        **{"followed s": ".2f", "to the dead one": ","},
    }
    title = f"brim in virtual time, capacity not told; the worst of {effort.seeds} seeds in each column"
    report.table(title, rows.values(), columns, subject="virtual", seeds=effort.seeds)
    yield from virtual_targets(list(rows.values()))


def virtual_targets(rows: Sequence[Row]) -> Iterator[Target]:
    main, queue, silent, wide, refusing, unlike, broken, down, *steps = rows
    yield at_most("virtual time: refusing server with 1% faults, time", main, "x ideal", 1.10, "x ideal")
    yield at_most("virtual time: the same, lost calls", main, "lost", 0, "")
    yield below("virtual time: the same, refused requests", main, "refused %", 2.0)
    for row, longest in ((queue, REPORTED), (silent, FELT), (wide, FELT)):
        share = 1 / row.columns["x ideal"]
        least = 0.9 if row is wide else 0.95
        target = f">= {least} of the server's"
        yield Target(f"virtual time: {row.name}, throughput", target, f"{share:.3f}", share >= least)
        what = f"virtual time: {row.name}, median latency"
        yield at_most(what, row, "x service", longest, "x the service time")
    for row in steps:
        yield at_most(f"virtual time: {row.name}", row, "followed s", FOLLOW_SECONDS, "s")
    yield at_most(f"virtual time: {steps[0].name}, refused from 2 s after a change on", steps[0], "refused %", 2.0, "%")
    for row in (refusing, unlike):
        yield at_most(f"virtual time: {row.name}", row, "x ideal", 1.2, "x ideal")
    for row in (broken, down):
        yield at_most(f"virtual time: {row.name}", row, "to the dead one", 20, "attempts")


@dataclass(frozen=True)
class Scenario:
    """Servers in virtual time, and calls to them."""

    servers: Sequence[Behaviour]
    calls: int = 0
    down: bool = False
    """Whether the last server refuses connections."""
    steps: bool = False
    """Whether the number of slots changes; then there are calls enough to the end of the last step."""
    longest: float = REPORTED
    """Median latency in windows after a step, as a multiple of the service time, at most."""


@dataclass
class Outcome:
    """What happened in one run."""

    seconds: float
    results: list[Reply | Failure | None]
    """In the order asked; None for a call that was still open after the last step."""
    stats: PoolStats
    servers: list[VirtualServer]
    ends: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(time, latency) of every reply."""
    samples: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    """(time, requests, refused requests) of the first server, as it runs."""


def worst(name: str, scenario: Scenario, seeds: int) -> Row:
    """Run a scenario with several seeds; every column is that of its worst one."""
    row = Row(name, seconds=0.0, cpu=0.0)
    for seed in range(seeds):
        started = time.process_time()
        outcome = run(simulate(scenario, seed))
        row.cpu = max(row.cpu, time.process_time() - started)
        row.seconds = max(row.seconds, outcome.seconds)
        row.rounds += 1
        for column, value in judged(scenario, outcome).items():
            row.columns[column] = max(row.columns.get(column, value), value)
    return row


async def simulate(scenario: Scenario, seed: int) -> Outcome:
    """Send all calls at the time 0, and wait for their ends."""
    servers = [
        VirtualServer(replace(behaviour, seed=100 * seed + number), name=f"server {number}")
        for number, behaviour in enumerate(scenario.servers)
    ]
    servers[-1].down = scenario.down
    rate = SLOTS / SERVICE
    n = scenario.calls or int(1.1 * rate * STEP_SECONDS * len(STEPS))
    loop = asyncio.get_running_loop()
    results: list[Any] = [None] * n
    ends: list[tuple[float, float]] = []
    samples: list[tuple[float, int, int]] = []
    left = n
    all_ended = asyncio.Event()

    def take(number: int, result: Reply | Failure) -> None:
        nonlocal left
        assert results[number] is None, f"call {number} ended twice"
        results[number] = result
        if isinstance(result, Reply):
            ends.append((loop.time(), result.latency))
        left -= 1
        if not left:
            all_ended.set()

    states = [ServerState(server, number=number) for number, server in enumerate(servers)]
    async with Engine(states, PoolConfig(seed=42 + seed)) as engine:
        for number in range(n):
            call = Call(model="test", messages=chat(f"question {number}"))
            engine.submit(call, lambda result, number=number: take(number, result))
        if scenario.steps:
            await step(servers[0], samples)
        else:
            await all_ended.wait()
        return Outcome(loop.time(), list(results), engine.stats(), servers, ends, samples)


async def step(server: VirtualServer, samples: list[tuple[float, int, int]]) -> None:
    """Change a server's slots, and note what it has counted, up to the end of the last step."""
    loop = asyncio.get_running_loop()
    for slots in STEPS:
        server.slots = slots
        for _ in range(round(STEP_SECONDS / GRAIN)):
            await asyncio.sleep(GRAIN)
            samples.append((loop.time(), server.counts.arrived, server.counts.rejected))


def judged(scenario: Scenario, outcome: Outcome) -> dict[str, float]:
    """The columns of one run."""
    if scenario.steps:
        return followed(scenario, outcome)
    n = len(outcome.results)
    dead = scenario.down or len(scenario.servers) == 2
    alive = scenario.servers[:-1] if dead else scenario.servers
    rate = sum(server.slots / mean_of(server) for server in alive if server.slots)
    counts = [server.counts for server in outcome.servers]
    columns = {
        "calls": n,
        "x ideal": outcome.seconds * rate / n,
        "lost": lost(outcome.results),
        "refused %": 100 * sum(count.rejected for count in counts) / sum(count.arrived for count in counts),
    }
    if len(scenario.servers) == 1:
        columns["x service"] = median(latency for _, latency in outcome.ends) / SERVICE
    if dead:
        columns["to the dead one"] = outcome.stats.servers[-1].requests
    return columns


def followed(scenario: Scenario, outcome: Outcome) -> dict[str, float]:
    """How soon the changes of capacity were followed, and how much was refused and how long calls took after 2 s."""
    times = [end for end, _ in outcome.ends]
    late, refused, latencies = 0.0, 0.0, 0.0
    for number, slots in enumerate(STEPS):
        begin = STEP_SECONDS * number
        rate = slots / SERVICE
        if number:
            late = max(late, last_bad(outcome.ends, times, begin, 0.9 * rate, scenario.longest * SERVICE))
        after = [sample for sample in outcome.samples if begin + FOLLOW_SECONDS <= sample[0] <= begin + STEP_SECONDS]
        requests, rejected = (after[-1][place] - after[0][place] for place in (1, 2))
        refused = max(refused, 100 * rejected / requests)
        part = outcome.ends[bisect_left(times, begin + FOLLOW_SECONDS) : bisect_left(times, begin + STEP_SECONDS)]
        latencies = max(latencies, median(latency for _, latency in part) / SERVICE)
    return {
        "calls": sum(result is not None for result in outcome.results),
        "lost": lost(outcome.results),
        "refused %": refused,
        "x service": latencies,
        "followed s": late,
    }


def last_bad(
    ends: Sequence[tuple[float, float]], times: Sequence[float], begin: float, rate: float, longest: float
) -> float:
    """Seconds from a change to the first moment after which every window is good, up to the next change."""
    late = 0.0
    for number in range(round((STEP_SECONDS - WINDOW) / GRAIN) + 1):
        start = begin + number * GRAIN
        window = ends[bisect_left(times, start) : bisect_left(times, start + WINDOW)]
        if len(window) < rate * WINDOW or median(latency for _, latency in window) > longest:
            late = (number + 1) * GRAIN
    return late


def lost(results: Iterable[Reply | Failure | None]) -> int:
    """Calls that have ended without an answer, or with one to another question."""
    return sum(
        result is not None and (not isinstance(result, Reply) or result.text != f"answer to: question {number}")
        for number, result in enumerate(results)
    )


def spread(mean: float) -> Uniform:
    return Uniform(0.8 * mean, 1.2 * mean)


def mean_of(server: Behaviour) -> float:
    if isinstance(server.latency, LogNormal):
        return server.latency.median * math.exp(server.latency.sigma**2 / 2)
    assert isinstance(server.latency, Uniform), "made by spread"
    return (server.latency.shortest + server.latency.longest) / 2


# Real sockets


class Bench:
    """Runs clients and servers in processes of their own and makes tables of them."""

    def __init__(self, report: Report, effort: Effort, stretch: float) -> None:
        self.report = report
        self.effort = effort
        self.stretch = stretch
        self.missing: set[str] = set()
        reasons = json.loads(STAMP.read_text())["failures"] if STAMP.exists() else {}
        for client, modules in NEEDS.items():
            for module in modules:
                if find_spec(module) is None:
                    package = PACKAGES.get(module, module)
                    report.not_available[package] = reasons.get(package, "not installed")
                    self.missing.add(client)
        packages = ("ollama", "openai", "httpx-aiohttp", "litellm", "aiohttp")
        self.versions = {name: version(name) for name in packages if name not in report.not_available}
        self.note = f"; latencies x {stretch:g}" if stretch != 1 else ""

    def main_scenario(self) -> Iterator[Target]:
        """A server that refuses, with faults."""
        calls, peers, mean = self.effort.socket_calls, self.effort.peer_calls, SERVICE * self.stretch
        faults = [f"--fault={kind}={share}" for kind, share in FAULTS.items()]
        server = [f"--slots={SLOTS}", "--overflow=reject", "--reject-status=429", latency(mean, 0.2), *faults]
        timeout = PEER_TIMEOUT * self.stretch
        told = {"calls": peers, "timeout": timeout, "at_once": SLOTS}
        cases = {
            "brim, not told": {"client": BRIM, "calls": calls},
            SEED_ROW: {"client": SEED, "calls": peers, "timeout": timeout},
            f"AsyncOpenAI, {SLOTS}": {"client": OPENAI, **told},
            f"AsyncOpenAI aiohttp, {SLOTS}": {"client": AIOHTTP, **told},
            f"litellm Router, {SLOTS}": {"client": LITELLM, **told},
        }
        rows = self.run(cases, server, ideal=mean / SLOTS, wanted=(BRIM,), rounds=self.effort.rounds)
        title = f"Real sockets: {SLOTS} slots, refuses beyond, {1000 * mean:.0f} ms, 1% faults{self.note}"
        self.table(title, rows, subject="main", slots=SLOTS)
        brim = rows[0]
        yield at_most("real sockets: refusing server with 1% faults, time", brim, "x ideal", 1.3, "x ideal")
        yield at_most("real sockets: the same, lost calls", brim, "lost", 0, "")
        yield below("real sockets: the same, refused requests", brim, "refused %", 2.0)

    def queueing(self, slots: int) -> Iterator[Target]:
        """A server that queues, without faults."""
        calls, mean = self.effort.queue_calls, 1.5 * SERVICE * self.stretch
        server = [f"--slots={slots}", "--overflow=queue", latency(mean, 1 / 3)]
        told = {"calls": calls // 2, "at_once": slots}
        cases = {
            "brim, not told": {"client": BRIM, "calls": calls},
            SEED_ROW: {"client": SEED, "calls": calls // 2},
            f"AsyncOpenAI, {slots}": {"client": OPENAI, **told},
            f"AsyncOpenAI aiohttp, {slots}": {"client": AIOHTTP, **told},
            f"litellm Router, {slots}": {"client": LITELLM, **told},
        }
        rows = self.run(cases, server, ideal=mean / slots, wanted=(BRIM, SEED), rounds=self.effort.rounds)
        shortest, longest = 1000 * mean * 2 / 3, 1000 * mean * 4 / 3
        title = f"Real sockets: {slots} slots, queues beyond, {shortest:.0f} to {longest:.0f} ms, no faults{self.note}"
        self.table(title, rows, subject="queueing", slots=slots)
        least = {32: 3.6, 64: 7.0}[slots]
        what, goal = f"real sockets: queueing server, {slots} slots", f">= {least:g}x the seed's design"
        seed = find(rows, SEED_ROW)
        if seed is None:
            yield Target(what, goal, "-", None)
        else:
            ratio = rows[0].columns["calls/s"] / seed.columns["calls/s"]
            yield Target(what, goal, f"{ratio:.2f}x", ratio >= least)

    def cpu(self) -> Iterator[Target]:
        """CPU seconds per call and memory by the number of calls in flight."""
        mean = 10 * SERVICE
        server = [latency(mean, 0.2)]
        cases: dict[str, dict[str, Any]] = {}
        for at_once in IN_FLIGHT:
            calls = {"calls": min(self.effort.waves * at_once, self.effort.most), "at_once": at_once, "warm": at_once}
            cases[f"brim, {at_once:,}"] = {"client": BRIM, "protocol": "openai", **calls}
        at_once = 256
        calls = {"calls": self.effort.waves * at_once, "at_once": at_once, "warm": at_once}
        cases[f"AsyncOpenAI, {at_once}"] = {"client": OPENAI, **calls}
        cases[f"AsyncOpenAI aiohttp, {at_once}"] = {"client": AIOHTTP, **calls}
        cases[f"litellm Router, {at_once}"] = {"client": LITELLM, **calls, "calls": calls["calls"] // 3}
        rows = self.run(cases, server, ideal=0.0, wanted=(BRIM,), rounds=1)
        self.table("CPU and memory by calls in flight, server without a limit", rows, subject="cpu", at_once=at_once)
        small, middle, large = rows[:3]
        peer = find(rows, f"AsyncOpenAI, {at_once}")
        what, goal = f"CPU per call, {at_once} in flight", "<= 0.25 of AsyncOpenAI's"
        if peer is None:
            yield Target(what, goal, "-", None)
        else:
            share = cost(middle) / cost(peer)
            yield Target(what, goal, f"{share:.3f} ({cost(middle):.2f} and {cost(peer):.2f} ms)", share <= 0.25)
        growth = cost(large) / cost(small)
        reached = f"{growth:.2f} ({', '.join(f'{cost(row):.2f}' for row in rows[:3])} ms)"
        yield Target("CPU per call, 1,024 in flight beside 64", "<= 1.3 of it", reached, growth <= 1.3)

    def run(
        self,
        cases: Mapping[str, Mapping[str, Any]],
        server: Sequence[str],
        *,
        ideal: float,
        wanted: Sequence[str],
        rounds: int,
    ) -> list[Row]:
        """Run the clients in turn, round after round; the fastest round counts, and the least CPU time.

        Losses and refusals are those of the worst round. `wanted` are the clients of a quick look.
        """
        cases = {name: case for name, case in cases.items() if case["client"] not in self.missing}
        if not self.effort.everybody:
            cases = {name: case for name, case in cases.items() if case["client"] in wanted}
        rows = {name: Row(name) for name in cases}
        spent = dict.fromkeys(cases, 0.0)
        for _ in range(rounds):
            for name, case in cases.items():
                if spent[name] <= self.effort.patience:
                    found = measure(case, server)
                    spent[name] += found["wall"]
                    add(rows[name], case, found, ideal)
        return list(rows.values())

    def table(self, title: str, rows: Sequence[Row], **facts: Any) -> None:
        seed = find(rows, SEED_ROW)
        for row in rows:
            row.columns["x seed"] = seed and row.columns["calls/s"] / seed.columns["calls/s"]
        columns = {
            **{"calls": ",", "calls/s": ",.0f", "x ideal": ".2f", "x seed": ".2f", "lost": ",", "refused %": ".2f"},
            **{"in flight": ",", "CPU ms": ".2f", "peak MB": ",.0f", "server %": ".0f"},
        }
        used = {name: spec for name, spec in columns.items() if any(row.columns.get(name) is not None for row in rows)}
        self.report.table(title, rows, used, packages=self.versions, stretch=self.stretch, **facts)


def add(row: Row, case: Mapping[str, Any], found: Mapping[str, Any], ideal: float) -> None:
    """Add one run to a client's row."""
    calls, counts = case["calls"], found["counts"]
    columns = row.columns
    if found["wall"] < row.seconds:
        columns["calls/s"] = calls / found["wall"]
        columns["x ideal"] = found["wall"] / (ideal * calls) if ideal else None
        columns["server %"] = 100 * found["server_cpu"]
    row.seconds = min(row.seconds, found["wall"])
    row.cpu = min(row.cpu, found["cpu"])
    row.rounds += 1
    refused = 100 * counts["rejected"] / counts["arrived"]
    columns["calls"] = calls
    columns["lost"] = max(columns.get("lost", 0), found["lost"])
    columns["failures"] = found["failures"]
    columns["refused %"] = max(columns.get("refused %", 0.0), refused)
    columns["in flight"] = max(columns.get("in flight", 0), counts["max_in_flight"])
    columns["CPU ms"] = 1000 * row.cpu / calls
    columns["peak MB"] = max(columns.get("peak MB", 0.0), found["peak MB"])


def measure(case: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Run one client against a server that was started for it."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    with ServerProcess(options) as server:
        before = server.cpu()
        command = [sys.executable, str(CLIENTS), json.dumps({**case, "url": server.url})]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{case['client']} ended with status {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        found["server_cpu"] = (server.cpu() - before) / found["wall"]
    return {**found, "counts": server.counts}


class ServerProcess:
    """`python -m brim.llm.testing`, from `with` to its end."""

    def __init__(self, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "brim.llm.testing", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None, "a pipe"
        self.url = self.process.stdout.readline().strip()
        self.counts: dict[str, Any] = {}

    def cpu(self) -> float:
        """CPU seconds that it has used up to now."""
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        said, _ = self.process.communicate()  # the end of its standard input ends it
        self.counts = json.loads(said.splitlines()[-1])


def latency(mean: float, width: float) -> str:
    return f"--latency=uniform:{mean * (1 - width):.6g}:{mean * (1 + width):.6g}"


# Rows and targets


def cost(row: Row) -> float:
    return row.columns["CPU ms"]


def find(rows: Iterable[Row], name: str) -> Row | None:
    return next((row for row in rows if row.name == name), None)


def at_most(what: str, row: Row, column: str, most: float, unit: str) -> Target:
    value = row.columns[column]
    number = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
    return Target(what, f"<= {most:g} {unit}".rstrip(), number, value <= most)


def below(what: str, row: Row, column: str, most: float) -> Target:
    value = row.columns[column]
    return Target(what, f"< {most:g}%", f"{value:.2f}%", value < most)


if __name__ == "__main__":
    main()
