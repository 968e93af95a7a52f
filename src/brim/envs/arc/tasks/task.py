"""A task of ARC: demonstration pairs and test pairs of grids, checked when it is made."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.envs.arc.config import LARGEST
from brim.envs.arc.operations import COLOURS

Grid = NDArray[np.uint8]
MOST_PAIRS = 32
"""Most demonstration pairs, and most test pairs, of a task: a state remembers in 32 bits which are solved."""


class Pair(NamedTuple):
    """A question and its answer."""

    input: Grid
    output: Grid


@dataclass(frozen=True, eq=False)
class JaxArcTask:
    """A task. Grids may be given as nested lists; they are kept as read-only arrays of uint8.

    Two tasks are equal if their ids and grids are.

    Raises:
        DataError: There is no demonstration pair, or a grid is empty, ragged, too large or has an unknown colour.

    Example:
        >>> task = JaxArcTask("swap", train=[([[1, 2]], [[2, 1]])], test=[([[3, 4]], [[4, 3]])])
        >>> task.train[0].output.tolist()
        [[2, 1]]
    """

    id: str
    train: tuple[Pair, ...]
    """Demonstration pairs; at least one."""
    test: tuple[Pair, ...] = ()

    def __init__(self, id: str, train: Iterable[Sequence[Any]], test: Iterable[Sequence[Any]] = ()) -> None:
        id = " ".join(str(id).split())  # messages have one line
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "train", _pairs(train, f"task {id}", "train"))
        object.__setattr__(self, "test", _pairs(test, f"task {id}", "test"))
        if not self.train:
            raise DataError(f"task {id} has no train pairs; a task needs at least one")

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the id and all grids."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.id}\0{len(self.train)}".encode("utf-8", "surrogatepass"))
        for pair in (*self.train, *self.test):
            for grid in pair:
                digest.update(bytes(grid.shape))
                digest.update(grid.tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaxArcTask) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def largest(self) -> tuple[int, int]:
        """Rows and columns that hold each of its grids."""
        grids = [grid for pair in (*self.train, *self.test) for grid in pair]
        return max(grid.shape[0] for grid in grids), max(grid.shape[1] for grid in grids)


def read_grid(values: Any, what: str) -> Grid:
    """Return a grid as a read-only array. `what` names it in messages, such as "task 0a, train pair 1, input".

    Raises:
        DataError: It is empty, ragged, larger than 30x30, or has values other than the integers 0 to 9.
    """
    grid = values if isinstance(values, np.ndarray) else _rows(values, what)
    if grid.ndim != 2 or 0 in grid.shape:
        raise DataError(f"{what}: a grid needs rows and columns, got an array of shape {grid.shape}")
    if grid.dtype.kind not in "iu":
        raise DataError(f"{what}: colours are integers from 0 to {COLOURS - 1}, got {grid.dtype} values")
    if max(grid.shape) > LARGEST:
        raise DataError(f"{what}: {grid.shape[0]}x{grid.shape[1]} is larger than {LARGEST}x{LARGEST}")
    wrong = np.argwhere((grid < 0) | (grid >= COLOURS))
    if len(wrong):
        row, col = wrong[0]
        raise DataError(f"{what}: colours are 0 to {COLOURS - 1}, got {grid[row, col]} at row {row}, column {col}")
    kept = np.array(grid, np.uint8, order="C")
    kept.flags.writeable = False
    return kept


def _pairs(given: Iterable[Sequence[Any]], task: str, kind: str) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for number, pair in enumerate(given):
        what = f"{task}, {kind} pair {number}"
        if isinstance(pair, str) or not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"{what}: a pair is an input grid and an output grid, got {_shown(pair)}")
        if pair[1] is None:
            raise DataError(f"{what} has no output; an environment needs the answer to compare with")
        pairs.append(Pair(read_grid(pair[0], f"{what}, input"), read_grid(pair[1], f"{what}, output")))
    if len(pairs) > MOST_PAIRS:
        raise DataError(f"{task} has {len(pairs)} {kind} pairs; at most {MOST_PAIRS} are possible")
    return tuple(pairs)


def _rows(values: Any, what: str) -> NDArray[Any]:
    """Return nested lists as an array of integers, cell by cell: NumPy's own errors name neither row nor value."""
    if not isinstance(values, list | tuple) or not values:
        raise DataError(f"{what}: a grid is a list of rows, got {_shown(values)}")
    width = None
    for number, row in enumerate(values):
        if not isinstance(row, list | tuple) or not row:
            raise DataError(f"{what}: row {number} must be a list of colours, got {_shown(row)}")
        width = len(row) if width is None else width
        if len(row) != width:
            raise DataError(f"{what}: row {number} has {len(row)} cells, but row 0 has {width}")
        for column, value in enumerate(row):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                at = f"at row {number}, column {column}"
                raise DataError(f"{what}: colours are integers from 0 to 9, got {_shown(value)} {at}")
            if not 0 <= value < COLOURS:
                raise DataError(f"{what}: colours are 0 to 9, got {value} at row {number}, column {column}")
    return np.array(values, np.int64)


def _shown(value: object) -> str:
    """Describe a value in a message. Lists are not written out: they may be nested deeper than Python can follow."""
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}" if value else f"an empty {type(value).__name__}"
    return " ".join(repr(value).split())[:60]


def create_mock_task(height: int = 10, width: int = 10) -> JaxArcTask:
    """Return a small task to try things on: mirror the grid from left to right. Three demonstrations and a test.

    Raises:
        DataError: The size is not between 1x1 and 30x30.
    """
    cells = np.arange(height)[:, None] * 3 + np.arange(width) * 7
    inputs = [(cells * (number + 2) // 5 % COLOURS) for number in range(4)]
    pairs = [(grid, grid[:, ::-1]) for grid in inputs]
    return JaxArcTask("mock", train=pairs[:3], test=pairs[3:])


def register_with_jax() -> None:
    """Let functions under `jax.jit` be given tasks, as static values. Does nothing while JAX is not loaded."""
    jax = sys.modules.get("jax")
    if jax is not None and JaxArcTask not in _registered:
        jax.tree_util.register_static(JaxArcTask)
        _registered.add(JaxArcTask)


_registered: set[type] = set()
register_with_jax()
