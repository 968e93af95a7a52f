"""Compressed algorithm distillation: from learning histories to a model that learns in context.

Histories are recorded once for a run and used by all of its seeds. Each seed has its own cuts of them, its own order
and first weights, and ends with an evaluation on held-out goals. Batches are planned: one structure each, within a
budget of steps. A run that was killed resumes from its last checkpoints and ends with the weights it would have had,
bit for bit on one machine.

    run.json            the options
    histories.h5        the learning histories of the source algorithm
    seed-0/             checkpoints, log.jsonl, in_context.json
    results.json        the evaluation of all seeds, and the references
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brim.core.errors import DamagedError, DataError, OptionError
from brim.core.fill import Fill
from brim.core.progress import Say, silent
from brim.envs.darkroom.histories import Histories, is_histories, write_histories
from brim.train.callbacks import OnStep
from brim.train.checkpoint import checkpoints
from brim.train.distill.checkpoint import check_seed
from brim.train.distill.config import DistillConfig
from brim.train.distill.evaluate import InContext, References, references
from brim.train.distill.seed_run import FORMAT, SeedRun, write_json
from brim.train.distill.yaml_files import config_from
from brim.train.log import LOG, logged
from brim.train.output import RUN, hold_output
from brim.train.report import StepReport
from brim.train.threads import torch_threads

FAMILY = "brim.distill/"
HISTORIES, RESULTS = "histories.h5", "results.json"
START_ANEW = "start a new run in another --output"
Watch = Callable[[StepReport], None]


@dataclass(frozen=True)
class DistillResult:
    """The outcome of a distillation."""

    config: DistillConfig
    seeds: tuple[InContext, ...]
    references: References
    weights: int
    """Number of weights of each model."""
    losses: tuple[float | None, ...]
    """Loss of the last step of each seed; None if it had been trained before."""
    fill: Fill
    seconds: float
    stopped: bool = False
    """Whether a signal ended the run early.

    Seeds that were not evaluated are missing then, and the run can be resumed.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-like values."""
        return {
            "format": FORMAT,
            "weights": self.weights,
            "references": asdict(self.references),
            "seeds": [seed.to_dict() for seed in self.seeds],
            "config": self.config.to_dict(),
        }


def train_distill(
    config: DistillConfig,
    *,
    output: str | Path,
    resume: bool = False,
    on_step: Watch | None = None,
    on_message: Say | None = None,
) -> DistillResult:
    """Record histories, train a model for each seed, and evaluate it on held-out goals.

    With `resume` the run in `output` is continued; seeds that are done are not trained again. SIGTERM and Ctrl-C end it
    after the next step, with a checkpoint.

    Raises:
        OptionError: The output holds a run, and `resume` is not given; or other files, which would be overwritten.
        MismatchError: The run in the output began with other options.
        DamagedError: A file of the run is damaged, and cannot be made again.
        BrimError: The loss is not finite, or a checkpoint cannot be written.
    """
    output = Path(output)
    say = on_message or silent
    began = time.monotonic()
    callbacks = [] if on_step is None else [OnStep(on_step)]
    with closing(hold_output(output)):
        _begin(output, config, resume=resume)
        with closing(_histories(output / HISTORIES, config, say)) as histories:
            runs: list[SeedRun] = []
            for seed in config.training.seeds:
                say(f"seed {seed}")
                with torch_threads(config.training.threads):
                    run = SeedRun(config, histories, output / f"seed-{seed}", seed, callbacks)
                    run.finish(say)
                runs.append(run)
                if run.is_stopping:
                    break
        result = DistillResult(
            config,
            seeds=tuple(run.in_context for run in runs if run.in_context is not None),
            references=references(config.histories, lanes=config.evaluation.lanes),
            weights=sum(weight.numel() for weight in runs[0].model.parameters()),
            losses=tuple(run.loss for run in runs),
            fill=sum((run.fill for run in runs), Fill()),
            seconds=time.monotonic() - began,
            stopped=runs[-1].is_stopping,
        )
        if not result.stopped:
            write_json(output / RESULTS, result.to_dict())
    return result


def config_of(output: str | Path) -> DistillConfig:
    """Read the options of the run in a directory.

    Raises:
        DataError: There is none.
        DamagedError: They cannot be read.
    """
    path = Path(output) / RUN
    try:
        run = json.loads(path.read_bytes())
        kind, values = run["format"], run["config"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{output} holds no run, so there is nothing to resume; start it without --resume") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"{path} is truncated or damaged; {START_ANEW}") from None
    if kind != FORMAT:
        raise OptionError(f"{output} holds a run of another kind ({kind}); choose another --output")
    try:
        return config_from(values)
    except (OptionError, AttributeError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); {START_ANEW}") from None


def _begin(output: Path, config: DistillConfig, *, resume: bool) -> None:
    """Refuse what would fail later or overwrite a foreign file, then write the options."""
    if resume:
        config.check_resumed(config_of(output))
    written = {HISTORIES: is_histories} if resume else {HISTORIES: is_histories, RUN: _is_ours, RESULTS: _is_ours}
    for path, is_ours in ((output / name, is_ours) for name, is_ours in written.items()):
        if path.exists() and not is_ours(path):
            raise OptionError(
                f"{path} is not a file of `brim train distill`, and would be overwritten; choose another --output"
            )
    if not resume and (any(checkpoints(folder) for folder in output.glob("seed-*")) or checkpoints(output)):
        raise OptionError(f"{output} holds a run already; continue it with --resume, or choose another --output")
    for seed in config.training.seeds:
        check_seed(folder := output / f"seed-{seed}")
        if checkpoints(folder):
            logged(folder / LOG)
    write_json(output / RUN, {"format": FORMAT, "config": config.to_dict()})


def _histories(path: Path, config: DistillConfig, say: Say) -> Histories:
    """Open the histories of the config, or record them now.

    They are a function of the config, so a damaged file can be replaced.
    """
    if path.exists():
        try:
            there = Histories(path)
        except DamagedError:
            say(f"{path} is damaged, or of another version of brim")
        else:
            if there.fingerprint == config.histories.fingerprint:
                return there
            there.close()
    say(f"recording {config.histories.repeats} histories for each goal")
    write_histories(path, config.histories)
    return Histories(path)


def _is_ours(path: Path) -> bool:
    """Whether a JSON file says that it belongs to a distillation, of any version."""
    try:
        return str(json.loads(path.read_bytes())["format"]).startswith(FAMILY)
    except (OSError, ValueError, KeyError, TypeError):
        return False
