"""Whether columns that came from outside can become entries of a replay buffer.

Looks at values as they were given, before anything is cast: 2**32 + 1 as a length of 32 bits would be 1. Changes nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import LONGEST, DataError

Column = NDArray[Any]


def check_columns(ids: Column, tokens: Column, lengths: Column, learned: Column, others: dict[str, Column]) -> None:
    """`others`: reward, difficulty and success, those that there are.

    Raises:
        DataError: They do not fit together, or a value is out of range; then with the name of its column, and its row.
    """
    for name, column in {"lengths": lengths, **others}.items():
        if column.shape != ids.shape:
            raise DataError(f"{name} has shape {column.shape} for {len(ids)} samples")
    for row, id in enumerate(ids.tolist()):
        if type(id) not in (str, int):
            raise DataError(f"sample_ids of row {row} is {id!r}; it must be a string or an integer")
    _check("lengths", lengths, 0, LONGEST)
    total = int(lengths.sum(dtype=np.int64))
    if not tokens.shape == learned.shape == (total,):
        raise DataError(f"lengths add up to {total} for tokens of shape {tokens.shape} and learned of shape {learned.shape}")
    if total and tokens.dtype.kind not in "iu":
        raise DataError(f"tokens must be integers, got an array of {tokens.dtype}")
    _check("tokens", tokens, 0, LONGEST, lengths)
    _check("learned", learned, 0, 1, lengths)
    ranges: dict[str, tuple[float, float]] = {"reward": (-_LARGEST, _LARGEST), "difficulty": (0.0, 1.0), "success": (-1, 1)}
    for name, column in others.items():
        _check(name, column, *ranges[name])


_LARGEST = float(np.finfo(np.float64).max)


def _check(name: str, column: Column, lowest: float, highest: float, lengths: Column | None = None) -> None:
    """Integers if the bounds are, else numbers, or NaN for none. With `lengths` the column is one of tokens."""
    if not column.size:
        return
    if column.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers of 64 bits or fewer, got an array of {column.dtype}")
    whole = isinstance(lowest, int)
    if whole and column.dtype.kind == "f":
        good = (column >= lowest) & (column <= highest) & (column == np.floor(column))
    elif column.min() >= lowest and column.max() <= highest:
        return
    else:
        good = (column >= lowest) & (column <= highest) | (not whole and np.isnan(column))
    if not good.all():
        place = int(np.argmin(good))
        row = place if lengths is None else int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), place, side="right"))
        within = f"an integer from {lowest} to {highest}" if whole else f"between {lowest:.4g} and {highest:.4g}, or NaN for none"
        raise DataError(f"{name} of row {row} is {column[place]}; it must be {within}")
