"""What the benchmarks share: data, a race between contenders, tables and result files.

A race runs its contenders in turn, round after round, so that a busy moment of the machine hits all of them; the best
round counts. Inputs are prepared before the clock starts, in the form each contender likes best, and are out of the
garbage collector's way. Results are judged after the clock has stopped. Nothing here knows brim or any peer.

Benchmarks of the planner compare CPU seconds and call `one_thread` first, so that nobody gains from a second core.
"""

import gc
import json
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench-results"
STAMP = ROOT / ".venv-bench" / "brim-bench.json"
PACKAGES = (
    *(
        "brim",
        "numpy",
        "gymnasium",
        "seqpacker",
        "lightbinpack",
        "trl",
        "chuk-lazarus",
        "transformers",
        "lhotse",
        "scipy",
        "orjson",
        "click",
        "tokenizers",
        "torch",
        "pyarrow",
    ),
    *("accelerate", "datasets", "torchdata", "cpprb", "torchrl", "chuk-puzzles-gym"),
    *("litellm", "openai", "httpx-aiohttp", "ollama", "aiohttp"),
)

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment in which the libraries of this process, and its children, use one thread."""


def one_thread() -> None:
    """Call it before peers are imported: they read the environment when they start their threads."""
    os.environ.update(ONE_THREAD)


def lognormal(n: int, *, longest: int = 2048) -> NDArray[np.int32]:
    """Median 300, sigma 1, clipped."""
    drawn = np.random.default_rng(0).lognormal(np.log(300), 1.0, n)
    return np.clip(drawn, 1, longest).astype(np.int32)


def chat_mix(n: int, *, longest: int = 8192) -> NDArray[np.int32]:
    """Short questions (60%), ordinary conversations (30%) and long ones (10%), clipped."""
    rng = np.random.default_rng(1)
    kind = rng.choice(3, n, p=(0.6, 0.3, 0.1))
    median, sigma = np.array([120.0, 700.0, 3000.0])[kind], np.array([0.8, 0.7, 0.8])[kind]
    return np.clip(median * np.exp(sigma * rng.standard_normal(n)), 1, longest).astype(np.int32)


@dataclass(frozen=True)
class Contender:
    """Something to time.

    `judge` turns what `run` gave into columns; `prepare` is called before every run, off the clock.
    """

    name: str
    run: Callable[[], Any]
    judge: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    prepare: Callable[[], object] = lambda: None


@dataclass
class Row:
    """One line of a table."""

    name: str
    seconds: float = float("inf")
    cpu: float = float("inf")
    rounds: int = 0
    columns: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu,
            "rounds": self.rounds,
            **self.columns,
        }


class Target(NamedTuple):
    """What is claimed, what was measured, and whether it holds; None if it was not measured."""

    what: str
    target: str
    reached: str
    holds: bool | None


def race(
    contenders: Sequence[Contender], *, rounds: int = 5, patience: float = 20.0, shortest: float = 0.0
) -> list[Row]:
    """Time the contenders in turn.

    One that has used up `patience` seconds sits out the remaining rounds; each runs at least once. One that takes less
    than `shortest` seconds is called as often as it takes to fill them, and the time of one call counts.
    """
    rows = [Row(contender.name) for contender in contenders]
    spent = [0.0] * len(rows)
    gc.collect()
    gc.freeze()  # the inputs
    calls = [_calls(contender, shortest) if shortest else 1 for contender in contenders]
    for _ in range(rounds):
        for place, (contender, row) in enumerate(zip(contenders, rows, strict=True)):
            if spent[place] > patience:
                continue
            contender.prepare()
            wall, cpu, result = timed(_repeated(contender.run, calls[place]))
            row.seconds = min(row.seconds, wall / calls[place])
            row.cpu = min(row.cpu, cpu / calls[place])
            row.rounds += 1
            spent[place] += wall
            if row.rounds == 1:
                row.columns.update(contender.judge(result))
            del result
    gc.unfreeze()
    return rows


def _calls(contender: Contender, shortest: float) -> int:
    contender.prepare()
    contender.run()  # a first call imports, compiles and allocates
    contender.prepare()
    return max(1, int(shortest / max(timed(contender.run)[0], 1e-7)))


def _repeated(run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    if calls == 1:
        return run

    def several() -> Any:
        for _ in range(calls - 1):
            run()
        return run()

    return several


def timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds of this process and of the children it waited for, and the result."""
    gc.collect()
    wall, cpu = time.perf_counter(), _cpu()
    result = run()
    return time.perf_counter() - wall, _cpu() - cpu, result


def _cpu() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_memory() -> float:
    """In MB of a million bytes.

    Not `ru_maxrss`, in which a child that was started by vfork finds the peak of its parent.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def add_ratios(rows: Iterable[Row], to: str, *, cpu: bool = False) -> None:
    """How many times the seconds of one of them, or the CPU seconds, each took."""
    rows = list(rows)
    taken = [row.cpu if cpu else row.seconds for row in rows]
    base = next(one for row, one in zip(rows, taken, strict=True) if row.name == to)
    for row, one in zip(rows, taken, strict=True):
        row.columns["ratio"] = one / base


WORDS = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}


@dataclass
class Report:
    """Collects what one benchmark measured; prints tables as they come and writes one JSON file at the end."""

    name: str
    tables: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    not_available: dict[str, str] = field(default_factory=dict[str, str])
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def peer(self, module: str, package: str) -> ModuleType | None:
        """A peer's module, or None if it cannot be had; then the tables say so."""
        if package in self.not_available:  # a second import would find the pieces that the first one left behind
            return None
        try:
            return import_module(module)
        except Exception as error:  # a foreign package may fail in any way
            reasons = json.loads(STAMP.read_text())["failures"] if STAMP.exists() else {}
            self.not_available[package] = reasons.get(package, f"{type(error).__name__}: {error}".splitlines()[0])
            return None

    def table(self, title: str, rows: Iterable[Row], columns: Mapping[str, str], **facts: Any) -> None:
        """Print and keep. `columns` are the names of columns and how to format them."""
        rows = list(rows)
        self.tables.append({"title": title, **facts, "rows": [row.to_dict() for row in rows]})
        head = ["", "seconds", "CPU s", "rounds", *columns]
        cells = [
            [row.name, number(row.seconds), number(row.cpu), str(row.rounds), *_cells(row, columns)] for row in rows
        ]
        print_table(title, head, cells)

    def targets(self, found: Iterable[Target]) -> None:
        """Print and keep what was to be reached."""
        found = list(found)
        self.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in found]})
        print_table("Targets", ["", "target", "reached", ""], [(*one[:3], WORDS[one.holds]) for one in found])

    def close(self) -> Path:
        for package, reason in self.not_available.items():
            print(f"not available: {package}: {reason}")
        machine = {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load_at_start": self.load[0],
        }
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        content = {
            "benchmark": self.name,
            "machine": machine,
            "versions": _versions(),
            "not_available": self.not_available,
        }
        path.write_text(json.dumps({**content, "tables": self.tables}, indent=2) + "\n")
        return path


def _cells(row: Row, columns: Mapping[str, str]) -> list[str]:
    return [
        format(row.columns[name], spec) if row.columns.get(name) is not None else "-" for name, spec in columns.items()
    ]


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    return "-" if value == float("inf") else f"{value:.{max(0, 3 - int(np.floor(np.log10(max(value, 1e-6)))))}f}"


def print_table(title: str, head: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for line in cells:
        table.add_row(*line)
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(table)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
