"""The cost model of a machine and a model, from two measurements of their capacity.

One measurement cannot tell what a token costs from what attention costs, because all its samples have one length. Two
of them, at different lengths, can.
"""

import os
from pathlib import Path
from typing import NoReturn

from brim.analyze.capacity.search import Capacity
from brim.core.errors import DamagedError, DataError, OptionError
from brim.plan.cost import CostModel

SAME = "all the same"
"""The lengths of a measurement that were not drawn from data, in its file."""

COMPARED = ("model", "layout", "device", "dtype", "attention", "lora_rank")
"""Names of the facts, in the file of a measurement, in which two measurements must agree."""


def measured_costs(paths: tuple[str, ...]) -> CostModel:
    """Return the cost model that two files of `brim bench batch-size` give.

    Raises:
        OptionError: There are not two files, they are of samples of mixed or equal lengths, or of different models,
            layouts or devices.
        DataError: A file is missing, or is not a measurement.
        DamagedError: A file is of another version.
    """
    if len(paths) != 2:
        raise OptionError(
            f"costs follow from two measurements at different lengths, got {len(paths)}; make them with: brim bench "
            "batch-size --length N -o FILE"
        )
    short, long = (_load(path) for path in paths)
    if differing := _differences(short, long):
        raise OptionError(
            f"--measured: {paths[0]} and {paths[1]} differ in {', '.join(differing)}; measure both with the same "
            "options except --length"
        )
    return CostModel.of_speeds(_speed(short), _speed(long))


def _load(path: str) -> Capacity:
    """Load a measurement of samples of one length."""
    try:
        capacity = Capacity.load(Path(path))
    except DataError as error:
        if not os.path.isfile(path):
            raise DataError(f"--measured: {error}") from None
        _refuse(path)
    except DamagedError as error:
        if "is of version" not in str(error):
            _refuse(path)
        raise DamagedError(f"--measured: {error}") from None
    length = capacity.measured.get("length")
    if capacity.unit != "tokens" or type(length) is not int or capacity.measured.get("lengths") != SAME:
        raise OptionError(
            f"{path} was not measured with samples of one length; measure with: brim bench batch-size --length N -o "
            "FILE"
        )
    return capacity


def _refuse(path: str) -> NoReturn:
    raise DataError(f"--measured: {path} is not a measurement of brim bench batch-size") from None


def _differences(one: Capacity, other: Capacity) -> list[str]:
    """Return in what two measurements differ that they must have in common."""
    pairs = {name: (one.measured.get(name), other.measured.get(name)) for name in COMPARED}
    if pairs["layout"][0] != pairs["layout"][1]:
        del pairs["attention"]  # it follows from the layout
    return [f"{name} ({left}, {right})" for name, (left, right) in pairs.items() if left != right]


def _speed(capacity: Capacity) -> tuple[int, float]:
    """Return the length of the samples that were measured, and the seconds of a token."""
    return capacity.measured["length"], capacity.seconds.per_unit
