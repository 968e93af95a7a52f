"""`Samples`: a data set as a list of `Sample`s, each tokenised when it is accessed."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.errors import DataError
from brim.data.rows.encode import encode_rows, identity, measure_rows
from brim.data.rows.format import Layout, RowFormat
from brim.data.rows.open import layout_of
from brim.data.rows.row_ids import row_id
from brim.data.rows.source import Source
from brim.data.sample import Sample
from brim.data.token_store import Spans, shorter
from brim.data.tokenizer.base import Tokenizer


class Samples:
    """Random access to samples by row. The i-th sample has exactly the length that `build_lengths` wrote for row i.

    An id keeps its type here, also in a data set that mixes integers and strings (where a `LengthCache` holds strings).

    Example:
        >>> samples = Samples(open_source("train.jsonl"), load_tokenizer("byte"))  # doctest: +SKIP
        >>> samples[0].num_loss_tokens, len(samples)  # doctest: +SKIP
        (34, 1000)
    """

    def __init__(self, source: Source, tokenizer: Tokenizer, format: RowFormat | Layout | None = None) -> None:
        """Determine the layout of the rows from the first one, unless `format` is a `Layout`.

        Raises:
            DataError: There is no row, or the first one has no field of any known shape.
        """
        self.source, self.tokenizer = source, tokenizer
        self.layout = format if isinstance(format, Layout) else layout_of(source, format or RowFormat())

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_id

    @property
    def dataset_hash(self) -> str:
        return self.source.fingerprint

    @property
    def tokenizer_hash(self) -> str:
        return identity(self.tokenizer, self.layout)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Sample:
        return self.take([number])[0]

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def take(self, numbers: Iterable[int]) -> list[Sample]:
        """Return the samples of the given rows, tokenised together."""
        numbers = [self._counted(number) for number in numbers]
        rows = [self.source.row(number) for number in numbers]
        encoded = encode_rows(rows, self.tokenizer, self.layout, lambda k: self.source.where(numbers[k]))
        samples: list[Sample] = []
        for number, row, (ids, mask) in zip(numbers, rows, encoded, strict=True):
            try:
                samples.append(Sample(row_id(row, self.layout, number), ids, mask))
            except DataError as error:
                raise DataError(f"{self.source.where(number)}: {error}") from None
        return samples

    def spans(
        self, rows: NDArray[np.integer[Any]], starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> Spans:
        """Return the tokens that a batch asks for; see `TokenSource.spans`."""
        if len(rows) and int(rows.max()) >= len(self):
            raise shorter(self, rows, starts + lengths)
        samples = self.take(rows.tolist())
        sizes = np.array([sample.length for sample in samples], np.int64)
        if np.any(starts + lengths > sizes):
            raise shorter(self, rows, starts + lengths)
        tokens = np.concatenate([np.empty(0, np.int32), *(sample.input_ids for sample in samples)])
        learned = np.concatenate([np.empty(0, np.uint8), *(sample.loss_mask for sample in samples)])
        return Spans(tokens, learned, begins(sizes) + starts)

    def measure(self) -> NDArray[np.int32]:
        """Return the lengths of all samples, in tokens."""
        source = self.source
        blocks = [
            measure_rows(source.read(block).rows, self.tokenizer, self.layout, partial(source.where_in, block))
            for block in source.blocks()
        ]
        return np.concatenate([np.empty(0, np.int32), *blocks])

    def sample(self, row: int) -> Spans:
        """Return all tokens of one sample."""
        sample = self[row]
        return Spans(sample.input_ids, sample.loss_mask, np.zeros(1, np.int64))

    def _counted(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)} in {self.source.path}")
        return int(number) % len(self)
