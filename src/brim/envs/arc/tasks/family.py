"""Families of small tasks that are generated: recolour, fill, move and flip.

A task follows one rule, such as "objects of colour 3 become colour 5". Its demonstrations show the rule on random
grids, and its test pair asks for it. The rules of a kind are split once and for all: some are for training, the others
are held out, so that what is learned can be tested on rules that were never seen.

A task depends on the seed, its number and the options, and on nothing else: not on how many are generated.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts, one_of
from brim.core.rng import Words, permutation
from brim.envs.arc.actions import BboxAction
from brim.envs.arc.operations import COLOURS, ArcOperation
from brim.envs.arc.tasks.task import Grid, JaxArcTask

Kind = Literal["recolour", "fill", "move", "flip"]
FAMILY: tuple[Kind, ...] = get_args(Kind)
DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
FARTHEST = 2
"""Most cells that an object moves by."""
AXES = {"horizontal": 1, "vertical": 0}
HELD_OUT = 4
"""Every fourth rule of a kind is held out."""
SMALLEST = 5
"""Rows and columns of the smallest grid that has room for every rule."""
DEMONSTRATIONS = 3


class Rule(NamedTuple):
    """A kind and its parameters."""

    kind: Kind
    colour: int
    """Colour of the object; of the outline for "fill"; of one half of the object for "flip"."""
    other: int = 0
    """New colour ("recolour"), colour inside ("fill"), colour of the other half ("flip")."""
    way: str = ""
    """Direction ("move") or axis ("flip")."""
    distance: int = 0
    """Cells that the object moves by."""

    @property
    def name(self) -> str:
        """Kind and parameters, such as "move-left-2-c3"."""
        if self.kind == "move":
            return f"move-{self.way}-{self.distance}-c{self.colour}"
        axis = f"{self.way}-" if self.kind == "flip" else ""
        return f"{self.kind}-{axis}c{self.colour}-c{self.other}"


def family_tasks(
    count: int,
    *,
    kinds: Sequence[Kind] = FAMILY,
    size: int = SMALLEST,
    held_out: bool = False,
    seed: int = 0,
) -> list[JaxArcTask]:
    """Generate tasks, the kinds in turn. The id of a task is the name of its rule and its number.

    Args:
        kinds: Some of "recolour", "fill", "move" and "flip".
        size: Rows and columns of all grids, from 5 to 30.
        held_out: Take the rules that are held out instead of those for training.

    Raises:
        OptionError: An option cannot be used.

    Example:
        >>> [task.id for task in family_tasks(2, kinds=["flip", "move"])]
        ['flip-horizontal-c1-c8-0', 'move-right-2-c4-1']
    """
    check_counts(count=count, size=size)
    for kind in kinds:
        one_of("kinds", kind, FAMILY)
    if not kinds or len(set(kinds)) < len(kinds):
        raise OptionError(f"kinds must name every kind once, and at least one, got {list(kinds)}")
    if not SMALLEST <= size <= 30:
        raise OptionError(f"size must be between {SMALLEST} and 30, got {size}")
    rules = {kind: family_rules(kind, held_out=held_out) for kind in kinds}
    return [_task(rules[kinds[number % len(kinds)]], number, size, seed, held_out) for number in range(count)]


def family_rules(kind: Kind, *, held_out: bool = False) -> list[Rule]:
    """Return the rules of a kind that are for training, or those that are held out. No rule is both."""
    colours = range(1, COLOURS)
    if kind == "move":
        rules = [
            Rule(kind, colour, way=way, distance=distance)
            for way in DIRECTIONS
            for distance in range(1, FARTHEST + 1)
            for colour in colours
        ]
    else:
        ways = AXES if kind == "flip" else ("",)
        rules = [
            Rule(kind, colour, other, way=way)
            for way in ways
            for colour in colours
            for other in colours
            if colour != other and (kind != "flip" or colour < other)
        ]
    order = permutation(len(rules), seed=0, purpose=f"arc family {kind}").tolist()
    return [rules[place] for number, place in enumerate(order) if (number % HELD_OUT == 0) == held_out]


def rule_of(task: JaxArcTask) -> Rule:
    """Return the rule of a task that `family_tasks` made.

    Raises:
        DataError: The id of the task is not that of such a task.
    """
    name = task.id.rpartition("-")[0]
    for kind in FAMILY:
        for rule in (*family_rules(kind), *family_rules(kind, held_out=True)):
            if rule.name == name:
                return rule
    raise DataError(f"task {task.id} was not made by family_tasks: its id does not name a rule")


def solution(task: JaxArcTask, grid: Grid) -> BboxAction:
    """Return the shortest actions that turn an input of a task of a family into its output, and submit it.

    Raises:
        DataError: The task was not made by `family_tasks`.
    """
    rule = rule_of(task)
    rows, columns = grid.shape
    whole = (0, 0, rows - 1, columns - 1)
    operations = [int(ArcOperation.FLOOD_FILL_0) + rule.other]
    if rule.kind == "recolour":
        row, column = np.argwhere(grid == rule.colour)[0].tolist()
        box = (row, column, row, column)
    elif rule.kind == "fill":
        # The cell right below the upper edge of the outline is inside.
        row, column = np.argwhere(grid == rule.colour)[0].tolist()
        box = (row + 1, column + 1, row + 1, column + 1)
    elif rule.kind == "move":
        operations = [int(ArcOperation[f"MOVE_{rule.way.upper()}"])] * rule.distance
        box = whole
    else:
        operations = [int(ArcOperation[f"FLIP_{rule.way.upper()}"])]
        box = whole
    operations.append(int(ArcOperation.SUBMIT))
    corners = (np.full(len(operations), corner, np.int32) for corner in box)
    return BboxAction(np.array(operations, np.int32), *corners)


def _task(rules: list[Rule], number: int, size: int, seed: int, held_out: bool) -> JaxArcTask:
    words = Words(seed, f"arc family task {number}{' held out' if held_out else ''}")
    rule = rules[int(words.below(1, len(rules))[0])]
    pairs: list[tuple[Grid, Grid]] = []
    while len(pairs) <= DEMONSTRATIONS:
        question = _question(rule, size, words)
        answer = _answer(rule, question)
        # A grid that the rule leaves as it is, or that was drawn before, would teach nothing.
        if not np.array_equal(question, answer) and not any(np.array_equal(question, known) for known, _ in pairs):
            pairs.append((question, answer))
    return JaxArcTask(f"{rule.name}-{number}", pairs[:DEMONSTRATIONS], pairs[DEMONSTRATIONS:])


def _question(rule: Rule, size: int, words: Words) -> Grid:
    grid = np.zeros((size, size), np.uint8)
    if rule.kind == "recolour":
        shape = _blob(words)
        _place(grid, shape * rule.colour, words)
    elif rule.kind == "fill":
        height, width = (3 + int(extra) for extra in words.below(2, size - 3))
        outline = np.full((height, width), rule.colour, np.uint8)
        outline[1:-1, 1:-1] = 0
        _place(grid, outline, words)
    elif rule.kind == "move":
        shape = _blob(words) * rule.colour
        down, right = (step * rule.distance for step in DIRECTIONS[rule.way])
        # There must be room to move, so that nothing leaves the grid.
        room = grid[max(0, -down) : size - max(0, down), max(0, -right) : size - max(0, right)]
        _place(room, shape[: room.shape[0], : room.shape[1]], words)
    else:
        cells = words.below(size * size, 4).reshape(size, size)
        grid[cells == 0] = rule.colour
        grid[cells == 1] = rule.other
    return grid


def _answer(rule: Rule, grid: Grid) -> Grid:
    if rule.kind == "recolour":
        return np.where(grid == rule.colour, np.uint8(rule.other), grid)
    if rule.kind == "fill":
        rows, columns = np.flatnonzero(grid.any(axis=1)), np.flatnonzero(grid.any(axis=0))
        answer = grid.copy()
        answer[rows[0] + 1 : rows[-1], columns[0] + 1 : columns[-1]] = rule.other
        return answer
    if rule.kind == "move":
        down, right = (step * rule.distance for step in DIRECTIONS[rule.way])
        return np.roll(grid, (down, right), axis=(0, 1))
    return np.flip(grid, AXES[rule.way])


def _blob(words: Words) -> NDArray[np.uint8]:
    """Return a connected shape of 2 to 6 cells in at most 3 rows and columns, cut to its size."""
    cells = {(1, 1)}
    for word in words.take(int(words.below(1, 5)[0]) + 1).tolist():
        around = [
            (row + down, column + right)
            for row, column in sorted(cells)
            for down, right in DIRECTIONS.values()
            if 0 <= row + down < 3 and 0 <= column + right < 3 and (row + down, column + right) not in cells
        ]
        cells.add(around[word % len(around)])
    shape = np.zeros((3, 3), np.uint8)
    for cell in cells:
        shape[cell] = 1
    return shape[shape.any(axis=1)][:, shape.any(axis=0)]


def _place(grid: Grid, shape: NDArray[np.uint8], words: Words) -> None:
    """Put a shape anywhere in a grid that has room for it."""
    height, width = shape.shape
    row, column = (
        int(word) % (room + 1)
        for word, room in zip(words.take(2), (grid.shape[0] - height, grid.shape[1] - width), strict=True)
    )
    grid[row : row + height, column : column + width] = shape
