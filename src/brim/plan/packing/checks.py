"""Checks of the arguments of packing: an array of lengths, and the limits of a row.

The kernel trusts its arguments, so whatever reaches it has passed these checks: one array of integers that fit 32 bits,
and limits from 1 to `LONGEST`.
"""

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import LengthError, OptionError
from brim.core.options import LONGEST, check_counts

INT32 = np.dtype(np.int32)


def checked_limits(capacity: int, max_sequences: int | None) -> tuple[int, int | None]:
    """Return the limits of a row as Python's integers.

    Raises:
        OptionError: One is no integer, or not from 1 to `LONGEST`.
    """
    if type(capacity) is int and 1 <= capacity <= LONGEST and max_sequences is None:
        return capacity, None  # the checks below take longer than packing a few sequences
    if cast(object, capacity) is None:
        raise OptionError("capacity must be an integer, got None")
    check_counts(capacity=capacity, max_sequences=max_sequences)
    return int(capacity), None if max_sequences is None else int(max_sequences)


def integers(name: str, values: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return an array, or a list, as one array of integers.

    Raises:
        OptionError: It holds other values, or has more than one axis, or too many values for one call.
    """
    if type(values) is np.ndarray and values.dtype == INT32 and values.ndim == 1 and len(values) <= LONGEST:
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        raise OptionError(f"{name} must be one array of integers, got nested lists of several lengths") from None
    if array.ndim != 1:
        raise OptionError(f"{name} must be one array of integers, got an array of shape {array.shape}")
    if array.dtype.kind not in "iu" and len(array):
        raise OptionError(f"{name} must be integers, got an array of {array.dtype}")
    if len(array) > LONGEST:
        raise OptionError(f"{len(array)} sequences are more than one call can pack; pack them in parts")
    return array


def int32(lengths: NDArray[np.integer[Any]], capacity: int) -> NDArray[np.int32]:
    """Return the lengths as 32-bit integers. Wider ones are checked first, so that none is cut off."""
    if lengths.dtype != INT32:
        check_fit(lengths, capacity)
    return np.ascontiguousarray(lengths, INT32)


def check_fit(lengths: NDArray[np.integer[Any]], capacity: int) -> None:
    """Refuse lengths that no row has room for.

    Raises:
        OptionError: A length is negative.
        LengthError: A sequence is longer than `capacity`.
    """
    if len(lengths) and (lengths.min() < 0 or lengths.max() > capacity):
        raise misfit(lengths, capacity)


def misfit(lengths: NDArray[np.integer[Any]], capacity: int) -> OptionError | LengthError:
    """The error for lengths of which one is negative or above the capacity."""
    if lengths.min() < 0:
        return OptionError(f"lengths must not be negative, got {lengths.min()}")
    longest = int(lengths.argmax())
    return LengthError(f"sequence {longest} has {lengths[longest]} tokens and does not fit in a row of {capacity}")
