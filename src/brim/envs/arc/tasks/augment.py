"""Augment tasks: turn or mirror all their grids, and exchange colours.

A transformation is one of the eight symmetries of the square and a permutation of the ten colours. It is applied to
input and output of every pair of a task alike: an answer to the copy, mapped back with `invert_grid`, is an answer to
the original. Padding is never transformed, because grids of tasks have none, and padded grids are refused.

The pitfall: a quarter turn exchanges rows and columns. A copy of a task that fits in 10x20 may need 20x10.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import factorial
from typing import Any, Literal, cast, get_args

import numpy as np

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts, one_of
from brim.core.rng import below, permutation, raw_bits
from brim.envs.arc.operations import COLOURS
from brim.envs.arc.tasks.task import Grid, JaxArcTask, read_grid

Symmetry = Literal["identity", "rot90", "rot180", "rot270", "fliplr", "flipud", "transpose", "antitranspose"]
"""The names and directions are NumPy's: "rot90" is a quarter turn counterclockwise. "antitranspose" mirrors at the
diagonal from the lower left to the upper right."""

SYMMETRIES: tuple[Symmetry, ...] = get_args(Symmetry)
SAME_COLOURS = tuple(range(COLOURS))


def augment(
    tasks: JaxArcTask | Sequence[JaxArcTask],
    *,
    copies: int = 1,
    symmetries: bool = True,
    colours: bool = True,
    keep_black: bool = True,
    seed: int = 0,
) -> list[JaxArcTask]:
    """Return randomly transformed copies of tasks: all copies of the first task, then those of the second.

    The tasks themselves are not in the result. Transformations are drawn uniformly and without replacement, so a copy
    is never the result of no change, nor of the same change as another; the grids can still be equal, if a task is
    symmetric or has few colours. Copy n of a task depends on the seed, the id of the task and n, not on `copies` and
    not on other tasks. Its id says what was done (see `transform`).

    Args:
        copies: How many copies of each task.
        symmetries: Whether grids are turned and mirrored.
        colours: Whether colours are exchanged.
        keep_black: Whether colour 0, which most tasks use as background, stays as it is when colours are exchanged.
        seed: Another seed gives other copies.

    Raises:
        OptionError: An option cannot be used, or there are not so many transformations.
        DataError: There are no tasks.
    """
    _check_options(copies, seed, symmetries=symmetries, colours=colours, keep_black=keep_black)
    augmented: list[JaxArcTask] = []
    for task in _sequence(tasks):
        drawn = {Transformation()}
        for copy in range(copies):
            attempts = (
                Transformation(
                    symmetry=_draw_symmetry(task.id, copy, attempt, seed) if symmetries else "identity",
                    colours=_draw_colours(task.id, copy, attempt, seed, keep_black) if colours else SAME_COLOURS,
                )
                for attempt in count()
            )
            transformation = next(one for one in attempts if one not in drawn)
            drawn.add(transformation)
            augmented.append(_transformed(task, transformation))
    return augmented


def transform(
    task: JaxArcTask, *, symmetry: Symmetry = "identity", colours: Sequence[int] = SAME_COLOURS
) -> JaxArcTask:
    """Return a copy of a task with all grids turned or mirrored, and colour c replaced by `colours[c]`.

    Its id is that of the task and what was done: "007bbfb7/rot90/c0213456789". A task that is not changed keeps its id.

    Raises:
        OptionError: The symmetry is unknown, or `colours` is not a permutation of 0 to 9.

    Example:
        >>> task = JaxArcTask("swap", train=[([[1, 2]], [[2, 1]])])
        >>> turned = transform(task, symmetry="rot90", colours=[0, 5, 2, 3, 4, 1, 6, 7, 8, 9])
        >>> turned.id, turned.train[0].output.tolist()
        ('swap/rot90/c0523416789', [[5], [2]])
        >>> invert_grid([[5], [2]], turned.id).tolist()
        [[2, 1]]
    """
    return _transformed(task, Transformation(symmetry=symmetry, colours=cast(tuple[int, ...], colours)))


def invert_grid(grid: Any, task_id: str) -> Grid:
    """Map a grid of a transformed task, such as an answer to it, back to the original task.

    Raises:
        DataError: It is not a grid of colours. Padding must be cut off first.
    """
    return read_task_id(task_id)[1].inverse.apply(grid)


def read_task_id(task_id: str) -> tuple[str, "Transformation"]:
    """Return the id of the original task and what was done to it, from the id of a copy.

    Copies of copies are traced to the original. The id of an original must not end like that of a copy ("x/rot90").

    Example:
        >>> read_task_id("swap/rot90/rot180")[1].symmetry
        'rot270'
    """
    transformation = Transformation()
    while "/" in task_id:
        rest, _, part = task_id.rpartition("/")
        if part in SYMMETRIES[1:]:
            step = Transformation(symmetry=part)
        elif part[:1] == "c" and sorted(part[1:]) == [str(colour) for colour in SAME_COLOURS]:
            step = Transformation(colours=tuple(int(digit) for digit in part[1:]))
        else:
            break
        transformation = step.then(transformation)
        task_id = rest
    return task_id, transformation


@dataclass(frozen=True, kw_only=True)
class Transformation:
    """A symmetry of the square and a permutation of the colours. By default, neither changes anything.

    Raises:
        OptionError: The symmetry is unknown, or `colours` is not a permutation of 0 to 9.
    """

    symmetry: Symmetry = "identity"
    colours: tuple[int, ...] = SAME_COLOURS
    """The new colour of every colour."""

    def __post_init__(self) -> None:
        one_of("symmetry", self.symmetry, SYMMETRIES)
        object.__setattr__(self, "colours", _permutation(self.colours))

    def apply(self, grid: Any) -> Grid:
        """Return a grid transformed, as a read-only array.

        Raises:
            DataError: It is not a grid of colours. Padding must be cut off first.
        """
        return read_grid(_changed(read_grid(grid, "grid"), self), "grid")

    @property
    def inverse(self) -> "Transformation":
        """The transformation that undoes this one."""
        symmetry: Symmetry = self.symmetry
        if symmetry in ("rot90", "rot270"):
            symmetry = "rot270" if symmetry == "rot90" else "rot90"
        colours = tuple(self.colours.index(colour) for colour in SAME_COLOURS)
        return Transformation(symmetry=symmetry, colours=colours)

    def then(self, other: "Transformation") -> "Transformation":
        """Return the transformation that does first this one, then the other."""
        corners = _moved(_moved(CORNERS, self.symmetry), other.symmetry)
        colours = tuple(other.colours[colour] for colour in self.colours)
        return Transformation(symmetry=_SYMMETRY_OF[corners.tobytes()], colours=colours)


def _permutation(colours: object) -> tuple[int, ...]:
    if isinstance(colours, Iterable):
        given = tuple(cast(Iterable[object], colours))
        numbers = [int(one) for one in given if isinstance(one, int | np.integer) and not isinstance(one, bool)]
        if len(numbers) == len(given) and sorted(numbers) == list(SAME_COLOURS):
            return tuple(numbers)
    raise OptionError(f"colours must be a permutation of 0 to {COLOURS - 1}, got {colours!r}")


def _check_options(copies: int, seed: int, *, symmetries: bool, colours: bool, keep_black: bool) -> None:
    check_counts(copies=copies)
    if not isinstance(seed, int) or isinstance(seed, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"seed must be an integer, got {seed!r}")
    for name, value in {"symmetries": symmetries, "colours": colours, "keep_black": keep_black}.items():
        if type(value) is not bool:
            raise OptionError(f"{name} must be true or false, got {value!r}")
    if not symmetries and not colours:
        raise OptionError("symmetries and colours are both false: there is nothing to change")
    permutations = factorial(COLOURS - keep_black) if colours else 1
    changes = (len(SYMMETRIES) if symmetries else 1) * permutations - 1
    if copies > changes:
        raise OptionError(f"copies must be at most {changes}, which is all there are with these options, got {copies}")


def _sequence(tasks: JaxArcTask | Sequence[JaxArcTask]) -> Sequence[JaxArcTask]:
    tasks = [tasks] if isinstance(tasks, JaxArcTask) else list(tasks)
    if not tasks:
        raise DataError("there are no tasks to augment")
    for task in tasks:
        if not isinstance(task, JaxArcTask):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"tasks to augment must be JaxArcTask, got {type(task).__name__}")
    return tasks


def _draw_symmetry(task_id: str, copy: int, attempt: int, seed: int) -> Symmetry:
    words = raw_bits(1, seed=seed, purpose=f"arc symmetry {attempt} of {task_id}", epoch=copy)
    return SYMMETRIES[below(int(words[0]), len(SYMMETRIES))]


def _draw_colours(task_id: str, copy: int, attempt: int, seed: int, keep_black: bool) -> tuple[int, ...]:
    kept = int(keep_black)
    order = permutation(COLOURS - kept, seed=seed, purpose=f"arc colours {attempt} of {task_id}", epoch=copy)
    return (*range(kept), *(int(colour) + kept for colour in order))


def _transformed(task: JaxArcTask, transformation: Transformation) -> JaxArcTask:
    parts = [task.id]
    if transformation.symmetry != "identity":
        parts.append(transformation.symmetry)
    if transformation.colours != SAME_COLOURS:
        parts.append(_label(transformation.colours))
    if len(parts) == 1:
        return task
    train = [[_changed(grid, transformation) for grid in pair] for pair in task.train]
    test = [[_changed(grid, transformation) for grid in pair] for pair in task.test]
    return JaxArcTask("/".join(parts), train, test)


def _label(colours: Sequence[int]) -> str:
    return "c" + "".join(str(colour) for colour in colours)


def _changed(grid: Grid, transformation: Transformation) -> Grid:
    new_colours = np.array(transformation.colours, np.uint8)
    return _moved(new_colours[grid], transformation.symmetry)


def _moved(grid: Grid, symmetry: Symmetry) -> Grid:
    if symmetry in ("rot90", "rot270", "transpose", "antitranspose"):
        grid = grid.T
    if symmetry in ("rot90", "rot180", "flipud", "antitranspose"):
        grid = grid[::-1]
    if symmetry in ("rot180", "rot270", "fliplr", "antitranspose"):
        grid = grid[:, ::-1]
    return grid


CORNERS: Grid = np.array([[0, 1], [2, 3]], np.uint8)
"""A symmetry is known by where it takes four different corners."""
_SYMMETRY_OF: dict[bytes, Symmetry] = {_moved(CORNERS, symmetry).tobytes(): symmetry for symmetry in SYMMETRIES}
