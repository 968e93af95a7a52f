"""Read the tokens of ARC samples back: the inverse of `brim.stream.arc.tokens`.

The reader is strict. Tokens that the writer cannot have written are refused with the place of the first wrong one, so a
model whose actions are read here cannot be misunderstood. Two things are read that the writer writes in one way only:
the runs of a mask in any order, and whole grids where changed cells would be shorter.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.data.tokenizer.arc import COLOURS, COLUMN, COLUMNS, ID, OPERATION, OPERATIONS, ROW, ROWS, WORDS
from brim.envs.arc.actions import KINDS as ACTIONS
from brim.envs.arc.actions import MaskAction, StructuredAction
from brim.envs.arc.tasks.task import Grid, Pair
from brim.stream.arc.tokens import Transcript, View

Ids = Sequence[int] | NDArray[np.int32]
ANY_ROW, ANY_COLUMN = range(ROW, ROW + ROWS), range(COLUMN, COLUMN + COLUMNS)
ANY_OPERATION, ANY_COLOUR = range(OPERATION, OPERATION + OPERATIONS), range(COLOURS)


def decode_tokens(tokens: Ids) -> Transcript:
    """Return everything that the tokens of a sample say.

    Raises:
        DataError: They are not the tokens of a sample. The message says which one is wrong.
    """
    reader = _Reader(tokens)
    reader.word("bos")
    form = reader.word(*ACTIONS)
    shape = (reader.one_of(ANY_ROW, "a row") + 1, reader.one_of(ANY_COLUMN, "a column") + 1)
    reader.shape = shape
    demonstrations: list[Pair] = []
    while reader.has("demo"):
        question = reader.grid()
        reader.word("to")
        demonstrations.append(Pair(question, reader.grid()))
    views = [reader.beginning(reader.word("train", "test"))]
    operations: list[int] = []
    selections: list[list[int]] = []
    while reader.has("act"):
        operation, selection = reader.action(form)
        operations.append(operation)
        selections.append(selection)
        view = reader.view(views[-1])
        if len(views) != (1 if view is None else len(operations)):
            reader.refuse("a grid after every action, or after none")
        if view is not None:
            views.append(view)
    terminated = reader.has("eos")
    reader.end()
    return Transcript(
        selection_format=form,
        shape=shape,
        demonstrations=tuple(demonstrations),
        views=tuple(views),
        actions=_actions(form, shape, operations, selections),
        terminated=terminated,
    )


def decode_action(tokens: Ids, selection_format: str, shape: tuple[int, int]) -> StructuredAction:
    """Return a single action, without an axis for steps, from its tokens: operation, selection, `step`.

    Args:
        shape: Rows and columns of the arrays.

    Raises:
        DataError: They are not the tokens of an action of this format.
    """
    reader = _Reader(tokens)
    reader.shape = shape
    operation, selection = reader.action(selection_format)
    reader.end()
    several = _actions(selection_format, shape, [operation], [selection])
    return type(several)(*(part[0] for part in cast(Sequence[Any], several)))


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Ids) -> None:
        self.tokens = [int(token) for token in tokens]
        self.at = 0
        self.shape: tuple[int, int] = (ROWS, COLUMNS)

    def refuse(self, expected: str) -> NoReturn:
        found = "the end"
        if self.at < len(self.tokens):
            id = self.tokens[self.at]
            found = WORDS[id] if 0 <= id < len(WORDS) else f"the id {id}"
        raise DataError(f"these are not the tokens of an ARC sample: token {self.at} is {found}, not {expected}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.refuse("the end")

    def next_is(self, word: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] == ID[word]

    def has(self, word: str) -> bool:
        """Skip a word if it is the next one, and return whether it was."""
        found = self.next_is(word)
        self.at += found
        return found

    def word(self, *words: str) -> str:
        for word in words:
            if self.has(word):
                return word
        self.refuse(" or ".join(words))

    def one_of(self, ids: range, expected: str) -> int:
        """Return the place of the next token in `ids`, and skip it."""
        if self.at >= len(self.tokens) or self.tokens[self.at] not in ids:
            self.refuse(expected)
        self.at += 1
        return self.tokens[self.at - 1] - ids.start

    def grid(self) -> Grid:
        rows: list[list[int]] = []
        while not rows or not self.has("grid"):
            if len(rows) == self.shape[0]:
                self.refuse(f"the end of a grid, which has at most {len(rows)} rows here")
            rows.append(self.row(len(rows[0]) if rows else None))
        return np.array(rows, np.uint8)

    def row(self, columns: int | None) -> list[int]:
        """Return the next row of a grid, which has as many columns as the rows before it."""
        most = self.shape[1] if columns is None else columns
        row: list[int] = []
        while len(row) < most and not (row and columns is None and self.next_is("row")):
            row.append(self.one_of(ANY_COLOUR, "a colour"))
        self.word("row")
        return row

    def beginning(self, kind: str) -> View:
        grid = self.grid()
        return View(grid, kind, self.grid() if self.has("goal") else None, begins=True)

    def view(self, before: View) -> View | None:
        """Return the view after an action; None if it was not written."""
        for kind in ("train", "test"):
            if self.has(kind):
                return self.beginning(kind)
        if self.has("state"):
            return before._replace(grid=self.grid(), begins=False)
        if self.has("change"):
            return before._replace(grid=self.changed(before.grid), begins=False)
        return None

    def changed(self, before: Grid) -> Grid:
        grid = before.copy()
        rows, columns = (ids[:size] for ids, size in zip((ANY_ROW, ANY_COLUMN), grid.shape, strict=True))
        while not self.has("grid"):
            row = self.one_of(rows, "a row of the grid")
            column = self.one_of(columns, "a column of the grid")
            grid[row, column] = self.one_of(ANY_COLOUR, "a colour")
        return grid

    def action(self, selection_format: str) -> tuple[int, list[int]]:
        """Return the operation and the numbers of the selection: coordinates, or row and columns of each run."""
        operation = self.one_of(ANY_OPERATION, "an operation")
        numbers: list[int] = []
        if selection_format == "mask":
            height, width = self.shape
            while not self.has("step"):
                row = self.one_of(ANY_ROW[:height], "a row of the arrays or the end of the action")
                first = self.one_of(ANY_COLUMN[:width], "a column of the arrays")
                last = first + self.one_of(ANY_COLUMN[first:width], "the last column of a run")
                numbers += [row, first, last]
            return operation, numbers
        for place in range(len(ACTIONS[selection_format]._fields) - 1):
            ids, expected = ((ANY_ROW, "a row"), (ANY_COLUMN, "a column"))[place % 2]
            numbers.append(self.one_of(ids, expected))
        self.word("step")
        return operation, numbers


def _actions(
    selection_format: str, shape: tuple[int, int], operations: list[int], selections: list[list[int]]
) -> StructuredAction:
    numbers = np.array(operations, np.int32)
    kind = ACTIONS[selection_format]
    if kind is MaskAction:
        masks = np.zeros((len(operations), *shape), np.bool_)
        for mask, runs in zip(masks, selections, strict=True):
            for row, first, last in np.array(runs, np.int64).reshape(-1, 3).tolist():
                mask[row, first : last + 1] = True
        return MaskAction(numbers, masks)
    parts = np.array(selections, np.int32).reshape(len(operations), len(kind._fields) - 1)
    return kind(numbers, *parts.T)
