"""`TokenStore`: the tokens of a data set in one memory-mapped file.

It has one flat column of tokens (uint16 if the vocabulary allows, else uint32), one of their loss mask, and the offset
of every sample. A training run reads spans of it without copying and without a worker process. Opening a store reads
its headers; a sample is verified when one of its tokens is first asked for. A store belongs to one data set and one
tokenizer, and records their fingerprints. Samples are in the order of the length table, not in that of batches.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.column import Column
from brim.core.columns import Columns, is_columns
from brim.core.errors import DamagedError, DataError, MismatchError
from brim.data.sample import Sample

FORMAT = "brim.tokens/2"
FORMAT_1 = "brim.tokens/1"


class Spans(NamedTuple):
    """Spans of tokens and their loss mask: span i begins at offset `begin[i]` of the two flat columns."""

    tokens: NDArray[Any]
    learned: NDArray[np.uint8]
    begin: NDArray[np.int64]


class TokenSource(Protocol):
    """The source of a batch's tokens: a `TokenStore`, or `Samples`, which tokenises rows when they are accessed."""

    @property
    def pad_id(self) -> int: ...
    @property
    def dataset_hash(self) -> str: ...
    @property
    def tokenizer_hash(self) -> str:
        """Fingerprint of the tokenizer and the layout of the rows, as in a `LengthCache`."""
        ...

    def __len__(self) -> int: ...
    def spans(
        self, rows: NDArray[np.integer[Any]], starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> Spans:
        """Return `lengths[i]` tokens of row `rows[i]`, from its token `starts[i]` on, for every i.

        Raises:
            MismatchError: A row has fewer tokens: the plan was made for other data.
        """
        ...

    def sample(self, row: int) -> Spans:
        """Return all tokens of one row."""
        ...


class TokenStore:
    """Random access to tokens by row, in memory or memory-mapped from a file. It pickles as its path if it has one.

    Example:
        >>> store = TokenStore.from_samples([Sample("a", [5, 6, 7], [0, 1, 1]), Sample("b", [8], [1])])
        >>> len(store), store.lengths.tolist(), store.sample(0).tokens.tolist()
        (2, [3, 1], [5, 6, 7])
    """

    def __init__(
        self,
        tokens: NDArray[Any] | Column,
        learned: NDArray[np.uint8] | Column,
        starts: NDArray[np.int64] | Column,
        lengths: NDArray[np.int32] | Column,
        *,
        pad_id: int = 0,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        path: Path | None = None,
    ) -> None:
        """Make a store of columns. Use `from_samples`, `load` or `brim.data.tokenize.build_tokens` instead."""
        self._tokens, self._learned = Column.of(tokens), Column.of(learned)
        self._starts, self.length = Column.of(starts), Column.of(lengths)
        self.pad_id, self.dataset_hash, self.tokenizer_hash, self.path = pad_id, dataset_hash, tokenizer_hash, path
        verified = all(column.is_verified for column in self._columns)
        # Which rows were verified, with all of their tokens; None if nothing is left to verify.
        self._seen = None if verified else np.zeros(len(self), np.bool_)
        self._unseen = len(self)
        self._file: tuple[int, ...] = ()  # the file that was opened, as other processes recognise it

    @property
    def _columns(self) -> tuple[Column, ...]:
        return (self._tokens, self._learned, self._starts, self.length)

    @property
    def tokens(self) -> NDArray[Any]:
        """The tokens of all samples, end to end; read and verified as a whole, as the other three are."""
        return self._tokens.whole

    @property
    def learned(self) -> NDArray[np.uint8]:
        """The loss mask of all tokens."""
        return self._learned.whole

    @property
    def starts(self) -> NDArray[np.int64]:
        """The offset of each sample in `tokens`."""
        return self._starts.whole

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sample. `length` is the same column, to read some of them from."""
        return self.length.whole

    @classmethod
    def from_samples(
        cls, samples: Iterable[Sample], *, pad_id: int = 0, dataset_hash: str = "", tokenizer_hash: str = ""
    ) -> "TokenStore":
        """Make a store in memory, with the samples in the order given."""
        samples = list(samples)
        lengths = np.array([sample.length for sample in samples], np.int32)
        tokens = np.concatenate([np.empty(0, np.int32), *(sample.input_ids for sample in samples)])
        learned = np.concatenate([np.empty(0, np.uint8), *(sample.loss_mask for sample in samples)])
        return cls(
            tokens,
            learned,
            begins(lengths),
            lengths,
            pad_id=pad_id,
            dataset_hash=dataset_hash,
            tokenizer_hash=tokenizer_hash,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, check: bool = True) -> "TokenStore":
        """Memory-map a store, whose headers are read. With `check`, what is read later is verified first, once.

        Raises:
            DataError: There is no such file, or it is not a token store.
            DamagedError: It is truncated, altered or of another version.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(
                f"{path} does not exist" if not path.exists() else f"{path} is a directory, not a token store"
            )
        file = _identity(path)
        columns = Columns(path, FORMAT, older=(FORMAT_1,), check=check)
        meta: Mapping[str, Any] = columns.meta
        tokens, learned, lengths = (columns.column(name) for name in ("tokens", "learned", "length"))
        if columns.format == FORMAT_1:
            columns.verify()
        starts = columns.column("start") if "start" in columns else begins(lengths.whole)
        if len(starts) != len(lengths) or len(tokens) != len(learned):
            raise DamagedError(f"{path} is damaged (its columns do not fit together); write the file again")
        store = cls(
            tokens,
            learned,
            starts,
            lengths,
            pad_id=meta["pad_id"],
            dataset_hash=meta["dataset_hash"],
            tokenizer_hash=meta["tokenizer_hash"],
            path=path,
        )
        store._file = file
        return store

    def verify(self) -> None:
        """Read everything. Afterwards, nothing is left to verify.

        Raises:
            DamagedError: The file is not as it was written.
        """
        for column in self._columns:
            _ = column.whole
        if np.any(self.starts < 0) or np.any(self.starts + self.lengths > len(self._tokens)):
            raise DamagedError(f"{self.path} is damaged (a sample lies outside of its tokens); write the file again")
        self._seen = None

    def __reduce__(self) -> Any:
        if self.path is not None:  # another process verifies by itself, unless all of the same file was verified
            return (_reopen, (self.path, self._file if self._seen is None else None))
        parts = (self.tokens, self.learned, self.starts, self.lengths)
        return (_rebuild, (parts, {name: getattr(self, name) for name in ("pad_id", "dataset_hash", "tokenizer_hash")}))

    def __len__(self) -> int:
        return len(self.length)

    def spans(
        self, rows: NDArray[np.integer[Any]], starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> Spans:
        ends = starts + lengths
        seen = self._seen  # another thread may set it to None
        try:
            if seen is not None and not seen.take(rows).all():
                self._verify_rows(rows, seen)
            beyond = np.count_nonzero(ends > self.length.values.take(rows))
        except IndexError:
            raise shorter(self, rows, ends) from None
        if beyond:
            raise shorter(self, rows, ends)
        begin: NDArray[np.int64] = self._starts.values.take(rows)
        begin += starts
        return Spans(self._tokens.values, self._learned.values, begin)

    def sample(self, row: int) -> Spans:
        """Return all tokens of one sample."""
        row, seen = range(len(self))[row], self._seen
        if seen is not None and not seen[row]:
            self._verify_rows(np.array([row]), seen)
        start = int(self._starts.values[row])
        stop = start + int(self.length.values[row])
        return Spans(self._tokens.values[start:stop], self._learned.values[start:stop], np.zeros(1, np.int64))

    def take(self, rows: NDArray[np.integer[Any]], *, dataset_hash: str) -> "TokenStore":
        """Return a store of some of the samples, as a data set of its own. It shares the tokens."""
        return TokenStore(
            self._tokens,
            self._learned,
            self._starts[rows],
            self.length[rows],
            pad_id=self.pad_id,
            dataset_hash=dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
        )

    def _verify_rows(self, rows: NDArray[np.integer[Any]], seen: NDArray[np.bool_]) -> None:
        """Verify the rows that have not been: their places, and all of their tokens."""
        new = np.array(sorted(set(rows[~seen[rows]].tolist())), np.int64)
        starts = self._starts[new]
        stops = starts + self.length[new]
        if np.any(starts < 0) or np.any(stops > len(self._tokens)):
            raise DamagedError(f"{self.path} is damaged (a sample lies outside of its tokens); write the file again")
        self._tokens.spans(starts, stops)
        self._learned.spans(starts, stops)
        seen[new] = True
        # Threads that verify the same rows at the same time both count them, so the count is only a hint.
        self._unseen -= len(new)
        if self._unseen <= 0:
            self._unseen = int(np.count_nonzero(~seen))
            if not self._unseen:
                self._seen = None


def shorter(source: TokenSource, rows: NDArray[np.integer[Any]], ends: NDArray[np.integer[Any]]) -> MismatchError:
    """Return the error for a plan that asks for more tokens than a row has, or for a row that does not exist."""
    beyond = rows[rows >= len(source)]
    if len(beyond):
        return MismatchError(
            f"this plan was built for other data: it asks for row {int(beyond[0])}, the data has {len(source)} rows"
        )
    return MismatchError(
        f"this plan was built for other data or another tokenizer: it asks for up to {int(ends.max())} tokens of "
        "rows that are shorter"
    )


def is_token_store(path: Path) -> bool:
    return path.is_file() and is_columns(path, FORMAT)


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced or written to."""
    found = os.stat(path)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _reopen(path: Path, verified: tuple[int, ...] | None) -> TokenStore:
    """Open a store in another process; `verified` is the file if all of it was verified there."""
    return TokenStore.load(path, check=not path.is_file() or verified != _identity(path))


def _rebuild(parts: tuple[Any, ...], options: dict[str, Any]) -> TokenStore:
    return TokenStore(*parts, **options)
