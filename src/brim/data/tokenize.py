"""Tokenise a data set into a `TokenStore`, once.

`measure_and_tokenize` makes the length table and the store in one pass: the data is read once, and every row is
tokenised once. `build_tokens` makes the store of a data set that was measured before, and checks that every row is as
long as the table says: if the data set or the tokenizer changed in between, it raises an error instead of shifting the
tokens of later rows. Either way, memory holds a few blocks and the length table.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.columns import ColumnStream, stream_columns
from brim.core.errors import DamagedError, DataError, MismatchError, OptionError
from brim.core.progress import Progress, silent
from brim.data.journal import Journal, Measured
from brim.data.lengths import LengthCache
from brim.data.measure import as_measured, check_output, choose_workers, finished, joined
from brim.data.pool import ordered_map
from brim.data.rows.encode import encode_flat, identity
from brim.data.rows.format import Layout
from brim.data.rows.open import open_source
from brim.data.rows.row_ids import IdBlock
from brim.data.rows.source import Block, Source
from brim.data.token_store import FORMAT, TokenStore, is_token_store
from brim.data.tokenizer.base import Tokenizer

OTHERS = {"learned": "uint8", "length": "int32", "start": "int64"}
"""Columns of a store besides its tokens, and their types."""


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The result of a worker process for one block: its measured rows, their tokens and loss mask, and the bytes that
    the digest of the source covers.
    """

    measured: Measured
    tokens: NDArray[Any]
    learned: NDArray[np.uint8]
    raw: bytes


@dataclass(frozen=True, slots=True)
class BlockEncoder:
    """The work of a worker process, pickled once for each: everything but the block."""

    source: Source
    tokenizer: Tokenizer
    layout: Layout
    dtype: str
    with_ids: bool
    """Whether ids and groups are collected too. A length table that exists already has them."""

    def __call__(self, block: Block) -> Tokenised:
        read = self.source.read(block, raw=True)
        where = partial(self.source.where_in, block)
        lengths, tokens, learned = encode_flat(read.rows, self.tokenizer, self.layout, where)
        if self.with_ids:
            measured = as_measured(block, read, lengths, self.layout, where)
        else:
            measured = Measured(block.start, block.stop, read.blank, lengths, IdBlock())
        return Tokenised(measured, tokens.astype(self.dtype), learned, read.raw)


def measure_and_tokenize(
    source: Source,
    lengths: str | os.PathLike[str],
    tokens: str | os.PathLike[str],
    tokenizer: Tokenizer,
    layout: Layout,
    *,
    workers: int | None = None,
    progress: Progress = silent,
) -> tuple[LengthCache, TokenStore]:
    """Write the length table and the token store of `source` in one pass, byte for byte as `build_lengths` and
    `build_tokens` do.

    If a table of the same data and tokenizer exists already, it is opened, and only the store is made, unless that
    exists too. A pass that is killed leaves no partially written file; the next one starts over. `progress` is called
    with the number of bytes done and of all bytes; with numbers of rows if only the store is made.

    Raises:
        DataError: A row is invalid; nothing is written.
        OptionError: An output cannot be written, or it exists and is not a length table or a token store.
        BrimError: Another build is writing the same table, or a worker process died.
    """
    lengths = Path(lengths)
    tokens = Path(tokens)
    check_output(lengths, source.path)
    table = finished(lengths, source, identity(tokenizer, layout))
    if table is not None:
        return table, build_tokens(source, tokens, tokenizer, layout, table, workers=workers, progress=progress)
    _check_store(tokens)
    # Opened only for its lock. Nothing is recorded, since starting over costs less than a second pass.
    journal = Journal(lengths)
    try:
        done: list[Measured] = []
        encoder = BlockEncoder(source, tokenizer, layout, _dtype(tokenizer, layout), with_ids=True)
        with stream_columns(tokens, FORMAT, {"tokens": encoder.dtype, **OTHERS}) as columns:
            for measured in _encode(encoder, columns, workers):
                done.append(measured)
                progress(source.size * measured.stop // max(source.end, 1), source.size)
            table = joined(done, source, tokenizer, layout)
            _append_places(columns, table)
            columns.meta.update(_meta(source, tokenizer, layout))
        table.save(lengths)
    finally:
        journal.close(keep=False)
    return table, TokenStore.load(tokens, check=False)


def build_tokens(
    source: Source | str | os.PathLike[str],
    output: str | os.PathLike[str],
    tokenizer: Tokenizer,
    layout: Layout,
    table: LengthCache,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TokenStore:
    """Write the token store of a data set whose lengths are in `table`, or open the existing store if it is of the same
    data and tokenizer.

    `progress` is called with the number of rows done and the number of all rows.

    Raises:
        MismatchError: A row is not as long as the table says, or the table has another number of rows.
        DataError: A row is invalid.
        OptionError: The output cannot be written, or it exists and is not a token store.
    """
    data = open_source(source) if isinstance(source, str | os.PathLike) else source
    output = Path(output)
    if (there := _earlier(output, data, tokenizer, layout, len(table))) is not None:
        return there
    encoder = BlockEncoder(data, tokenizer, layout, _dtype(tokenizer, layout), with_ids=False)
    row = 0
    with stream_columns(output, FORMAT, {"tokens": encoder.dtype, **OTHERS}) as columns:
        for measured in _encode(encoder, columns, workers):
            _check_lengths(table, row, measured.lengths, data)
            row += len(measured.lengths)
            if progress is not None:
                progress(row, len(table))
        if row != len(table):
            raise MismatchError(
                f"{data.path} has {row} rows, its length table {len(table)}; measure it again with `brim lengths build`"
            )
        _append_places(columns, table)
        columns.meta.update(_meta(data, tokenizer, layout))
    return TokenStore.load(output, check=False)


def _encode(encoder: BlockEncoder, columns: ColumnStream, workers: int | None) -> Iterator[Measured]:
    """Tokenise all blocks into the columns of a new store, and yield them measured, in order."""
    source = encoder.source
    with closing(ordered_map(encoder, source.blocks(), workers=workers or choose_workers(source))) as blocks:
        for block in blocks:
            source.absorb(Block(block.measured.start, block.measured.stop), block.raw)
            columns.append("tokens", block.tokens)
            columns.append("learned", block.learned)
            yield block.measured


def _append_places(columns: ColumnStream, table: LengthCache) -> None:
    """Write where each row lies in the tokens, once all of them are there."""
    columns.append("length", table.lengths)
    columns.append("start", begins(table.lengths))


def _check_lengths(table: LengthCache, row: int, lengths: NDArray[np.int32], source: Source) -> None:
    """Check that the lengths of the rows from `row` on are those of the table."""
    expected = table.lengths[row : row + len(lengths)]
    wrong = np.flatnonzero(lengths[: len(expected)] != expected)
    if len(wrong) or len(expected) < len(lengths):
        first = row + (int(wrong[0]) if len(wrong) else len(expected))
        raise MismatchError(
            f"{source.where(first)} is not as long as its length table says: the data or the tokenizer changed; "
            "measure it again with `brim lengths build`"
        )


def _dtype(tokenizer: Tokenizer, layout: Layout) -> str:
    """Return the type of the tokens: 16 bits if the vocabulary allows, else 32.

    Rows of tokens may hold any id, and always have 32.
    """
    return "uint16" if tokenizer.vocab_size <= 1 << 16 and layout.kind != "tokens" else "uint32"


def _meta(source: Source, tokenizer: Tokenizer, layout: Layout) -> dict[str, Any]:
    """Return the fingerprints and the padding id that a store records."""
    return {
        "dataset_hash": source.fingerprint,
        "tokenizer_hash": identity(tokenizer, layout),
        "pad_id": tokenizer.pad_id,
    }


def _earlier(output: Path, source: Source, tokenizer: Tokenizer, layout: Layout, rows: int) -> TokenStore | None:
    """Return the store at `output` if it is of the same data and tokenizer, else None."""
    if not _check_store(output):
        return None
    try:
        store = TokenStore.load(output)
        meta = _meta(source, tokenizer, layout)
        if len(store) != rows or any(getattr(store, name) != value for name, value in meta.items()):
            return None
        store.verify()  # a damaged store must be written again
    except (DamagedError, DataError):
        return None
    return store


def _check_store(output: Path) -> bool:
    """Return whether a token store exists at `output`. Anything else there but an empty file is an error, so that a
    mistyped output never destroys data.
    """
    if not output.exists() or (output.is_file() and not output.stat().st_size):
        return False
    if not is_token_store(output):
        raise OptionError(f"will not replace {output}: it is not a token store; remove it or choose another output")
    return True
