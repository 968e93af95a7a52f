"""Two self-contained HTML pages: one replays episodes, the other browses the tasks of a data set.

The script draws the grids. Without it a page has its facts, its table, and pictures of the first episodes or tasks.
Names of tasks are shown and never obeyed: characters that cannot be seen are made visible, and markup is escaped.
"""

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

from brim import __version__
from brim.analyze.page import page_file, render_document
from brim.analyze.page.forms import named
from brim.analyze.page.parts import facts_html, text_html
from brim.core.display import visible
from brim.core.errors import DataError
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.look.page import browse, replay
from brim.envs.arc.look.page.drawn import palettes_css
from brim.envs.arc.look.page.limits import Room, left_out_html
from brim.envs.arc.look.page.parts import BROWSE_KEYS, REPLAY_KEYS, help_html, look_html
from brim.envs.arc.look.palette import PALETTES
from brim.envs.arc.tasks.task import JaxArcTask

MOST_EPISODES = 500
MOST_TASKS = 5_000
MOST_CHARACTERS = 24_000_000
"""Most characters that the grids of a page may take. What would exceed a limit is counted and named in the page."""


def render_replay_page(episodes: Sequence[ArcEpisode], *, title: str) -> str:
    """Return a page that replays episodes, as a whole HTML document. The title is shown as it is.

    Up to 500 episodes are in the page, fewer if their grids take more than 24 million characters. The page counts and
    names those that are left out; its facts include them.

    Raises:
        DataError: There are no episodes.
        DamagedError: The recorded outcome of an episode does not follow from its actions.

    Example:
        >>> from brim.envs.arc import JaxArcConfig, create_mock_task, example_policy, record_episodes
        >>> page = render_replay_page(record_episodes(example_policy, create_mock_task(), JaxArcConfig()), title="Mine")
        >>> page.startswith("<!doctype html>")
        True
    """
    if not episodes:
        raise DataError("there are no episodes to replay; a page needs at least one")
    data, kept = replay.replay_json(episodes, Room(things=MOST_EPISODES, characters=MOST_CHARACTERS))
    body = Template(page_file(__name__, "replay.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(replay.verdict(episodes)),
        notes=left_out_html("episode", [replay.episode_name(one) for one in episodes[kept:]], len(episodes)),
        look=look_html(),
        static=replay.static_html(episodes[:kept]),
        facts=facts_html(replay.fact_list(episodes)),
        outcomes=replay.outcomes_html(episodes[:kept]),
        rows="".join(replay.row_html(number, one) for number, one in enumerate(episodes[:kept])),
        help=help_html(REPLAY_KEYS),
    )
    scripts = ("grids.js", "controls.js", "episodes.js", "player.js", "replay.js")
    return _document(title, body, data, ("grids.css", "replay.css"), scripts)


def render_browse_page(tasks: Sequence[JaxArcTask], *, title: str) -> str:
    """Return a page that browses tasks, as a whole HTML document. The title is shown as it is.

    Up to 5,000 tasks are in the page, fewer if their grids take more than 24 million characters. The page counts and
    names those that are left out; its facts include them.

    Raises:
        DataError: There are no tasks.

    Example:
        >>> from brim.envs.arc import create_mock_task
        >>> render_browse_page([create_mock_task()], title="Mine").startswith("<!doctype html>")
        True
    """
    if not tasks:
        raise DataError("there are no tasks to browse; a page needs at least one")
    facts = [browse.facts_of(task) for task in tasks]
    data, kept = browse.browse_json(tasks, facts, Room(things=MOST_TASKS, characters=MOST_CHARACTERS))
    body = Template(page_file(__name__, "browse.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(browse.verdict(tasks, facts)),
        notes=left_out_html("task", [named(one.id, "id") for one in tasks[kept:]], len(tasks)),
        look=look_html(),
        filters=browse.filters_html(facts[:kept]),
        static=browse.static_html(tasks[:kept], facts[:kept]),
        help=help_html(BROWSE_KEYS),
    )
    return _document(title, body, data, ("grids.css", "browse.css"), ("grids.js", "controls.js", "browse.js"))


def _document(title: str, body: str, data: dict[str, Any], styles: Sequence[str], scripts: Sequence[str]) -> str:
    return render_document(
        title=visible(title),
        body=body,
        style="\n".join([palettes_css(), *(page_file(__name__, name) for name in styles)]),
        script="\n".join(page_file(__name__, name) for name in scripts),
        data={"palettes": list(PALETTES), **data},
    )
