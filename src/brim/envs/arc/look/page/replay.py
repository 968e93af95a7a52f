"""Parts of the page that replays episodes: its data, its sentences, and what is drawn without a script."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from brim.analyze.page.forms import counted, length, named, number, share
from brim.analyze.page.parts import Fact
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.look.page.drawn import grid_svg
from brim.envs.arc.look.page.encode import episode_json, frames_of, task_json
from brim.envs.arc.look.page.limits import Room
from brim.envs.arc.look.page.parts import select_options
from brim.envs.arc.look.page.words import REASONS, operation_words, selection_use
from brim.envs.arc.operations import ArcOperation

OUTCOMES = {"solved": "solved", "failed": "failed", "cut": "cut off", "unfinished": "unfinished"}
DRAWN = 8
"""Episodes that are drawn without a script, as they began and ended."""


def replay_json(episodes: Sequence[ArcEpisode], room: Room) -> tuple[dict[str, Any], int]:
    """Return the data of the script, and the number of episodes in it. A task is there once for all its episodes."""
    numbers: dict[str, int] = {}
    tasks: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    for one in episodes:
        new = [] if one.task.fingerprint in numbers else [{"id": named(one.task.id, "id"), **task_json(one.task)}]
        values = {
            "id": episode_name(one),
            "task": numbers.get(one.task.fingerprint, len(tasks)),
            "outcome": outcome_of(one),
            "steps": one.steps,
            "reward": one.reward,
            "alike": one.similarity,
            **episode_json(one),
        }
        if not room.take([values, new]):
            break
        numbers.setdefault(one.task.fingerprint, len(tasks))
        tasks += new
        listed.append(values)
    operations = [{"name": one.name, "words": operation_words(one), "uses": selection_use(one)} for one in ArcOperation]
    return {"tasks": tasks, "episodes": listed, "operations": operations, "reasons": REASONS}, len(listed)


def episode_name(episode: ArcEpisode) -> str:
    """Return the id of an episode with every character visible. The id of its task is clipped if it is very long."""
    return f"{named(episode.task.id, 'id')}#{episode.env}.{episode.episode}"


def outcome_of(episode: ArcEpisode) -> str:
    """Return how an episode ended, as one of `OUTCOMES`."""
    if episode.solved:
        return "solved"
    if episode.truncated:
        return "cut"
    return "failed" if episode.terminated else "unfinished"


def verdict(episodes: Sequence[ArcEpisode]) -> str:
    """Return the outcome of all episodes in a sentence."""
    found = [outcome_of(one) for one in episodes]
    if len(episodes) == 1:
        return f"One episode, {OUTCOMES[found[0]]}, with a reward of {number(episodes[0].reward)}."
    solved = found.count("solved")
    tasks = counted(len({one.task.fingerprint for one in episodes}), "task")
    many = f"{solved:,} of {counted(len(episodes), 'episode')} ({share(solved, len(episodes))})"
    others = [f"{found.count(key):,} {name}" for key, name in OUTCOMES.items() if key != "solved" and key in found]
    rest = f"; {', '.join(others)}" if others else ""
    return f"{many} on {tasks} {'is' if solved == 1 else 'are'} solved{rest}."


def fact_list(episodes: Sequence[ArcEpisode]) -> list[Fact]:
    """Return the large numbers above the list, over all episodes."""
    found = [outcome_of(one) for one in episodes]
    solved, cut, many = found.count("solved"), found.count("cut"), len(episodes)
    steps = np.array([one.steps for one in episodes])
    tasks = len({one.task.fingerprint for one in episodes})
    similarity = float(np.mean([one.similarity for one in episodes]))
    reward = float(np.mean([one.reward for one in episodes]))
    return [
        Fact("episodes", "Episodes", f"{many:,}", f"of {counted(tasks, 'task')}"),
        Fact("solved", "Solved", share(solved, many), f"{solved:,} of {many:,}"),
        Fact("cut", "Cut off", share(cut, many), f"{cut:,} at the limit of steps"),
        Fact("steps", "Mean length", length(float(steps.mean())), f"steps, at most {steps.max():,}"),
        Fact("similarity", "Mean similarity", number(similarity), "at the end"),
        Fact("reward", "Mean reward", number(reward), "of an episode"),
    ]


def outcomes_html(episodes: Sequence[ArcEpisode]) -> str:
    """Return the options of the filter: the outcomes that occur, with their numbers."""
    found = [outcome_of(one) for one in episodes]
    occurring = [(key, f"{name} ({found.count(key):,})") for key, name in OUTCOMES.items() if key in found]
    return select_options([("all", "any"), *occurring])


def row_html(at: int, episode: ArcEpisode) -> str:
    """Return an episode as a row of the list."""
    outcome = outcome_of(episode)
    return (
        f'<tr><th scope="row"><a href="#episode={at + 1}"><span class="nr">{at + 1:,}</span> '
        f"<bdi>{escape(episode_name(episode))}</bdi></a></th>"
        f'<td><span class="outcome {outcome}">{OUTCOMES[outcome]}</span></td><td>{episode.steps:,}</td>'
        f"<td>{share(episode.similarity, 1)}</td><td>{number(episode.reward)}</td>"
        '<td class="js-only"><button type="button" aria-pressed="false">Compare</button></td></tr>'
    )


def static_html(episodes: Sequence[ArcEpisode]) -> str:
    """Return pictures of the first episodes, which only a reader without a script is shown."""
    drawn = "".join(_ends_html(at, one) for at, one in enumerate(episodes[:DRAWN]))
    some = "All" if len(episodes) <= DRAWN else f"The first {DRAWN} of {len(episodes):,}"
    return (
        '<noscript><section id="drawn" aria-labelledby="drawn-title"><h2 id="drawn-title">First and last grids</h2>'
        f'<p class="words">{some} episodes: the working grid at the beginning and at the end, and the target at the '
        f'end.</p><div class="ends">{drawn}</div></section></noscript>'
    )


def _ends_html(at: int, episode: ArcEpisode) -> str:
    frames = frames_of(episode)
    end = frames[-1]
    pairs = episode.task.train if end.kind == "train" else episode.task.test
    grids = {"beginning": frames[0].grid, "end": end.grid, "target": pairs[end.pair].output}
    drawn = "".join(
        f'<div class="one"><p class="label">{name}</p>{grid_svg(grid, f"Episode {at + 1}, {name}")}</div>'
        for name, grid in grids.items()
    )
    said = f"{OUTCOMES[outcome_of(episode)]} after {counted(episode.steps, 'step')}"
    return (
        f'<div id="episode={at + 1}"><h3>{at + 1} <bdi>{escape(episode_name(episode))}</bdi></h3>'
        f'<p class="hint">{said}</p><div class="beside">{drawn}</div></div>'
    )
