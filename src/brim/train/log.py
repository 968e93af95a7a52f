"""What a run writes down as it goes: curves, and which samples it was trained on. Lines of JSON that a resumed run continues.

A run that was killed had taken steps after its last checkpoint. They are taken again, so their lines are cut off first: a file tells one
history, not two.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from brim.core.atomic import atomic_file
from brim.core.errors import BrimError, OptionError
from brim.core.extras import need
from brim.train.checkpoint import checkpoints
from brim.train.config import SftConfig
from brim.train.ranks import Ranks
from brim.train.report import RoundReport, StepReport

if TYPE_CHECKING:
    from brim.batch.torch import TensorBatch

RUN, RUN_FORMAT, LOCK = "run.json", "brim.run/1", ".lock"
LOG, SAMPLES, ROUNDS = "log.jsonl", "samples-rank{}.jsonl", "rounds.jsonl"


def hold_output(output: Path) -> IO[bytes]:
    """Make the directory of a run, and keep other processes out of it until the file that this returns is closed, or its process is gone.

    Raises:
        OptionError: It cannot be made.
        BrimError: Another process is training there.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = open(output / LOCK, "wb")  # noqa: SIM115  held by the run
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise OptionError(f"cannot write {output}: {reason or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BrimError(f"another process is training in {output}; wait for it to end, or choose another --output") from None
    except OSError:
        pass  # a file system without locks
    return file


def begin_output(output: Path, config: dict[str, Any]) -> None:
    """Write the options of a new run. One that ended before its first checkpoint is begun again.

    Raises:
        OptionError: The directory holds a run already.
    """
    if (output / RUN).exists() and checkpoints(output):
        raise OptionError(f"{output} holds a run already; continue it with --resume, or choose another --output")
    with atomic_file(output / RUN) as file:
        file.write(json.dumps({"format": RUN_FORMAT, "config": config}, indent=2).encode() + b"\n")


def unbegin_output(output: Path) -> None:
    """A run that was refused before its first step is none. What was tokenised stays for the next try."""
    for name in (RUN, LOCK):
        (output / name).unlink(missing_ok=True)
    with suppress(OSError):  # something is in it
        output.rmdir()


class Records:
    """The open files of a run on one rank: curves on the first, samples on each that was asked to write them."""

    def __init__(self, config: SftConfig, ranks: Ranks, *, after: int) -> None:
        """`after` is the step that the run goes on from."""
        self._output, self._every = Path(config.output), config.log_every
        self._log = self._samples = self._board = None
        ranks.together(lambda: _rewind(self._output, after) if ranks.is_main else None)
        if ranks.is_main:
            self._log = _Lines(self._output / LOG)
            self._board = _board(self._output, after) if config.tensorboard else None
        if config.record_samples:
            self._samples = _Lines(self._output / SAMPLES.format(ranks.rank))

    def samples(self, step: int, batches: "Sequence[TensorBatch]") -> None:
        if self._samples is not None:
            for batch in batches:
                self._samples.write({"step": step, "epoch": batch.epoch, "microbatch": batch.index, "samples": list(batch.ids)})

    def curves(self, report: StepReport, tokens: int, *, last: bool) -> None:
        """Now and then, at evaluations, and at both ends. `tokens` are those of all steps so far."""
        wanted = report.step % self._every == 0 or report.step == 1 or last or report.eval_loss is not None
        if self._log is None or not wanted:
            return
        values: dict[str, float] = {
            **({} if math.isnan(report.loss) else {"loss": report.loss}),
            "learning_rate": report.learning_rate,
            "grad_norm": report.grad_norm,
            "tokens": tokens,
            "tokens_per_second": report.tokens / max(report.seconds, 1e-9),
            "fill": report.fill.ratio,
            "epoch": report.epoch,
        }
        if report.eval_loss is not None:
            values["eval_loss"] = report.eval_loss
        self._log.write({"step": report.step, **values})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, report.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for opened in (self._log, self._samples, self._board):
            if opened is not None:
                opened.close()


class Rounds:
    """The rounds of a run that plays, in a file with a line for each. What a killed run had played after its checkpoint is played again,
    and cut off here.
    """

    def __init__(self, output: Path, rounds: int) -> None:
        """`rounds`: how many the run goes on from."""
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


def _rewind(output: Path, step: int) -> None:
    """Cut off what came after a step, in all files of the run."""
    for path in (output / LOG, *output.glob(SAMPLES.format("*"))):
        if path.exists():
            kept = [
                line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and json.loads(line)["step"] <= step
            ]
            with atomic_file(path) as file:
                file.writelines(kept)
