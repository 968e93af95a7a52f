"""JSON documents that say their format, their version and a checksum of themselves.

    {"format": "brim.plan/1", ..., "checksum": "5f3a9c.."}

A `Document` describes one kind: its format, what it is called in messages, and what to do when it cannot be read. Every
kind is written and refused in the same way and with the same words. The checksum covers all other names and values as
canonical JSON, so a document can be indented otherwise, but not altered. Kinds that people write by hand have none, or
may leave it out.
"""

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import canonical_json, digest_bytes

LARGEST = 1 << 28
"""Bytes of a document, unless its kind says otherwise: parsing needs about ten times as much memory."""


def _digest(values: Mapping[str, Any]) -> str:
    return digest_bytes(canonical_json(values))


@dataclass(frozen=True, kw_only=True)
class Document:
    """A kind of JSON document."""

    format: str
    """Family and version, such as "brim.plan/1"."""
    what: str
    """The document in messages, with its article: "a plan"."""
    again: str = ""
    """Advice at the end of an error about a document that cannot be read, such as "build the plan again"."""
    checksum: Literal["required", "optional", "none"] = "required"
    """An optional checksum is verified if there is one; a document without it is accepted."""
    largest: int = LARGEST
    """Bytes above which a file is refused unread."""

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a document: indented JSON that begins with its format and ends with its checksum."""
        document = {"format": self.format, **values}
        if self.checksum != "none":
            document["checksum"] = self.digest(values)
        return json.dumps(document, indent=2).encode() + b"\n"

    def digest(self, values: Mapping[str, Any]) -> str:
        """Return the checksum of a document with these values."""
        return _digest({"format": self.format, **values})

    def write(self, path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
        """Write a document, whole or not at all."""
        with atomic_file(path) as file:
            file.write(self.encode(values))

    def read(self, path: str | os.PathLike[str], *, again: str | None = None) -> dict[str, Any]:
        """Read a document and return its values, without its format and its checksum.

        `again` replaces the kind's own advice.

        Raises:
            DataError: There is no such file, it is not a regular file, it is too large, or it is of another kind.
            DamagedError: It is truncated, altered, or of another version.
        """
        return self.decode(self._bytes(Path(path)), path, again=again)

    def decode(
        self,
        data: bytes,
        name: object,
        *,
        again: str | None = None,
        loads: Callable[[bytes], Any] | None = None,
        digest: Callable[[dict[str, Any]], str] = _digest,
    ) -> dict[str, Any]:
        """Do the same with the bytes of a document; `name` says in messages where they are from.

        A kind that is written in another way than `encode` gives its own `loads` and `digest`.
        """
        try:
            values = _loads(data) if loads is None else loads(data)
        except RecursionError:
            self._refuse(DamagedError, f"{name} is truncated or damaged: it is nested too deeply", again)
        except ValueError:
            self._refuse(DamagedError, f"{name} is truncated or damaged: it is not JSON", again)
        return self.check(values, name, again=again, digest=digest)

    def check(
        self,
        values: Any,
        name: object,
        *,
        again: str | None = None,
        digest: Callable[[dict[str, Any]], str] = _digest,
    ) -> dict[str, Any]:
        """Do the same with values that were parsed already."""
        family = self.format.split("/")[0]
        if not isinstance(values, dict):
            self._refuse(DamagedError, f"{name} is truncated or damaged: it is not a JSON object", again)
        values = dict(cast(dict[str, Any], values))
        format = values.get("format")
        if not isinstance(format, str) or format.split("/")[0] != family:
            self._refuse(DataError, f"{name} is not {self.what}: it does not say that it is {family}", again)
        if format != self.format:
            self._refuse(DamagedError, f"{name} is of version {format}, this brim reads {self.format}", again)
        if self.checksum != "none":
            self._check_digest(values, name, again, digest)
        del values["format"]
        return values

    def _check_digest(
        self, values: dict[str, Any], name: object, again: str | None, digest: Callable[[dict[str, Any]], str]
    ) -> None:
        """Take the checksum out of the values and compare it."""
        given = values.pop("checksum", None)
        if given is None and self.checksum == "optional":
            return
        try:
            whole = digest(values) == given
        except (ValueError, RecursionError):  # numbers that JSON does not have: nothing of ours wrote them
            whole = False
        if not whole:
            self._refuse(DamagedError, f"{name} was altered (its checksum differs)", again)

    def _bytes(self, path: Path) -> bytes:
        try:
            about = path.stat()
            if stat.S_ISDIR(about.st_mode):
                raise DataError(f"cannot read {path}: it is a directory")
            if not stat.S_ISREG(about.st_mode):  # reading a pipe could wait for ever
                raise DataError(f"cannot read {path}: it is not a regular file")
            if about.st_size > self.largest:
                raise DataError(
                    f"cannot read {path}: it is too large for {self.what} ({about.st_size} bytes, at most "
                    f"{self.largest})"
                )
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None

    def _refuse(self, kind: type[DataError] | type[DamagedError], problem: str, again: str | None) -> NoReturn:
        advice = self.again if again is None else again
        raise kind(f"{problem}; {advice}" if advice else problem) from None


def _loads(data: bytes) -> Any:
    return json.loads(data, parse_constant=_not_json)


def _not_json(constant: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(constant)
