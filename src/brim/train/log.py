"""The records of a run: curves, the samples each step was trained on, and reports such as those on rounds of play.
Files of JSON lines that a resumed run continues.

A run that was killed had taken steps after its last checkpoint. The resumed run takes them again, so their lines are
cut off first: a file tells one history, not two. Nothing here imports torch, except for TensorBoard's writer when
curves go there.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError
from brim.core.extras import need
from brim.train.config import RunConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from brim.train.ranks import Ranks

    Report = TypeVar("Report", bound=DataclassInstance)
else:
    Report = TypeVar("Report")

LOG, SAMPLES, WANDB = "log.jsonl", "samples-rank{}.jsonl", "wandb.id"


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
        self._log = None
        self._samples = None
        self._board = None
        self._wandb = None
        ranks.together(lambda: self._rewind(after) if ranks.is_main else None)
        if ranks.is_main:
            self._wandb = None if config.wandb is None else _WandbRun(self._output, config, after)
            self._board = _board(self._output, after) if config.tensorboard else None
            self._log = _Lines(self._output / LOG)
        if config.record_samples:
            self._samples = _Lines(self._output / SAMPLES.format(ranks.rank))

    def samples(self, step: int, batches: Sequence[Trained]) -> None:
        """Write which samples a step was trained on, a line for each microbatch."""
        if self._samples is not None:
            for batch in batches:
                self._samples.write(
                    {"step": step, "epoch": batch.epoch, "microbatch": batch.index, "samples": list(batch.ids)}
                )

    def curves(self, step: int, values: Mapping[str, float], *, due: bool) -> None:
        """Write a point of the curves: of step 1, and of every other step that is `due`."""
        if self._log is None or not (due or step == 1):
            return
        self._log.write({"step": step, **values})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(step, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._log, self._samples, self._board, self._wandb):
            if opened is not None:
                opened.close()

    def _rewind(self, step: int) -> None:
        for path in (self._output / LOG, *self._output.glob(SAMPLES.format("*"))):
            rewind(path, step)


class History(Generic[Report]):
    """Reports of one kind, in a file with a JSON line for each, such as one for every round of play.

    Reports after the checkpoint that a run resumes from are cut off: what they are about happens again.
    """

    def __init__(self, path: Path, count: int, *, read: Callable[[dict[str, Any]], Report]) -> None:
        """`count` is the number of reports when the checkpoint was taken; `read` makes a report from its line.

        Raises:
            DamagedError: One of these lines is damaged.
        """
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() and count else []
        self.reports = [_report(path, number, line, read) for number, line in enumerate(lines[:count], 1)]
        with atomic_file(path) as file:
            file.writelines(_line(report) for report in self.reports)

    def add(self, report: Report) -> None:
        """Append a report."""
        with open(self._path, "ab", buffering=0) as file:
            file.write(_line(report))
        self.reports.append(report)


def _report(path: Path, number: int, line: bytes, read: Callable[[dict[str, Any]], Report]) -> Report:
    try:
        return read(json.loads(line))
    except (ValueError, TypeError, AttributeError, KeyError):  # an OptionError is a ValueError
        raise DamagedError(
            f"{path}:{number} is damaged; restore that line, or remove the file to resume: training does not read it"
        ) from None


def _line(report: "DataclassInstance") -> bytes:
    return json.dumps(asdict(report)).encode() + b"\n"


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


def need_wandb() -> Any:
    """Import Weights & Biases.

    Raises:
        MissingExtraError: It is not installed.
    """
    return need("wandb", extra="wandb", user="--wandb")


class _WandbRun:
    """A run of Weights & Biases. A resumed run continues the one that it began."""

    def __init__(self, output: Path, config: RunConfig, after: int) -> None:
        wandb = need_wandb()
        known = output / WANDB
        if not (after and known.exists()):
            with atomic_file(known) as file:
                file.write(secrets.token_hex(8).encode())
        self._run = wandb.init(
            project=config.wandb,
            name=output.name,
            id=known.read_text(),
            resume="allow",
            dir=os.fspath(output),
            config=config.to_dict(),
        )
        # Steps after the checkpoint that a run resumes from come again, which the service's own counter refuses.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()
