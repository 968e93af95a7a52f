"""The protocol of a source of rows.

A source is a list of rows that can be read anywhere and in blocks. A `Block` is two numbers, so the work of reading it
can be handed to another process together with the source, which pickles as its path. Positions inside a source are
bytes for JSONL and row numbers for tables; callers only ever pass on the ones they were given. `brim.data.rows.open`
makes a source from a path.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Torn = Literal["error", "skip"]


class Block(NamedTuple):
    """A stretch of a source, from one position up to another."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a block, how many blank lines lay between them, and, if asked for, the bytes that the digest
    covers.
    """

    rows: list[dict[str, Any]]
    blank: int = 0
    raw: bytes = b""


class Source(Protocol):
    """A data set on disk, as it was when it was opened: rows that are appended later are not seen."""

    @property
    def path(self) -> Path: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes on disk."""
        ...

    @property
    def end(self) -> int:
        """The position behind the last row."""
        ...

    @property
    def torn(self) -> int:
        """How many torn lines at the end are left out."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of what the rows are: not of the path, nor of the time they were written."""
        ...

    def __len__(self) -> int: ...
    def row(self, number: int) -> dict[str, Any]: ...
    def where(self, number: int) -> str:
        """The place of a row, for an error: "train.jsonl:48213"."""
        ...

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Everything from a position to the end, in blocks of about half a megabyte or a thousand rows."""
        ...

    def read(self, block: Block, *, raw: bool = False) -> Rows:
        """Read a block; with `raw`, together with the bytes that `absorb` continues the digest with."""
        ...

    def where_in(self, block: Block, number: int) -> str:
        """The place of the `number`-th row of a block."""
        ...

    def digest(self, end: int) -> str:
        """Of everything before a position. Cheapest when asked for in ascending order."""
        ...

    def absorb(self, block: Block, raw: bytes) -> None:
        """Continue the digest with a block that was read already, perhaps by another process, so that it need not be
        read again.

        Blocks are absorbed in ascending order. One that does not continue what was digested before is ignored: `digest`
        then reads what it lacks.
        """
        ...

    def starts_with(self, end: int, digest: str) -> bool:
        """Whether an earlier reading up to `end`, which had that digest, can be continued by `blocks(end)`."""
        ...
