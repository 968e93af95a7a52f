"""`brim arc render`: draw a task or an episode in the terminal, or write it as a picture or a page."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.arc.data import MOCK, chosen_tasks, ids_option, max_size_option, one_task, split_option
from brim.cli.arc.names import name_option
from brim.cli.output import check_output, force_option, marked
from brim.cli.show import json_option, show_facts, show_json
from brim.core.errors import DataError, OptionError, did_you_mean
from brim.envs.arc.look.limits import CELL, DELAY, LARGEST_CELL, LAST, LONGEST_DELAY
from brim.envs.arc.look.palette import PALETTES

if TYPE_CHECKING:
    from brim.envs.arc.episodes.episode import ArcEpisode
    from brim.envs.arc.tasks.task import JaxArcTask

PAGE = ".html"
is_picture = marked(b"brim arc picture", b'<meta name="generator" content="brim ')


@click.command()
@click.argument("source")
@split_option
@ids_option
@max_size_option
@click.option("--task", metavar="ID", help="The task to draw, if SOURCE has several.")
@click.option(
    "--episode", metavar="N|ID", help="The episode to draw, by its place from 0 or its id, if there are several."
)
@click.option(
    "-o", "--output", metavar="FILE", help="Write .png, .svg, .gif, .txt, .ans or .html.  [default: print it]"
)
@name_option("--palette", PALETTES, default="arc", help="Colours of cells.")
@click.option("--cell", type=click.IntRange(1, LARGEST_CELL), help=f"Pixels of a cell in a picture.  [default: {CELL}]")
@click.option(
    "--delay",
    type=click.FloatRange(0.02, LONGEST_DELAY),
    help=f"Seconds that a frame of a GIF is shown; the last is shown {LAST} times as long.  [default: {DELAY}]",
)
@click.option(
    "--answers/--no-answers", default=True, show_default=True, help="Show the outputs of test pairs, or hide them."
)
@force_option
@json_option
@click.pass_context
def render(ctx: click.Context, source: str, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Draw a task or an episode in the terminal, or write it as a picture or a page.

    SOURCE is arcagi, arcagi2, mock (one task, built in), the path of a JSON file of tasks or of a directory of them, or
    a file of episodes, which `brim arc rollout --record` and `brim arc play --record` write. The suffix of the output
    decides what is written. A GIF shows an episode step by step. An .html page replays all episodes of a file, or
    browses the tasks of a data set; any other output shows one task or one episode.

    \b
    Examples:
      brim arc render arcagi --task 007bbfb7
      brim arc render arcagi --task 007bbfb7 --no-answers -o task.png
      brim arc render episodes.json --episode 0 -o episode.gif
      brim arc render episodes.json -o replay.html

    Exit status: 0 drawn, 2 the options or the data are wrong.
    """
    suffix = None if output is None else _suffix(output)
    _refuse_useless(ctx, suffix, options, as_json=as_json)
    from brim.core.atomic import atomic_file
    from brim.envs.arc.episodes.episode import ArcEpisode

    if output is not None:
        check_output(output, force=force, what="a picture of this command", ours=is_picture)
    found = _episodes(source, options) if _holds_episodes(source) else _tasks(source, options)
    if output is None or suffix is None:
        _print(_only(found, source), options)
        return
    content = _page(found, source) if suffix == PAGE else _picture(_only(found, source), suffix, options)
    with atomic_file(output) as file:
        file.write(content)
    facts = {"output": output, "shows": [one.id for one in found], "bytes": len(content)}
    if as_json:
        show_json(facts)
    else:
        count = len(found)
        kind = "episode" if isinstance(found[0], ArcEpisode) else "task"
        shown = f"{kind} {found[0].id}" if count == 1 else f"{count:,} {kind}s"
        show_facts({"written": output, "shows": shown, "size": f"{len(content):,} bytes"})


def _suffix(output: str) -> str:
    from brim.envs.arc.look import picture

    return picture.picture_suffix(output, others=(PAGE,))


def _refuse_useless(ctx: click.Context, suffix: str | None, options: dict[str, Any], *, as_json: bool) -> None:
    """Refuse options that would have no effect on this output."""
    where = "the terminal" if suffix is None else f"a {suffix} file"
    if as_json and suffix is None:
        raise click.UsageError("--json reports what was written; give an output with -o")
    if options["cell"] is not None and suffix not in (".png", ".svg", ".gif"):
        raise click.UsageError(f"--cell has no effect on {where}, only on pictures in pixels: .png, .svg, .gif")
    if options["delay"] is not None and suffix != ".gif":
        raise click.UsageError(f"--delay has no effect on {where}, only on a .gif file")
    if suffix == PAGE:
        for name in ("palette", "answers"):
            if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                flag = "--palette" if name == "palette" else "--answers/--no-answers"
                raise click.UsageError(f"{flag} has no effect on a page, where readers choose that themselves")


def _is_name(source: str) -> bool:
    from brim.envs.arc.tasks.datasets import DATASETS

    return source in {MOCK, *DATASETS, *(one.alias for one in DATASETS.values())}


def _holds_episodes(source: str) -> bool:
    from brim.envs.arc.episodes.files import is_episodes

    return not _is_name(source) and Path(source).is_file() and is_episodes(source)


def _episodes(source: str, options: dict[str, Any]) -> "list[ArcEpisode]":
    from brim.envs.arc.episodes.files import read_episodes

    for name in ("task", "ids", "split", "max_size"):
        if options[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} chooses tasks, but {source} holds episodes; choose one with --episode")
    episodes = read_episodes(source)
    chosen: str | None = options["episode"]
    if chosen is None:
        return episodes
    if chosen.isdecimal() and int(chosen) < len(episodes):
        return [episodes[int(chosen)]]
    for one in episodes:
        if one.id == chosen:
            return [one]
    last = len(episodes) - 1
    raise DataError(
        f"there is no episode {chosen!r} in {source}; they are numbered from 0 to {last}, and the first is"
        f" {episodes[0].id}.{did_you_mean(chosen, [one.id for one in episodes])}"
    )


def _tasks(source: str, options: dict[str, Any]) -> "list[JaxArcTask]":
    if options["episode"] is not None and (_is_name(source) or Path(source).exists()):
        raise click.UsageError(f"--episode needs a file of episodes, but {source} holds tasks; choose one with --task")
    if options["task"] is None:
        return chosen_tasks(source, split=options["split"], ids=options["ids"], max_size=options["max_size"])
    if options["ids"] is not None or options["max_size"] is not None:
        raise click.UsageError("--task draws one task; leave out --ids and --max-size")
    return [one_task(source, options["task"], split=options["split"])]


def _only(found: "list[ArcEpisode] | list[JaxArcTask]", source: str) -> "ArcEpisode | JaxArcTask":
    """Return the only task or episode.

    Raises:
        OptionError: There are several.
    """
    from brim.envs.arc.episodes.episode import ArcEpisode

    if len(found) == 1:
        return found[0]
    if isinstance(found[0], ArcEpisode):
        choice = f"choose one with --episode N, from 0 to {len(found) - 1}"
        raise OptionError(f"{source} holds {len(found):,} episodes; {choice}, or write a page of all with -o FILE.html")
    choice = f"choose one with --task, such as --task {found[0].id!r}"
    raise OptionError(f"{source} holds {len(found):,} tasks; {choice}, or write a page of all with -o FILE.html")


def _print(what: "ArcEpisode | JaxArcTask", options: dict[str, Any]) -> None:
    from brim.cli.arc.drawing import print_drawing
    from brim.envs.arc.episodes.episode import ArcEpisode
    from brim.envs.arc.look.ansi import draw_episode, draw_task

    kept = {name: options[name] for name in ("answers", "palette")}
    if isinstance(what, ArcEpisode):
        print_drawing(partial(draw_episode, what, **kept))
    else:
        print_drawing(partial(draw_task, what, **kept))


def _picture(what: "ArcEpisode | JaxArcTask", suffix: str, options: dict[str, Any]) -> bytes:
    from brim.envs.arc.look import picture

    return picture.picture_bytes(
        suffix,
        what,
        answers=options["answers"],
        palette=options["palette"],
        cell=CELL if options["cell"] is None else options["cell"],
        delay=DELAY if options["delay"] is None else options["delay"],
    )


def _page(found: "list[ArcEpisode] | list[JaxArcTask]", source: str) -> bytes:
    from brim.envs.arc.episodes.episode import ArcEpisode
    from brim.envs.arc.look.page import render_browse_page, render_replay_page
    from brim.envs.arc.tasks.task import JaxArcTask

    episodes = [one for one in found if isinstance(one, ArcEpisode)]
    if episodes:
        return render_replay_page(episodes, title=f"Episodes of {Path(source).name}").encode()
    tasks = [one for one in found if isinstance(one, JaxArcTask)]
    return render_browse_page(tasks, title=f"Tasks of {Path(source).name}").encode()
