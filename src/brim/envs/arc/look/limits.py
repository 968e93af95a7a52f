"""Sizes and times of pictures: defaults, and upper limits. Without NumPy, because a command shows them."""

CELL = 16
"""Pixels of a cell, by default."""
LARGEST_CELL = 64
DELAY = 0.5
"""Seconds that a frame of an animation is shown, by default."""
LAST = 4
"""How many times as long as the others the last frame of an animation is shown."""
LONGEST_DELAY = 60.0
