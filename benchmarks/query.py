"""Environments whose every step asks language models: `rollout`, `send` / `recv` and `step` beside the seed's design.

The servers are those of `brim.llm.testing`, each in a process of its own, on loopback: a number of slots, a queue for
what exceeds them, and latencies that are log-normal with sigma 1. A step of an environment is two requests, one after
the other: a model rewrites the question, and a model answers what came out. Observations are embeddings by `hash`, in
the client's process. The policy is a formula, and the reward is 1 if the answer belongs to the query: a step with
another reward, or with none, is lost.

    rollout        every environment takes its own T steps, and waits for no other one
    send, recv     a step is begun for every environment that is ready, until n * T steps are begun; `fewest` and
                   `most` are the steps of one environment, which differ here: fast answers lead to more steps
    step           all environments take a step together, and wait for the slowest one
    no batching    rollout with one call at a time
    seed           the seed's design: all rewrites, then all answers, then embeddings and rewards, with 8 threads and
                   the `ollama` client (`query_seed.py`); or one environment after another

`x ideal` compares the time with the service time of all requests, divided by the slots, or by the environments if they
are fewer. The service time is not an assumed mean: the latency of a request is a function of the server's seed and of
the number of the request, so the benchmark adds up the latencies of exactly those requests that the server has counted,
without their time in its queue. If the server says that clients gave up some requests, that many of the longest are
left out, so that the ideal is never too high. A server that wakes up late counts as the client's delay.

`at work` is the service time divided by the wall time: the requests that the server worked on, on average. Ratios of
contenders are ratios of `at work`: those that are slow get fewer steps, and latencies with so long a tail differ from
one small sample to the next. Ratios of steps a second stand beside them.

brim finds out how many requests to send at once (`not told`), beginning with 4 in every row, unless a row says `told`.
A server reports durations, as Ollama does, unless it is called silent; then its latencies are all that there is to see.
`limit` is the number that it had found at the end, and `in flight` the most requests that the server ever had. A row
with several rounds has another seed of the server in each, and shows means over them. `CPU ms` is the CPU time of the
client's process for a step, user and system, all threads. `server %` is the CPU use of the server's process. How much
else the machine had to do is printed at the end, as load averages; the times of a busy machine are too long.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from harness import STAMP, Report, Row, print_table
from llm import ServerProcess, Target
from numpy.typing import NDArray

from brim.envs.query.attempt import Attempt, Question
from brim.envs.query.batched import BatchedQueryMutationEnv
from brim.envs.query.config import QueryConfig
from brim.llm.call import Call, chat
from brim.llm.config import Server
from brim.llm.pool import LLMPool
from brim.llm.testing.behaviour import Behaviour, LogNormal
from brim.llm.testing.replies import echo
from brim.llm.testing.service import Service

SEED_CLIENT = Path(__file__).resolve().parent / "query_seed.py"
MODEL = "test"
SIGMA = 1.0
ENVS, SLOTS = 64, 32
PROCESSES = 16
"""Environments of the comparison with one call at a time: `--num-processes` of `brim train query-mutator`."""
SEED_THREADS = 8
SETTINGS = ((16, 16), (64, 32), (64, 64))
"""(environments, slots) of the table of interfaces."""
QUESTIONS = 4096
"""Enough that two environments hardly ever ask the same at the same time, which would be one request."""
ROLLOUT, SEND, STEP, ONE_BY_ONE, SEED = "rollout", "send, recv", "step", "no batching", "seed"
LEFT_OUT = {
    "seed": ("limit", "in flight", "server %"),
    "sequential": ("x ideal", "limit", "in flight", "server %"),
}
"""Columns that are not printed, by table; they are in the file."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    median: float = 0.08
    """Median latency in seconds; the mean is 1.65 times as long."""
    steps: int = 32
    """Steps of each environment, where none waits for another."""
    barrier_steps: int = 8
    """The same where all wait for the slowest."""
    seed_steps: int = 4
    """The same for the seed's design with 64 environments."""
    sequential_steps: int = 2
    """The same with one call at a time."""
    rounds: int = 3
    """Rounds of the first row; the second one has one round less."""
    settings: Sequence[tuple[int, int]] = SETTINGS
    judged: bool = True
    """Whether there are steps enough to say whether targets hold: the wait for the last environments counts less, the
    more steps there are."""


QUICK = Effort(
    median=0.03,
    steps=8,
    barrier_steps=3,
    seed_steps=2,
    sequential_steps=1,
    rounds=1,
    settings=SETTINGS[:2],
    judged=False,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: who takes how many steps, on which server."""

    name: str
    client: str
    envs: int
    slots: int
    steps: int
    """Steps of each environment."""
    told: bool = False
    durations: bool = True
    """Whether the server reports how long requests waited."""
    threads: int = SEED_THREADS
    """Threads of the seed's design."""
    rounds: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps: a look at whether everything runs")
    parser.add_argument("--median", type=float, help="median latency in seconds, for a machine that is too busy")
    parser.add_argument(
        "--only", nargs="+", choices=("rollout", "seed", "interfaces"), default=("rollout", "seed", "interfaces")
    )
    options = parser.parse_args()
    effort = QUICK if options.quick else Effort()
    report = Report("query")
    bench = Bench(report, effort, options.median or effort.median)
    targets: list[Target] = []
    if "rollout" in options.only:
        targets += bench.rollouts()
    if "seed" in options.only:
        targets += bench.against_the_seed()
        bench.against_sequential()
    if "interfaces" in options.only:
        bench.interfaces()
    targets.append(Target("steps that were lost, all rows of brim", "0", str(bench.lost), bench.lost == 0))
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    report.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in targets]})
    print_table("Targets", ["", "target", "reached", ""], [(*one[:3], words[one.holds]) for one in targets])
    cores = len(os.sched_getaffinity(0))
    print(f"load average {report.load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, on {cores} cores")
    print(f"written: {report.close()}")


@dataclass
class Bench:
    """Runs cases, each once, and makes tables of them."""

    report: Report
    effort: Effort
    median: float
    lost: int = 0
    _rows: dict[Case, Row] = field(default_factory=dict[Case, Row])

    def rollouts(self) -> Iterator[Target]:
        """Rollouts with two environments for each slot."""
        fewer = max(1, self.effort.rounds - 1)
        silent = Case(**self._main("silent server, not told"), durations=False, rounds=fewer)
        told = Case(**self._main("silent server, told"), durations=False, told=True)
        cases = [self.main_case, silent, told]
        rows = [self.run(case) for case in cases]
        self.table(f"rollout: {ENVS} environments, {SLOTS} slots, {self.effort.steps} steps each", rows, "rollout")
        for row in rows:
            value, each = row.columns["x ideal"], row.columns["rounds x ideal"]
            reached = f"{value:.3f} (rounds: {', '.join(f'{one:.3f}' for one in each)})"
            what = f"rollout, {ENVS} environments, {SLOTS} slots, {row.name}"
            yield Target(what, "<= 1.2x ideal", reached, self.judge(value <= 1.2))

    @property
    def main_case(self) -> Case:
        return Case(**self._main("server reports durations, not told"), rounds=self.effort.rounds)

    def _main(self, name: str) -> dict[str, Any]:
        return {"name": name, "client": ROLLOUT, "envs": ENVS, "slots": SLOTS, "steps": self.effort.steps}

    def against_the_seed(self) -> Iterator[Target]:
        """brim and the seed's design at 64 environments and 32 slots."""
        case = Case(
            name=f"seed, {SEED_THREADS} threads", client=SEED, envs=ENVS, slots=SLOTS, steps=self.effort.seed_steps
        )
        brim, seed = self.run(self.main_case), self.run(case)
        what, target = f"rollout, {ENVS} environments, {SLOTS} slots, beside the seed's design", ">= 3x as fast"
        if seed is None:
            yield Target(what, target, "-", None)
            return
        rows = [named(brim, "brim, rollout"), seed]
        compare(rows, to=seed, column="x seed")
        self.table(f"The seed's design: {ENVS} environments, {SLOTS} slots", rows, "seed")
        columns = rows[0].columns
        reached = f"{columns['x seed']:.2f}x ({columns['x seed, steps/s']:.2f}x by steps/s)"
        yield Target(what, target, reached, self.judge(columns["x seed"] >= 3))

    def against_sequential(self) -> None:
        """Many calls at once beside one call at a time, for brim and for the seed's design."""
        shared: dict[str, Any] = {"envs": PROCESSES, "slots": SLOTS}
        few = self.effort.sequential_steps
        batched = self.run(Case(name="brim, rollout", client=ROLLOUT, steps=self.effort.steps, **shared))
        single = self.run(Case(name="brim, --no-batching", client=ONE_BY_ONE, steps=few, **shared))
        compare([batched, single], to=single, column="x sequential")
        rows = [batched, single]
        name = f"seed, {SEED_THREADS} threads"
        seed = self.run(Case(name=name, client=SEED, steps=self.effort.barrier_steps, **shared))
        if seed is not None:
            sequential = self.run(Case(name="seed, sequential", client=SEED, threads=1, steps=few, **shared))
            compare([seed, sequential], to=sequential, column="x sequential")
            compare([batched, single, seed, sequential], to=sequential, column="x seed sequential")
            rows += [seed, sequential]
        title = f"Against one call at a time: {PROCESSES} environments, {SLOTS} slots; the seed's estimate is 4 to 6x"
        self.table(title, rows, "sequential")

    def interfaces(self) -> None:
        """The three ways to use the environments, beside the ideal."""
        steps, few = self.effort.steps, self.effort.barrier_steps
        for envs, slots in self.effort.settings:
            if (envs, slots) == (ENVS, SLOTS):
                rows = [named(self.run(self.main_case), ROLLOUT)]
            else:
                rows = [self.run(Case(name=ROLLOUT, client=ROLLOUT, envs=envs, slots=slots, steps=steps))]
            rows.append(self.run(Case(name=SEND, client=SEND, envs=envs, slots=slots, steps=steps)))
            rows.append(self.run(Case(name=STEP, client=STEP, envs=envs, slots=slots, steps=few)))
            title = f"Interfaces: {envs} environments, {slots} slots; the server reports durations, not told"
            self.table(title, rows, "interfaces", envs=envs, slots=slots)

    def judge(self, holds: bool) -> bool | None:
        return holds if self.effort.judged else None

    def run(self, case: Case) -> Any:
        """Measure a case, unless that was done before. None if its client is not installed."""
        if case.client == SEED and find_spec("ollama") is None:
            reasons = json.loads(STAMP.read_text())["failures"] if STAMP.exists() else {}
            self.report.not_available["ollama"] = reasons.get("ollama", "not installed")
            return None
        if case not in self._rows:
            found = [measure(case, self.median, seed) for seed in range(case.rounds)]
            self._rows[case] = summary(case, found)
            if case.client != SEED:
                self.lost += self._rows[case].columns["lost"]
        return self._rows[case]

    def table(self, title: str, rows: Sequence[Row], subject: str, **facts: Any) -> None:
        columns = {
            **{"steps": ",", "steps/s": ",.1f", "x ideal": ".3f", "at work": ".1f"},
            **{"x seed": ".2f", "x seed, steps/s": ".2f", "x sequential": ".2f"},
            **{"x sequential, steps/s": ".2f", "x seed sequential": ".2f"},
            **{"fewest": ",", "most": ",", "lost": ",", "limit": ",", "in flight": ",", "CPU ms": ".2f"},
            **{"server %": ".0f"},
        }
        left_out = LEFT_OUT.get(subject, ())
        shown = {
            name: spec
            for name, spec in columns.items()
            if name not in left_out and any(row.columns.get(name) is not None for row in rows)
        }
        latency = f"; median latency {1000 * self.median:.0f} ms"
        self.report.table(title + latency, rows, shown, subject=subject, median=self.median, **facts)


# One measurement


def measure(case: Case, median: float, seed: int) -> dict[str, Any]:
    """Start a server, and let a client take its steps."""
    options = [f"--slots={case.slots}", f"--latency=lognormal:{median}:{SIGMA}", f"--seed={seed}"]
    if not case.durations:
        options.append("--no-durations")
    with ServerProcess(options) as server:
        before = server.cpu()
        found = ask_seed(case, server.url) if case.client == SEED else ask_brim(case, server.url, seed)
        found["server %"] = 100 * (server.cpu() - before) / found["wall"]
    found["counts"] = server.counts
    found["service"] = service_seconds(median, seed, server.counts)
    return found


def ask_brim(case: Case, url: str, seed: int) -> dict[str, Any]:
    """Take the steps in this process, with a new pool."""
    server = Server(url=url, limit=case.slots if case.told else None)
    with LLMPool(server, model=MODEL) as pool:
        envs = BatchedQueryMutationEnv(
            case.envs,
            questions(),
            pool=pool,
            config=QueryConfig(goal=None),
            reward=echoed,
            autoreset_mode="same_step",
            batching=case.client != ONE_BY_ONE,
        )
        observations, _ = envs.reset(seed=seed)
        wall, cpu = time.perf_counter(), time.process_time()
        rewards, taken = TAKE[case.client](envs, observations, case.steps)
        found: dict[str, Any] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        found["limit"] = pool.stats().servers[0].limit
        envs.close()
    assert rewards.size == taken.sum() == case.envs * case.steps, "every step has a reward"
    found |= {"lost": int((rewards != 1.0).sum()), "fewest": int(taken.min()), "most": int(taken.max())}
    return found


def ask_seed(case: Case, url: str) -> dict[str, Any]:
    """Let the seed's design take the steps, in a process of its own."""
    told: dict[str, Any] = {"url": url, "envs": case.envs, "steps": case.steps, "threads": case.threads}
    told["questions"] = [one.text for one in questions()]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(SEED_CLIENT)]
    done = subprocess.run(command, input=json.dumps(told), stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{SEED_CLIENT.name} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


@cache
def questions() -> list[Question]:
    return [
        Question(id=str(number), text=f"Question {number:04}: how many of the {number} parts are left?")
        for number in range(QUESTIONS)
    ]


async def echoed(attempt: Attempt) -> float:
    """1 if the answer belongs to the query."""
    return float(attempt.answer == echo(attempt.query))


Rewards = NDArray[np.float64]
Taken = NDArray[np.int64]


def policy(observations: NDArray[np.float32], ids: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return (7 * ids + 3 * numbers) % 6


def take_rollout(envs: BatchedQueryMutationEnv, observations: NDArray[np.float32], steps: int) -> tuple[Rewards, Taken]:
    rollout = envs.rollout(policy, steps)
    assert rollout is not None, "nothing stops it"
    return rollout.rewards, np.full(envs.num_envs, steps)


def take_sent(envs: BatchedQueryMutationEnv, observations: NDArray[np.float32], steps: int) -> tuple[Rewards, Taken]:
    """Begin a step for each environment that is ready, until there are `steps` for each on average; wait for all."""
    taken = np.zeros(envs.num_envs, np.int64)
    left = envs.num_envs * steps
    rewards: list[Rewards] = []
    ids = np.arange(envs.num_envs)
    while True:
        ids = ids[:left]
        left -= len(ids)
        if len(ids):
            envs.send(policy(observations, ids, taken[ids]), ids)
            taken[ids] += 1
        elif sum(map(len, rewards)) == taken.sum():
            return np.concatenate(rewards), taken
        batch = envs.recv()
        rewards.append(batch.rewards)
        ids, observations = batch.ids, batch.observations


def take_steps(envs: BatchedQueryMutationEnv, observations: NDArray[np.float32], steps: int) -> tuple[Rewards, Taken]:
    rewards: list[Rewards] = []
    everyone = np.arange(envs.num_envs)
    for step in range(steps):
        actions = policy(observations, everyone, np.full(envs.num_envs, step))
        observations, rewarded, *_ = envs.step(actions)
        rewards.append(rewarded)
    return np.concatenate(rewards), np.full(envs.num_envs, steps)


TAKE: dict[str, Callable[[BatchedQueryMutationEnv, NDArray[np.float32], int], tuple[Rewards, Taken]]] = {
    ROLLOUT: take_rollout,
    SEND: take_sent,
    STEP: take_steps,
    ONE_BY_ONE: take_rollout,
}


def service_seconds(median: float, seed: int, counts: dict[str, Any]) -> float:
    """Return the service time of all requests that a server has counted, without their time in its queue."""
    latencies = sorted(asyncio.run(drawn(median, seed, counts["arrived"])))
    return sum(latencies[: counts["served"]])


async def drawn(median: float, seed: int, requests: int) -> list[float]:
    """Return the latencies of a server's first requests, which depend on its seed alone."""
    service = Service(Behaviour(latency=LogNormal(median, SIGMA), seed=seed))
    call = Call(model=MODEL, messages=chat("any"))
    return [service.request(call).seconds for _ in range(requests)]


# Rows


def summary(case: Case, found: Sequence[dict[str, Any]]) -> Row:
    """Return the row of a case: means over its rounds, sums of what was lost."""
    row = Row(case.name, rounds=len(found))
    row.seconds = fmean(one["wall"] for one in found)
    row.cpu = fmean(one["cpu"] for one in found)
    steps = case.envs * case.steps
    at_once = min(case.envs, case.slots)
    ratios = [one["wall"] * at_once / one["service"] for one in found]
    row.columns = {
        "steps": steps,
        "steps/s": fmean(steps / one["wall"] for one in found),
        "x ideal": fmean(ratios),
        "rounds x ideal": ratios,
        "at work": fmean(one["service"] / one["wall"] for one in found),
        "fewest": min(one["fewest"] for one in found) if case.client == SEND else None,
        "most": max(one["most"] for one in found) if case.client == SEND else None,
        "lost": sum(one["lost"] for one in found),
        "limit": found[-1]["limit"],
        "in flight": max(one["counts"]["max_in_flight"] for one in found),
        "requests": [one["counts"]["arrived"] for one in found],
        "given up": [one["counts"]["cancelled"] for one in found],
        "CPU ms": 1000 * row.cpu / steps,
        "server %": fmean(one["server %"] for one in found),
        "load": os.getloadavg()[0],
    }
    return row


def named(row: Row, name: str) -> Row:
    """Return the same row under another name."""
    return Row(name, row.seconds, row.cpu, row.rounds, dict(row.columns))


def compare(rows: Sequence[Row], *, to: Row, column: str) -> None:
    """Add how many times as fast each is: by the service time done in a second, and by steps."""
    for row in rows:
        row.columns[column] = row.columns["at work"] / to.columns["at work"]
        row.columns[f"{column}, steps/s"] = row.columns["steps/s"] / to.columns["steps/s"]


if __name__ == "__main__":
    main()
