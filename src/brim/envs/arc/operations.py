"""The operations of ARC environments, with JaxARC's numbers.

`docs/arc.md` says what each one does in every case; `brim.envs.arc.engine.reference` is the definition in code.
"""

from enum import IntEnum


class ArcOperation(IntEnum):
    """A change of the working grid, the clipboard, the episode or the choice of the pair."""

    FILL_0 = 0
    FILL_1 = 1
    FILL_2 = 2
    FILL_3 = 3
    FILL_4 = 4
    FILL_5 = 5
    FILL_6 = 6
    FILL_7 = 7
    FILL_8 = 8
    FILL_9 = 9
    FLOOD_FILL_0 = 10
    FLOOD_FILL_1 = 11
    FLOOD_FILL_2 = 12
    FLOOD_FILL_3 = 13
    FLOOD_FILL_4 = 14
    FLOOD_FILL_5 = 15
    FLOOD_FILL_6 = 16
    FLOOD_FILL_7 = 17
    FLOOD_FILL_8 = 18
    FLOOD_FILL_9 = 19
    MOVE_UP = 20
    MOVE_DOWN = 21
    MOVE_LEFT = 22
    MOVE_RIGHT = 23
    ROTATE_CLOCKWISE = 24
    ROTATE_COUNTERCLOCKWISE = 25
    FLIP_HORIZONTAL = 26
    FLIP_VERTICAL = 27
    COPY = 28
    PASTE = 29
    CUT = 30
    CLEAR = 31
    COPY_INPUT = 32
    RESIZE = 33
    SUBMIT = 34
    NEXT_DEMO = 35
    PREVIOUS_DEMO = 36
    NEXT_TEST = 37
    PREVIOUS_TEST = 38
    RESET_PAIR = 39
    FIRST_UNSOLVED_DEMO = 40
    FIRST_UNSOLVED_TEST = 41

    @property
    def uses_selection(self) -> bool:
        """Whether the operation reads the selection. The others ignore it, whatever it is."""
        return self < ArcOperation.COPY_INPUT or self == ArcOperation.RESIZE


OPERATIONS = len(ArcOperation)
COLOURS = 10
PADDING = 10
"""The value of cells outside a grid, in observations and in every grid that has the size of the configuration."""
