"""`TokenStore`: the tokens of a data set in one memory-mapped file.

It has one flat column of tokens (uint16 if the vocabulary allows, else uint32), one of their loss mask, and the offset
of every sample. A training run reads spans of it without copying and without a worker process. A store belongs to one
data set and one tokenizer, and records their fingerprints. Samples are in the order of the length table, not in that of
batches.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.columns import Columns, is_columns
from brim.core.errors import DataError, MismatchError
from brim.data.sample import Sample

FORMAT = "brim.tokens/1"


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
        tokens: NDArray[Any],
        learned: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int32],
        *,
        pad_id: int = 0,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        path: Path | None = None,
    ) -> None:
        """Make a store of columns. Use `from_samples`, `load` or `brim.data.tokenize.build_tokens` instead."""
        self.tokens, self.learned, self.starts, self.lengths = tokens, learned, starts, lengths
        self.pad_id, self.dataset_hash, self.tokenizer_hash, self.path = pad_id, dataset_hash, tokenizer_hash, path

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
        """Memory-map a store. `check` verifies its checksums, for which it is read once.

        Raises:
            DataError: There is no such file, or it is not a token store.
            DamagedError: It is truncated, altered or of another version.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(
                f"{path} does not exist" if not path.exists() else f"{path} is a directory, not a token store"
            )
        columns = Columns(path, FORMAT, check=check)
        meta: Mapping[str, Any] = columns.meta
        lengths = columns["length"]
        return cls(
            columns["tokens"],
            columns["learned"],
            begins(lengths),
            lengths,
            pad_id=meta["pad_id"],
            dataset_hash=meta["dataset_hash"],
            tokenizer_hash=meta["tokenizer_hash"],
            path=path,
        )

    def __reduce__(self) -> Any:
        if self.path is not None:
            return (_reopen, (self.path,))
        parts = (self.tokens, self.learned, self.starts, self.lengths)
        return (_rebuild, (parts, {name: getattr(self, name) for name in ("pad_id", "dataset_hash", "tokenizer_hash")}))

    def __len__(self) -> int:
        return len(self.lengths)

    def spans(
        self, rows: NDArray[np.integer[Any]], starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> Spans:
        ends = starts + lengths
        try:
            beyond = np.count_nonzero(ends > self.lengths.take(rows))
        except IndexError:
            raise shorter(self, rows, ends) from None
        if beyond:
            raise shorter(self, rows, ends)
        begin = self.starts.take(rows)
        begin += starts
        return Spans(self.tokens, self.learned, begin)

    def sample(self, row: int) -> Spans:
        """Return all tokens of one sample."""
        start, stop = int(self.starts[row]), int(self.starts[row]) + int(self.lengths[row])
        return Spans(self.tokens[start:stop], self.learned[start:stop], np.zeros(1, np.int64))

    def take(self, rows: NDArray[np.integer[Any]], *, dataset_hash: str) -> "TokenStore":
        """Return a store of some of the samples, as a data set of its own. It shares the tokens."""
        return TokenStore(
            self.tokens,
            self.learned,
            self.starts[rows],
            self.lengths[rows],
            pad_id=self.pad_id,
            dataset_hash=dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
        )


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


def _reopen(path: Path) -> TokenStore:
    return TokenStore.load(path, check=False)  # it was written or checked before it was pickled


def _rebuild(parts: tuple[Any, ...], options: dict[str, Any]) -> TokenStore:
    return TokenStore(*parts, **options)
