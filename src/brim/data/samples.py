"""`Samples`: a data set as a list of `Sample`s, tokenised when asked for."""

from collections.abc import Iterable, Iterator

from brim.core.errors import DataError
from brim.data.encode import encode_rows
from brim.data.format import RowFormat
from brim.data.row_ids import row_id
from brim.data.sample import Sample
from brim.data.source import Source, layout_of
from brim.data.tokenizer import Tokenizer


class Samples:
    """Random access by row. The i-th sample has exactly the length that `build_lengths` wrote for row i.

    An id keeps its type here, also in a data set that mixes integers and strings (where a `LengthCache` holds strings).

    Example:
        >>> samples = Samples(open_source("train.jsonl"), load_tokenizer("byte"))  # doctest: +SKIP
        >>> samples[0].num_loss_tokens, len(samples)  # doctest: +SKIP
        (34, 1000)
    """

    def __init__(self, source: Source, tokenizer: Tokenizer, format: RowFormat | None = None) -> None:
        """Raises:
        DataError: The first row does not have the format.
        """
        self.source, self.tokenizer = source, tokenizer
        self.layout = layout_of(source, format or RowFormat())

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Sample:
        return self.take([number])[0]

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def take(self, numbers: Iterable[int]) -> list[Sample]:
        """Some rows, tokenised together."""
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

    def _counted(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)} in {self.source.path}")
        return int(number) % len(self)
