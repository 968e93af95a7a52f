"""The protocol of a source of rows.

A source is a list of rows with random access, and can be read in blocks. A `Block` is two numbers, so it can be sent to
another process and read there, together with the source, which pickles as its path. Positions inside a source are byte
offsets for JSONL and row numbers for tables; callers only pass on positions that they got from the source.
`brim.data.rows.open` makes a source from a path.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Torn = Literal["error", "skip"]


class Block(NamedTuple):
    """A part of a source, from one position up to another."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a block, the number of blank lines among them, and, on request, the bytes that the digest covers."""

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
        """Size on disk, in bytes."""
        ...

    @property
    def end(self) -> int:
        """The position after the last row."""
        ...

    @property
    def torn(self) -> int:
        """Number of torn lines at the end, which are left out."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content of the rows. The path and the time of writing do not change it."""
        ...

    def __len__(self) -> int: ...
    def row(self, number: int) -> dict[str, Any]: ...
    def where(self, number: int) -> str:
        """Return the location of a row for an error message, such as "train.jsonl:48213"."""
        ...

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the blocks from a position to the end: about half a megabyte of JSONL, or up to 1,000 table rows."""
        ...

    def read(self, block: Block, *, raw: bool = False) -> Rows:
        """Read a block; with `raw`, also the bytes with which `absorb` continues the digest."""
        ...

    def where_in(self, block: Block, number: int) -> str:
        """Return the location of the `number`-th row of a block for an error message."""
        ...

    def digest(self, end: int) -> str:
        """Return the digest of everything before a position. Cheapest when the positions of successive calls ascend."""
        ...

    def absorb(self, block: Block, raw: bytes) -> None:
        """Continue the digest with a block that was read already, perhaps by another process, so that it need not be
        read again.

        Blocks are absorbed in ascending order. A block that does not continue what was digested before is ignored:
        `digest` then reads the missing data itself.
        """
        ...

    def starts_with(self, end: int, digest: str) -> bool:
        """Return whether `blocks(end)` continues an earlier reading up to `end`, which had this digest."""
        ...
