"""The colours in which grids are shown: those of the ARC editor, and ten that people with colour blindness tell apart.

Nothing is drawn here. Colours are written as "#rrggbb", as SVG and CSS read them; `Palette.rgb` has them as bytes.

In the colours of the editor some pairs look almost alike without one of the three kinds of cones: green and orange,
blue and magenta. "colour-blind" began as the palette of Okabe and Ito (2008), which has eight colours. A random search
moved ten of them until the smallest difference (CIEDE2000) between any two was large for normal sight, deuteranopia,
protanopia and tritanopia alike (simulated as in Machado et al. 2009). The hues kept their places, so that a text that
says "blue" or "orange" stays true: the differences come from lightness, which no colour blindness removes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from brim.core.options import one_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLOUR_NAMES = ("black", "blue", "red", "green", "yellow", "grey", "magenta", "orange", "cyan", "maroon")
"""Names of the colours 0 to 9, which are true in every palette."""


@dataclass(frozen=True)
class Palette:
    """Ten colours, and the colour of text on each of them."""

    name: str
    colours: tuple[str, ...]
    """Of the cells 0 to 9."""

    @cached_property
    def inks(self) -> tuple[str, ...]:
        """Black or white for each colour: the one with the higher contrast, which is at least 4.5 on any colour."""
        return tuple("#000000" if _luminance(colour) > _MIDDLE else "#ffffff" for colour in self.colours)

    @cached_property
    def rgb(self) -> "NDArray[np.uint8]":
        """[10, 3]: red, green and blue of the cells 0 to 9."""
        import numpy as np

        return np.array([rgb_of(colour) for colour in self.colours], np.uint8)


def palette(name: str) -> Palette:
    """Return a palette by its name.

    Raises:
        OptionError: There is none of that name.

    Example:
        >>> palette("arc").colours[1]
        '#0074d9'
    """
    return PALETTES[one_of("palette", name, PALETTES)]


def rgb_of(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of a colour "#rrggbb"."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = [value / 255 for value in rgb_of(colour)]
    red, green, blue = (share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


_MIDDLE = 0.05 * 21**0.5 - 0.05
"""The luminance on which black and white have the same contrast."""


PALETTES = {
    "arc": Palette(
        "arc",
        (
            *("#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00"),
            *("#aaaaaa", "#f012be", "#ff851b", "#7fdbff", "#870c25"),
        ),
    ),
    "colour-blind": Palette(
        "colour-blind",
        (
            *("#000000", "#303465", "#af4f0f", "#187d6a", "#ffff4c"),
            *("#a9a9a9", "#be49df", "#e19100", "#6ed7ff", "#651900"),
        ),
    ),
}
