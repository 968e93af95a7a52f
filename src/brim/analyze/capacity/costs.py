"""The cost model of a machine and a model, from two measurements of their capacity.

One measurement cannot tell what a token costs from what attention costs, because all its samples have one length. Two
of them, at different lengths, can.
"""

from pathlib import Path

from brim.analyze.capacity.search import Capacity
from brim.core.errors import OptionError
from brim.plan.cost import CostModel

SAME = "all the same"
"""The lengths of a measurement that were not drawn from data, in its file."""


def measured_costs(paths: tuple[str, ...]) -> CostModel:
    """Return the cost model that two files of `brim bench batch-size` give.

    Raises:
        OptionError: There are not two files, or they are of samples of mixed or equal lengths.
        DataError: A file is missing, or is not a measurement.
    """
    if len(paths) != 2:
        raise OptionError(
            f"costs follow from two measurements at different lengths, got {len(paths)}; make them with: brim bench "
            "batch-size --length N -o FILE"
        )
    short, long = (_speed(path) for path in paths)
    return CostModel.of_speeds(short, long)


def _speed(path: str) -> tuple[int, float]:
    """Return the length of the samples that were measured, and the seconds of a token."""
    capacity = Capacity.load(Path(path))
    length = capacity.measured.get("length")
    if capacity.unit != "tokens" or type(length) is not int or capacity.measured.get("lengths") != SAME:
        raise OptionError(
            f"{path} was not measured with samples of one length; measure with: brim bench batch-size --length N -o "
            "FILE"
        )
    return length, capacity.seconds.per_unit
