"""Operations in words, and the reasons why an action is invalid, as pages say them."""

from collections.abc import Mapping

from brim.envs.arc.look.page.encode import FORBIDDEN, OUTSIDE_ARRAYS, OUTSIDE_GRID, UNKNOWN
from brim.envs.arc.look.palette import COLOUR_NAMES
from brim.envs.arc.operations import COLOURS, ArcOperation

REASONS = {
    UNKNOWN: "there is no such operation",
    FORBIDDEN: "the operation is not allowed",
    OUTSIDE_ARRAYS: "outside of the arrays",
    OUTSIDE_GRID: "outside of the grid",
}

_NAMES: Mapping[ArcOperation, str] = {
    ArcOperation.MOVE_UP: "move up",
    ArcOperation.MOVE_DOWN: "move down",
    ArcOperation.MOVE_LEFT: "move left",
    ArcOperation.MOVE_RIGHT: "move right",
    ArcOperation.ROTATE_CLOCKWISE: "rotate clockwise",
    ArcOperation.ROTATE_COUNTERCLOCKWISE: "rotate counterclockwise",
    ArcOperation.FLIP_HORIZONTAL: "flip left and right",
    ArcOperation.FLIP_VERTICAL: "flip top and bottom",
    ArcOperation.COPY: "copy",
    ArcOperation.PASTE: "paste",
    ArcOperation.CUT: "cut",
    ArcOperation.CLEAR: "clear",
    ArcOperation.COPY_INPUT: "start over from the input",
    ArcOperation.RESIZE: "resize",
    ArcOperation.SUBMIT: "submit",
    ArcOperation.NEXT_DEMO: "go to the next demonstration pair",
    ArcOperation.PREVIOUS_DEMO: "go to the previous demonstration pair",
    ArcOperation.NEXT_TEST: "go to the next test pair",
    ArcOperation.PREVIOUS_TEST: "go to the previous test pair",
    ArcOperation.RESET_PAIR: "begin the pair again",
    ArcOperation.FIRST_UNSOLVED_DEMO: "go to the first unsolved demonstration pair",
    ArcOperation.FIRST_UNSOLVED_TEST: "go to the first unsolved test pair",
}


def operation_words(operation: ArcOperation) -> str:
    """Return an operation in words, without its cells: "flood fill with red"."""
    if operation <= ArcOperation.FLOOD_FILL_9:
        name = "fill" if operation <= ArcOperation.FILL_9 else "flood fill"
        return f"{name} with {COLOUR_NAMES[operation % COLOURS]}"
    return _NAMES[operation]


def selection_use(operation: ArcOperation) -> str:
    """Return how an operation uses its selection, by which its cells are put into words.

    "none": not at all; "cells": the selected ones; "whole": the box around them, or the whole grid if there are none;
    "corner": their upper left corner; "size": their last row and column.
    """
    if not operation.uses_selection:
        return "none"
    if operation == ArcOperation.PASTE:
        return "corner"
    if operation == ArcOperation.RESIZE:
        return "size"
    in_box = ArcOperation.MOVE_UP <= operation <= ArcOperation.FLIP_VERTICAL
    return "whole" if in_box or operation == ArcOperation.CLEAR else "cells"
