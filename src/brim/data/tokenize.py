"""Tokenise a data set into a `TokenStore`, once.

The lengths are measured first and say how large the file will be, so tokens go straight to their place in it and memory holds a few
blocks. Every row must come out as long as the table says: a data set or tokenizer that changed in between is an error, not a shift.
"""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.columns import fill_columns
from brim.core.errors import DamagedError, DataError, MismatchError, OptionError
from brim.core.progress import Progress
from brim.data.lengths import LengthCache
from brim.data.pool import available_cores, ordered_map
from brim.data.rows.encode import encode_rows, identity
from brim.data.rows.format import Layout
from brim.data.rows.source import Block, Source
from brim.data.token_store import FORMAT, TokenStore, is_token_store
from brim.data.tokenizer.base import Tokenizer

SMALL = 4 << 20  # bytes that are encoded before a worker process would have started


@dataclass(frozen=True, slots=True)
class BlockEncoder:
    """What a worker is sent: everything but the block."""

    source: Source
    tokenizer: Tokenizer
    layout: Layout

    def __call__(self, block: Block) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Lengths, tokens and what is learned, of all rows of the block."""
        encoded = encode_rows(self.source.read(block).rows, self.tokenizer, self.layout, lambda k: self.source.where_in(block, k))
        lengths = np.array([len(ids) for ids, _ in encoded], np.int32)
        tokens = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in encoded)])
        return lengths, tokens, np.concatenate([np.empty(0, np.uint8), *(mask for _, mask in encoded)])


def build_tokens(
    source: Source,
    output: str | os.PathLike[str],
    tokenizer: Tokenizer,
    layout: Layout,
    table: LengthCache,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TokenStore:
    """Write the store of `source`, whose lengths are in `table`, or open the one that is there if it is of the same data and tokenizer.

    Raises:
        MismatchError: A row is not as long as the table says.
        DataError: A row is not what it should be.
        OptionError: The output cannot be written, or is something else than a token store.
    """
    output = Path(output)
    meta: dict[str, Any] = {"dataset_hash": source.fingerprint, "tokenizer_hash": identity(tokenizer, layout), "pad_id": tokenizer.pad_id}
    if (there := _earlier(output, meta, len(table))) is not None:
        return there
    total = int(table.lengths.sum(dtype=np.int64))
    small = tokenizer.vocab_size <= 1 << 16 and layout.kind != "tokens"  # rows of tokens may hold any number
    shapes = {"tokens": ("uint16" if small else "uint32", total), "learned": ("uint8", total), "length": ("int32", len(table))}
    if workers is None:
        workers = 1 if source.size < SMALL else available_cores()
    with (
        fill_columns(output, FORMAT, meta, shapes) as columns,
        closing(ordered_map(BlockEncoder(source, tokenizer, layout), source.blocks(), workers=workers)) as blocks,
    ):
        columns["length"][:] = table.lengths
        _fill(columns, blocks, table, source, progress)
    return TokenStore.load(output, check=False)


def _fill(columns: dict[str, NDArray[Any]], blocks: Any, table: LengthCache, source: Source, progress: Progress | None) -> None:
    offsets, row = begins(table.lengths), 0
    for lengths, tokens, learned in blocks:
        expected = table.lengths[row : row + len(lengths)]
        wrong = np.flatnonzero(lengths[: len(expected)] != expected)
        if len(wrong) or len(expected) < len(lengths):
            first = row + (int(wrong[0]) if len(wrong) else len(expected))
            raise MismatchError(
                f"{source.where(first)} is not as long as its length table says: the data or the tokenizer changed; measure it again with "
                "`brim lengths build`"
            )
        if len(lengths):
            start = int(offsets[row])
            columns["tokens"][start : start + len(tokens)] = tokens
            columns["learned"][start : start + len(tokens)] = learned
            row += len(lengths)
        if progress is not None:
            progress(row, len(table))
    if row != len(table):
        raise MismatchError(f"{source.path} has {row} rows, its length table {len(table)}; measure it again with `brim lengths build`")


def _earlier(output: Path, meta: dict[str, Any], rows: int) -> TokenStore | None:
    if not output.exists() or (output.is_file() and not output.stat().st_size):
        return None
    if not is_token_store(output):
        raise OptionError(f"will not replace {output}: it is not a token store; remove it or choose another output")
    try:
        store = TokenStore.load(output)
    except (DamagedError, DataError):
        return None
    same = len(store) == rows and all(getattr(store, name) == value for name, value in meta.items())
    return store if same else None
