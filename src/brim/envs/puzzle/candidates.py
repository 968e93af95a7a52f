"""Candidate actions of a position: well-formed, for what is still open, and not all of them good.

For policies that choose among actions. Hidden parts of a game are not used: everything is read from the observation, as
a player would. A session has checked the observation; its drawing is only text, so at most `MOST` actions are taken
from it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product

from brim.envs.puzzle.games import GAMES, Observation

Grid = list[list[int]]

MOST = 10_000
"""Upper limit of the actions of a position. Real positions have a few thousand at most."""


def candidates(game: str, observation: Observation) -> tuple[str, ...]:
    """Return the actions of a position, in a fixed order; none for a game whose actions cannot be listed."""
    find = _FINDERS.get(game)
    return tuple(islice(find(observation), MOST)) if find else ()


def _cells(observation: Observation, blank: int | None = None) -> Iterator[tuple[int, int]]:
    """Rows and columns, from 1, of the cells that hold `blank`; of all, without it."""
    for row, values in enumerate(observation.get("grid") or (), 1):
        for column, value in enumerate(values, 1):
            if blank is None or value == blank:
                yield row, column


def _placing(values: Callable[[Grid], Iterable[int]], blank: int = 0) -> Callable[[Observation], Iterator[str]]:
    def find(observation: Observation) -> Iterator[str]:
        choices = list(values(observation.get("grid") or []))
        for row, column in _cells(observation, blank):
            yield from (f"place {row} {column} {value}" for value in choices)

    return find


def _marking(*marks: str) -> Callable[[Observation], Iterator[str]]:
    def find(observation: Observation) -> Iterator[str]:
        return (f"mark {row} {column} {mark}" for row, column in _cells(observation, 0) for mark in marks)

    return find


def _to(most: int) -> Callable[[Grid], Iterable[int]]:
    return lambda grid: range(1, most + 1)


def _to_size(grid: Grid) -> Iterable[int]:
    return range(1, len(grid) + 1)


def _to_largest(grid: Grid) -> Iterable[int]:
    return range(1, max((value for row in grid for value in row), default=0) + 1)


def _missing(grid: Grid) -> Iterable[int]:
    return sorted({*range(1, len(grid) ** 2 + 1)} - {value for row in grid for value in row})


def _presses(observation: Observation) -> Iterator[str]:
    return (f"press {row} {column}" for row, column in _cells(observation))


def _shadings(observation: Observation) -> Iterator[str]:
    return (f"shade {row} {column}" for row, column in _cells(observation))


def _bridges(observation: Observation) -> Iterator[str]:
    """Build one or two bridges between islands that see each other."""
    grid: Grid = observation.get("grid") or []
    islands = [(row, column) for row, column in _cells(observation) if grid[row - 1][column - 1]]
    for row, column in islands:
        right = next((other for other in islands if other[0] == row and other[1] > column), None)
        below = next((other for other in islands if other[1] == column and other[0] > row), None)
        for other in (right, below):
            if other is not None:
                yield from (f"bridge {row} {column} {other[0]} {other[1]} {count}" for count in (1, 2))


def _rectangles(observation: Observation) -> Iterator[str]:
    """Draw rectangles around each number that have its area and hold no other number."""
    grid: Grid = observation.get("grid") or []
    height, width = len(grid), len(grid[0]) if grid else 0
    for row, column in product(range(height), range(width)):
        area = grid[row][column]
        for tall in (tall for tall in range(1, min(area, height) + 1) if area % tall == 0 and area // tall <= width):
            wide = area // tall
            tops = range(max(0, row - tall + 1), min(row, height - tall) + 1)
            lefts = range(max(0, column - wide + 1), min(column, width - wide) + 1)
            for top, left in product(tops, lefts):
                inside = product(range(top, top + tall), range(left, left + wide))
                if not any(grid[y][x] for y, x in inside if (y, x) != (row, column)):
                    yield f"bridge {top + 1} {left + 1} {top + tall} {left + wide} 1"


def _walks(observation: Observation) -> Iterator[str]:
    return (f"move {way}" for way in ("up", "down", "left", "right"))


def _drives(observation: Observation) -> Iterator[str]:
    rows = [*(observation.get("grid") or ())]
    vehicles = sorted({cell for row in rows for cell in row} - {"."})
    for vehicle in vehicles:
        flat = any(row.count(vehicle) > 1 for row in rows)
        yield from (f"move {vehicle} {way}" for way in (("left", "right") if flat else ("up", "down")))


def _display(observation: Observation) -> str:
    return str(observation.get("grid_display", ""))


def _reveals(observation: Observation) -> Iterator[str]:
    for line in _display(observation).splitlines():
        if drawn := re.match(r"[ \t]*(\d{1,4})[ \t]*\|(.+)\|[ \t]*$", line):
            cells = drawn[2].split("|")
            yield from (f"reveal {drawn[1]} {column}" for column, cell in enumerate(cells, 1) if cell.strip() == ".")


def _selections(observation: Observation) -> Iterator[str]:
    for number, chosen in re.findall(r"(?m)^[ \t]*(\d{1,4}) \|[^|\n]*\|[^|\n]*\|[^|\n]*\|(.*)$", _display(observation)):
        yield f"{'deselect' if chosen.strip() else 'select'} {number}"


def _assignments(observation: Observation) -> Iterator[str]:
    """Assign tasks that are not scheduled yet, to any worker, at any time within the makespan."""
    display = _display(observation)
    workers, span = re.search(r"Workers: (\d{1,4})", display), re.search(r"Optimal Makespan: (\d{1,4})", display)
    if workers and span:
        for task in re.findall(r"(?m)^[ \t]*(\d{1,4}) \|[^|\n]*\|[^|\n]*\|[ \t]*Not scheduled", display):
            yield from (
                f"assign {task} {worker + 1} {time}"
                for worker, time in product(range(int(workers[1])), range(int(span[1])))
            )


def _colourings(observation: Observation) -> Iterator[str]:
    display = _display(observation)
    colours = re.search(r"\b(\d{1,4}) colors", display)
    for node in re.findall(r"(?m)^[ \t]*(\d{1,4}): \[[ \t]*\]", display):
        yield from (f"place {node} {colour + 1}" for colour in range(int(colours[1]) if colours else 0))


def _edges(observation: Observation) -> Iterator[str]:
    """Set any edge to a line."""
    size = sum(1 for line in _display(observation).splitlines() if line.strip().startswith("+")) - 1
    yield from (f"set h {row + 1} {column + 1} 1" for row, column in product(range(size + 1), range(max(size, 0))))
    yield from (f"set v {row + 1} {column + 1} 1" for row, column in product(range(max(size, 0)), range(size + 1)))


_FINDERS: dict[str, Callable[[Observation], Iterator[str]]] = {
    "sudoku": _placing(_to(9)),
    "kenken": _placing(_to_size),
    "kakuro": _placing(_to(9)),
    "binary": _placing(lambda grid: (0, 1), blank=-1),
    "futoshiki": _placing(_to_size),
    "nonogram": _placing(lambda grid: (0, 1), blank=-1),
    "killer": _placing(_to(9)),
    "lights": _presses,
    "slither": _edges,
    "bridges": _bridges,
    "hitori": _shadings,
    "shikaku": _rectangles,
    "hidato": _placing(_missing),
    "tents": _marking("place"),
    "fillomino": _placing(_to(9)),
    "star_battle": _marking("place"),
    "sokoban": _walks,
    "knapsack": _selections,
    "scheduler": _assignments,
    "nurikabe": _marking("white", "black"),
    "minesweeper": _reveals,
    "skyscrapers": _placing(_to_size),
    "nqueens": _placing(lambda grid: (1,)),
    "numberlink": _placing(_to_largest),
    "graph_coloring": _colourings,
    "rush_hour": _drives,
}
assert _FINDERS.keys() <= GAMES.keys()
