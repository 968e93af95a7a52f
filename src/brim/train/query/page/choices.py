"""Which mutator is chosen for which kind of question, early and late in a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brim.analyze.page.forms import named
from brim.analyze.page.points import short
from brim.train.query.page.stretch import Stretch

MOST_KINDS = 12
MOST_MUTATORS = 12
ENOUGH = 5
"""Steps with a mutator below which its mean reward is not compared with others."""

Cell = tuple[int, float]
"""A number of valid steps, and the sum of their rewards."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Steps by kind of question and mutator, in each of one or two periods of a run."""

    kinds: Sequence[str]
    """Names, the most frequent kind first; more than `MOST_KINDS` share the last name."""
    known: int
    """Number of names that stand for one kind: all of them, or all but the last."""
    mutators: Sequence[str]
    """Names in alphabetical order; more than `MOST_MUTATORS` share the last name."""
    periods: Sequence[Stretch]
    cells: Sequence[Sequence[Sequence[Cell]]]
    """[period][kind][mutator]"""
    best: Sequence[int | None]
    """For each kind, the mutator with the highest mean reward in the whole run; None if no two can be compared."""

    def share(self, period: int, kind: int, mutator: int) -> float | None:
        """Share of the steps of a kind that used a mutator; None if there are no steps of that kind."""
        row = self.cells[period][kind]
        steps = sum(count for count, _ in row)
        return row[mutator][0] / steps if steps else None

    def favourite(self, period: int, kind: int) -> int | None:
        """The mutator that is chosen most often for a kind; None if there are no steps of that kind."""
        row = self.cells[period][kind]
        counts = [count for count, _ in row]
        return counts.index(max(counts)) if any(counts) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "kinds": list(self.kinds),
            "mutators": list(self.mutators),
            "best": list(self.best),
            "periods": [
                {
                    "first": period.first,
                    "last": period.last,
                    "cells": [[[count, short(total)] for count, total in row] for row in cells],
                }
                for period, cells in zip(self.periods, self.cells, strict=True)
            ],
        }


def count_choices(run: Stretch, periods: Sequence[Stretch]) -> Choices:
    """Count what was chosen in each of the periods of a run."""
    counted = _cells(run)
    kinds = _leading(Counter({kind: sum(count for count, _ in row.values()) for kind, row in counted.items()}))
    found: Counter[str] = Counter()
    for row in counted.values():
        found.update({mutator: count for mutator, (count, _) in row.items()})
    mutators = sorted(_leading(found, MOST_MUTATORS))
    kind_names = _names(kinds, len(counted), "kind")
    mutator_names = _names(mutators, len(found), "mutator")
    whole = _table(counted, kinds, mutators, len(kind_names), len(mutator_names))
    return Choices(
        kinds=kind_names,
        known=len(kinds),
        mutators=mutator_names,
        periods=periods,
        cells=[_table(_cells(one), kinds, mutators, len(kind_names), len(mutator_names)) for one in periods],
        best=[_best(row) if at < len(kinds) else None for at, row in enumerate(whole)],
    )


def _cells(stretch: Stretch) -> dict[str, dict[str, Cell]]:
    cells: dict[str, dict[str, Cell]] = {}
    for update in stretch.updates:
        for kind, row in update.chosen.items():
            into = cells.setdefault(kind, {})
            for mutator, (count, total) in row.items():
                before = into.get(mutator, (0, 0.0))
                into[mutator] = (before[0] + count, before[1] + total)
    return cells


def _leading(counts: Counter[str], most: int = MOST_KINDS) -> list[str]:
    """Return the most frequent names: all of them, or one less than `most`, so that there is room for the others."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return names if len(names) <= most else names[: most - 1]


def _names(shown: Sequence[str], count: int, what: str) -> list[str]:
    names = [named(name, what) for name in shown]
    return names if count == len(shown) else [*names, f"{count - len(shown)} other {what}s"]


def _table(
    cells: dict[str, dict[str, Cell]], kinds: Sequence[str], mutators: Sequence[str], rows: int, columns: int
) -> list[list[Cell]]:
    """Return [kind][mutator]. Names that are not listed are added up in the last row and the last column."""
    table = [[(0, 0.0)] * columns for _ in range(rows)]
    for kind, row in cells.items():
        line = table[kinds.index(kind) if kind in kinds else -1]
        for mutator, (count, total) in row.items():
            at = mutators.index(mutator) if mutator in mutators else -1
            line[at] = (line[at][0] + count, line[at][1] + total)
    return table


def _best(row: Sequence[Cell]) -> int | None:
    """Return the mutator whose mean reward is above that of all others with enough steps; None if there is none."""
    means = sorted(((total / count, at) for at, (count, total) in enumerate(row) if count >= ENOUGH), reverse=True)
    return means[0][1] if len(means) > 1 and means[0][0] > means[1][0] else None
