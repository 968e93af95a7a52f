"""The records of a run: curves, the samples each step was trained on, and rounds of play. Files of JSON lines that a
resumed run continues.

A run that was killed had taken steps after its last checkpoint. The resumed run takes them again, so their lines are
cut off first: a file tells one history, not two. Nothing here imports torch, except for TensorBoard's writer when
curves go there.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError
from brim.core.extras import need
from brim.train.config import RunConfig
from brim.train.report import RoundReport

if TYPE_CHECKING:
    from brim.train.ranks import Ranks

LOG, SAMPLES, ROUNDS = "log.jsonl", "samples-rank{}.jsonl", "rounds.jsonl"


class Trained(Protocol):
    """The facts of a microbatch that are recorded."""

    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def ids(self) -> Sequence[str | int]: ...


class Records:
    """The open files of a run on one rank: curves on the main rank, samples on every rank if they are recorded."""

    def __init__(self, config: RunConfig, ranks: "Ranks", *, after: int) -> None:
        """`after` is the step that the run resumes from, or 0."""
        self._output = Path(config.output)
        self._every = config.log_every
        self._log = None
        self._samples = None
        self._board = None
        ranks.together(lambda: self._rewind(after) if ranks.is_main else None)
        if ranks.is_main:
            self._log = _Lines(self._output / LOG)
            self._board = _board(self._output, after) if config.tensorboard else None
        if config.record_samples:
            self._samples = _Lines(self._output / SAMPLES.format(ranks.rank))

    def samples(self, step: int, batches: Sequence[Trained]) -> None:
        """Write which samples a step was trained on, a line for each microbatch."""
        if self._samples is not None:
            for batch in batches:
                self._samples.write(
                    {"step": step, "epoch": batch.epoch, "microbatch": batch.index, "samples": list(batch.ids)}
                )

    def curves(self, step: int, values: Mapping[str, float], *, always: bool) -> None:
        """Write a point of the curves: of step 1, of every `log_every`-th step, and whenever `always` is set."""
        if self._log is None or not (always or step == 1 or step % self._every == 0):
            return
        self._log.write({"step": step, **values})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._log, self._samples, self._board):
            if opened is not None:
                opened.close()

    def _rewind(self, step: int) -> None:
        for path in (self._output / LOG, *self._output.glob(SAMPLES.format("*"))):
            rewind(path, step)


class Rounds:
    """The rounds of a run that plays, in a file with a line for each.

    Rounds after the checkpoint are cut off, and played again.
    """

    def __init__(self, output: Path, rounds: int) -> None:
        """`rounds` is how many had been played when the checkpoint was taken."""
        self._path = output / ROUNDS
        found = self._path.read_bytes().splitlines() if self._path.exists() and rounds else []
        self.reports = [RoundReport(**json.loads(line)) for line in found[:rounds]]
        self._write()

    def add(self, report: RoundReport) -> None:
        self.reports.append(report)
        self._write()

    def _write(self) -> None:
        with atomic_file(self._path) as file:
            file.writelines(json.dumps(asdict(report)).encode() + b"\n" for report in self.reports)


def rewind(path: Path, step: int) -> None:
    """Cut off the lines after a step: the resumed run takes those steps again.

    Raises:
        DamagedError: A line is damaged.
    """
    if path.exists():
        kept = [line for at, line in logged(path) if at <= step] if step else []
        with atomic_file(path) as file:
            file.writelines(kept)


def logged(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a log, each with its step, without a last line that a kill cut off.

    Raises:
        DamagedError: Another line is damaged. Its owner decides whether it can be removed.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    found: list[tuple[int, bytes]] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append((int(json.loads(line)["step"]), line.rstrip(b"\n") + b"\n"))
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                raise DamagedError(
                    f"{path}:{number} is damaged; remove that line to resume, or the whole file: training does not "
                    "read it"
                ) from None
    return found


class _Lines:
    """A file of JSON lines that is appended to, each line in one write."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed below

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def _board(output: Path, after: int) -> Any:
    need("tensorboard", extra="train", user="--tensorboard (leave it out with --no-tensorboard)")
    writer = need("torch.utils.tensorboard", extra="train", user="brim.train").SummaryWriter
    return writer(os.fspath(output / "tensorboard"), purge_step=after + 1 if after else None)
