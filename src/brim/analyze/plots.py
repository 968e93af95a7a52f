"""Shared parts of brim's plots: colours, figures without a window, the look of axes, and files in the format of their
suffix.

matplotlib is imported when a function needs it, and only its objects are used: no window is opened and no global state
of pyplot is touched.
"""

import os
from pathlib import Path
from typing import Any

from brim.core.atomic import atomic_file
from brim.core.errors import OptionError
from brim.core.extras import need

INK, ACCENT, PALE, WARN = "#444444", "#1f6feb", "#9ec1f7", "#c2410c"
METADATA = {"png": {"Software": "brim"}, "svg": {"Creator": "brim"}, "pdf": {"Creator": "brim"}}
MARKS = (b"Software\0brim", b"<dc:title>brim</dc:title>", b"/Creator (brim)")
"""Byte strings of which every plot that brim wrote contains one: that of its format (png, svg, pdf)."""
SUFFIXES = tuple(METADATA)


def check_plot(path: str | os.PathLike[str], *, user: str) -> str:
    """Return the format of a plot from its file name. Call it first, so that a wrong name fails before any measurement.

    `user` is the module that needs matplotlib, for the message if it is not installed.

    Raises:
        OptionError: The name does not end in .png, .svg or .pdf.
        MissingExtraError: matplotlib is not installed.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in SUFFIXES:
        raise OptionError(f"cannot plot to {path}: the name must end in .{', .'.join(SUFFIXES)}")
    need("matplotlib.figure", extra="plot", user=user)
    return kind


def new_figure(width: float, height: float, *, user: str, **options: Any) -> Any:
    """Return a matplotlib Figure of this size in inches, with a canvas that needs no screen.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    kind = need("matplotlib.figure", extra="plot", user=user).Figure
    figure = kind(figsize=(width, height), layout="constrained", **options)
    need("matplotlib.backends.backend_agg", extra="plot", user=user).FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | os.PathLike[str], kind: str) -> None:
    """Write a figure atomically, in a format that `check_plot` returned, with metadata that marks it as brim's."""
    with atomic_file(path) as file:
        figure.savefig(file, format=kind, dpi=144, metadata=METADATA[kind])


def finish_axes(axes: Any) -> None:
    """Give axes the look of all brim plots: a pale grid, small ticks, no frame above and on the right."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
