"""Read a GRPO run from its output directory, while it runs or after it.

    run.json          the options of the run
    rollouts.jsonl    a report on every rollout
    before.json       the evaluation before the first step, if one was made
    model/            the trained model, once the run is over

Nothing is written or locked, so that a run can be looked at from another process. Of a long run, only the texts that
a page shows are kept: those of the first and the last rollout, and those of a few evaluations.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from brim.core.document import Document
from brim.core.errors import DamagedError, DataError, OptionError
from brim.core.options import from_dict
from brim.train.grpo.page.runs import RunShown, spread
from brim.train.grpo.page.through import MOST_EVALUATIONS
from brim.train.grpo.report import Evaluation, RolloutReport
from brim.train.output import RUN, RUN_FORMAT

ROLLOUTS, BEFORE, MODEL = "rollouts.jsonl", "before.json", "model"

OPTIONS_FILE = Document(format=RUN_FORMAT, what="the options of a run", checksum="none")
EVALUATION_FILE = Document(format="brim.grpo-evaluation/1", what="an evaluation of a GRPO run")


def read_run(directory: Path) -> RunShown:
    """Read a run. Its name is the directory as it was given.

    Raises:
        DataError: There is no run in the directory.
        DamagedError: A file is damaged. A last line of `rollouts.jsonl` that a kill cut off is ignored.
    """
    if not (directory / RUN).exists():
        raise DataError(f"{directory} holds no run: there is no {RUN}; give the --output of a run")
    config = OPTIONS_FILE.read(directory / RUN).get("config")
    if not isinstance(config, dict):
        raise DamagedError(f"{directory / RUN} is damaged: it has no options")
    before = _evaluation(directory / BEFORE) if (directory / BEFORE).exists() else None
    return RunShown(
        name=str(directory),
        rollouts=_rollouts(directory / ROLLOUTS, has_before=before is not None),
        before=before,
        options=config,
        is_over=(directory / MODEL).exists(),
    )


def _evaluation(path: Path) -> Evaluation:
    try:
        return from_dict(Evaluation, EVALUATION_FILE.read(path))
    except OptionError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _rollouts(path: Path, *, has_before: bool) -> list[RolloutReport]:
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    starts: list[int] = []
    with open(path, "rb") as file:
        start = 0
        for line in file:
            if not line.endswith(b"\n") and not _is_whole(line):  # a kill cut it off, or it is being written
                break
            found.append(_values(path, len(found), line, with_texts=False))
            starts.append(start)
            start += len(line)
        for at in _with_texts(found, has_before=has_before):
            file.seek(starts[at])
            found[at] = _values(path, at, file.readline(), with_texts=True)
    return [_report(path, at, values) for at, values in enumerate(found)]


def _is_whole(line: bytes) -> bool:
    try:
        _loads(line)
    except ValueError:
        return False
    return True


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # NaN and the infinities, which are in a report if training diverged
        return json.loads(line)


def _with_texts(found: Sequence[dict[str, Any]], *, has_before: bool) -> set[int]:
    """Return the rollouts whose texts are shown: the first, the last, and those with an evaluation that is chosen."""
    evaluated = [-1] * has_before + [at for at, values in enumerate(found) if values["evaluation"] is not None]
    chosen = {evaluated[at] for at in spread(len(evaluated), MOST_EVALUATIONS)}
    return {at for at in chosen | {0, len(found) - 1} if 0 <= at < len(found)}


def _values(path: Path, at: int, line: bytes, *, with_texts: bool) -> dict[str, Any]:
    try:
        values = _loads(line)
        if not with_texts:
            values["shown"] = []
            if values["evaluation"] is not None:
                values["evaluation"]["shown"] = []
    except (ValueError, TypeError, KeyError):
        raise _damaged(path, at) from None
    return values


def _report(path: Path, at: int, values: dict[str, Any]) -> RolloutReport:
    try:
        return RolloutReport.from_dict(values)
    except OptionError as error:
        raise _damaged(path, at, f": {error}") from None


def _damaged(path: Path, at: int, why: str = "") -> DamagedError:
    return DamagedError(
        f"{path}:{at + 1} is damaged{why}; restore that line, or remove the file: training does not read it"
    )
