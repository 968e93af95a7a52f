"""Save pictures: one function for everything that can be shown, and the name of the file decides the format."""

import os
from pathlib import Path

from brim.core.atomic import atomic_file
from brim.core.errors import DataError, OptionError, did_you_mean
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.look.ansi import TERMINAL, draw_scene
from brim.envs.arc.look.figure import lay_out
from brim.envs.arc.look.gif import gif_bytes
from brim.envs.arc.look.limits import CELL, DELAY, LAST, LONGEST_DELAY
from brim.envs.arc.look.png import png_bytes
from brim.envs.arc.look.raster import colour_table, paint
from brim.envs.arc.look.scene import Scene, episode_scene, frame_scenes, scene_of_state, task_scene
from brim.envs.arc.look.svg import svg_text
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.task import JaxArcTask

FORMATS = {
    ".png": "a picture in pixels",
    ".svg": "a picture in shapes",
    ".gif": "an animation of an episode",
    ".txt": "digits",
    ".ans": "digits in colour, for a terminal",
}
MARK = "(brim arc picture)"
"""Last line of every text, by which an earlier one is recognised."""

Shown = ArcEnvState | JaxArcTask | ArcEpisode


def save_picture(
    path: str | os.PathLike[str],
    what: Shown,
    *,
    answers: bool = True,
    palette: str = "arc",
    cell: int = CELL,
    delay: float = DELAY,
) -> None:
    """Write a picture of one environment, of a task with its pairs, or of an episode with all of its steps.

    Args:
        path: The suffix decides: .png, .svg, .gif (episodes only), .txt, or .ans for text with colours.
        what: A single state, a task or an episode.
        answers: Whether the outputs of test pairs are shown.
        palette: "arc" or "colour-blind".
        cell: Pixels of a cell, 1 to 64.
        delay: Seconds that each frame of a GIF is shown, 0.02 to 60; the last is shown four times as long.

    Raises:
        OptionError: The suffix or the palette is unknown, a number is out of range, or a GIF of a task or state is
            asked for.
        DataError: It is none of these, or a batch of states.
        DamagedError: The outcome of the episode does not follow from its actions.
    """
    suffix = picture_suffix(path)
    content = picture_bytes(suffix, what, answers=answers, palette=palette, cell=cell, delay=delay)
    with atomic_file(path) as file:
        file.write(content)


def picture_suffix(path: str | os.PathLike[str], *, others: tuple[str, ...] = ()) -> str:
    """Return the suffix of a path in lower case if it is one of `FORMATS` or of `others`.

    Raises:
        OptionError: It is not.
    """
    suffix = Path(path).suffix.lower()
    known = [*FORMATS, *others]
    if suffix not in known:
        end = f"ends with {suffix!r}" if suffix else "has no suffix"
        raise OptionError(
            f"cannot tell the format of {os.fspath(path)}: it {end}, but should end with {', '.join(known)}."
            f"{did_you_mean(suffix, known)}"
        )
    return suffix


def picture_bytes(suffix: str, what: Shown, *, answers: bool, palette: str, cell: int, delay: float) -> bytes:
    """Return the content of a file of pictures; see `save_picture`."""
    scene = _scene(what, answers=answers)
    if suffix == ".gif":
        if not isinstance(what, ArcEpisode):
            raise OptionError("a GIF shows the steps of an episode; write a task or a state as .png or .svg")
        return _gif(what, answers=answers, palette=palette, cell=cell, delay=delay)
    if suffix == ".png":
        return png_bytes(paint(lay_out(scene, cell=cell)), colour_table(palette))
    if suffix == ".svg":
        return svg_text(scene, palette=palette, cell=cell).encode()
    flow = isinstance(what, ArcEpisode)
    drawn = draw_scene(scene, colour=suffix == ".ans", palette=palette, width=TERMINAL, flow=flow)
    return f"{drawn}\n\n{MARK}\n".encode()


def _scene(what: Shown, *, answers: bool) -> Scene:
    if isinstance(what, JaxArcTask):
        return task_scene(what, answers=answers)
    if isinstance(what, ArcEpisode):
        return episode_scene(what, answers=answers)
    if isinstance(what, ArcEnvState):  # pyright: ignore[reportUnnecessaryIsInstance]
        return scene_of_state(what, answers=answers)
    raise DataError(
        f"a picture shows an ArcEnvState of one environment, a JaxArcTask or an ArcEpisode, got {type(what).__name__}"
    )


def _gif(episode: ArcEpisode, *, answers: bool, palette: str, cell: int, delay: float) -> bytes:
    if not 0.02 <= delay <= LONGEST_DELAY:
        raise OptionError(f"delay must be 0.02 to {LONGEST_DELAY:g} seconds, got {delay!r}")
    scenes = frame_scenes(episode, answers=answers)
    # A caption or an answer can make one frame larger than another, but all frames of an animation have one size.
    figures = [lay_out(scene, cell=cell) for scene in scenes]
    least = max(figure.width for figure in figures), max(figure.height for figure in figures)
    frames = [paint(lay_out(scene, cell=cell, least=least)) for scene in scenes]
    hundredths = round(100 * delay)
    delays = [hundredths] * (len(frames) - 1) + [hundredths * LAST]
    return gif_bytes(frames, colour_table(palette), delays)
