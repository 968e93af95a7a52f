"""`Sample`: one training example, as arrays.

Code downstream of the tokenizer works on samples: an id, tokens, the mask of the tokens that are trained on, and named
extra arrays and scalars. A sample is immutable, and its arrays are read-only. It never holds padding, which is a
property of a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError
from brim.data.ids import SampleId, not_an_id

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Sample:
    """Tokens, their loss mask (1: trained on, 0: only read), and named extra arrays and scalars.

    Example:
        >>> sample = Sample("a", [5, 6, 7], [0, 1, 1])
        >>> sample.length, sample.num_loss_tokens
        (3, 2)
    """

    id: SampleId
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    segment_ids: NDArray[np.int32] | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=lambda: {})
    scalars: Mapping[str, Scalar] = field(default_factory=lambda: {})

    def __init__(
        self,
        id: SampleId,
        input_ids: ArrayLike,
        loss_mask: ArrayLike,
        segment_ids: ArrayLike | None = None,
        arrays: Mapping[str, ArrayLike] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Convert lists and tuples to arrays, and check them. `arrays` may have any shape; the others have one entry
        per token.

        Raises:
            DataError: Lengths differ, the loss mask holds values other than 0 and 1, segment ids decrease, or a value
                is not an integer.
        """
        if type(id) not in (str, int):
            raise not_an_id(f"sample id {id!r} is a {type(id).__name__}")
        tokens = _column(id, "input_ids", input_ids, np.int32)
        mask = _column(id, "loss_mask", loss_mask, np.uint8, len(tokens))
        if mask.size and mask.max() > 1:
            raise DataError(f"sample {id!r}: loss_mask holds {mask.max()}; it may hold 0 (read) and 1 (learned) only")
        segments = None if segment_ids is None else _column(id, "segment_ids", segment_ids, np.int32, len(tokens))
        if segments is not None and (np.diff(segments) < 0).any():
            raise DataError(
                f"sample {id!r}: segment_ids go back from {segments.max()}; a segment is one stretch of the sample"
            )
        extras = {name: _frozen(np.array(value)) for name, value in (arrays or {}).items()}
        values = (id, tokens, mask, segments, extras, dict(scalars or {}))
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def length(self) -> int:
        return len(self.input_ids)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        mine, theirs = _named(self), _named(other)
        same = self.id == other.id and self.scalars == other.scalars and mine.keys() == theirs.keys()
        return same and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]


def _named(sample: Sample) -> dict[str, NDArray[Any]]:
    segments = {} if sample.segment_ids is None else {"segment_ids": sample.segment_ids}
    return {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask, **segments, **sample.arrays}


def _column(id: SampleId, name: str, values: ArrayLike, dtype: type[Any], size: int | None = None) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"sample {id!r}: {name} is not one flat row of numbers") from None
    if array.ndim != 1:
        raise DataError(f"sample {id!r}: {name} has shape {array.shape}; it must be one flat row of numbers")
    if array.size and array.dtype.kind not in "iub":
        raise DataError(f"sample {id!r}: {name} holds {array.dtype} values; it must hold integers")
    limit = np.iinfo(dtype)
    if array.size and not (max(limit.min, 0) <= int(array.min()) and int(array.max()) <= limit.max):
        raise DataError(
            f"sample {id!r}: {name} holds values from {array.min()} to {array.max()}; they must lie in 0..{limit.max}"
        )
    if size is not None and len(array) != size:
        raise DataError(f"sample {id!r}: {name} has {len(array)} entries for {size} tokens")
    if isinstance(values, np.ndarray) and values.dtype == dtype and not values.flags.writeable:
        return values
    return _frozen(array.astype(dtype))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
