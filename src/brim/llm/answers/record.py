"""The record of a run, beside its output: `answers.run.json` for `answers.jsonl`.

It says from which input and with which options the output was made, and holds the digest of the output. A second start
of the same command finds by it that nothing is missing, and a file that brim did not write is never taken for one that
it did.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.core.document import Document
from brim.core.errors import DamagedError, DataError, MismatchError
from brim.core.fingerprint import digest_bytes, new_hash
from brim.core.options import check_unchanged

RUN = Document(format="brim.llm-run/1", what="the record of a run", again="remove it to start a new run")
READ_BYTES = 1 << 20
LONGEST_SHOWN = 40


def record_path(output: Path) -> Path:
    """Return the path of the record: answers.run.json for answers.jsonl, vectors.npy.run.json for vectors.npy."""
    return output.parent / f"{_base(output)}.run.json"


def failed_path(output: Path) -> Path:
    """Return the path of the list of failed rows, such as answers.failed.jsonl."""
    return output.parent / f"{_base(output)}.failed.jsonl"


def _base(output: Path) -> str:
    """Outputs of other kinds keep their suffix, so that vectors.npy and vectors.parquet do not share a record."""
    return output.stem if output.suffix == ".jsonl" else output.name


def check_same_options(
    before: Mapping[str, Any], after: Mapping[str, Any], *, may_change: tuple[str, ...] = (), advice: str
) -> None:
    """Compare the options of an earlier run with those of this one. `advice` ends the message.

    Raises:
        MismatchError: Some differ. The message is one line, also if a template has several.
    """
    try:
        check_unchanged(_shortened(before), _shortened(after), may_change=may_change)
    except MismatchError as error:
        raise MismatchError(f"{' '.join(str(error).split())}: {advice}") from None


def _shortened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace long texts by their beginning and a digest, for a message that can be read."""
    return {
        name: f"{value[:LONGEST_SHOWN]}... {digest_bytes(value.encode())[:8]}"
        if isinstance(value, str) and len(value) > LONGEST_SHOWN
        else value
        for name, value in options.items()
    }


def wrote(output: Path) -> bool:
    """Return whether the output is one of ours, unchanged since it was written."""
    record = _record(output)
    if record is None or not output.is_file():
        return False
    written = record.get("output")
    if not isinstance(written, Mapping) or written.get("bytes") != output.stat().st_size:
        return False
    return written.get("digest") == file_digest(output)


def finished(output: Path, options: Mapping[str, Any], *, force: bool) -> dict[str, Any] | None:
    """Return the record of a run that answered everything, if the output is there and was made with these options.

    Raises:
        MismatchError: The output is complete, but was made with other options, and `force` is not set.
    """
    record = _record(output) if wrote(output) else None
    if record is None or record["failed"]:
        return None
    try:
        advice = f"choose another output, or pass --force to replace {output}"
        check_same_options(record["options"], options, advice=advice)
    except MismatchError:
        if force:
            return None
        raise
    return record


def file_digest(path: str | os.PathLike[str]) -> str:
    hash = new_hash()
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            hash.update(chunk)
    return hash.hexdigest()


def _record(output: Path) -> dict[str, Any] | None:
    try:
        return RUN.read(record_path(output)) if record_path(output).exists() else None
    except (DataError, DamagedError):  # not a record of ours, so the output is not known to be ours either
        return None
