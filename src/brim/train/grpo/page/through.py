"""The same tasks through training: for each task a table with a column for every evaluation, and attempts below it."""

from collections.abc import Sequence
from dataclasses import dataclass

from brim.analyze.page.forms import number
from brim.train.grpo.page.attempts import Titles, asked_html, attempt_html, left_html, mean_reward
from brim.train.grpo.page.runs import Evaluated, RunShown, spread
from brim.train.grpo.report import ShownGroup

MOST_EVALUATIONS = 6
"""Columns of a table."""
MOST_ATTEMPTS = 4
"""Attempts at a task in one evaluation."""
MOST_TASKS = 8
"""Tasks of a run."""


@dataclass(frozen=True)
class Followed:
    """A task in the evaluations that are shown; None where an evaluation does not show it."""

    groups: tuple[ShownGroup | None, ...]

    @property
    def any(self) -> ShownGroup:
        return next(group for group in self.groups if group is not None)


def chosen_evaluations(run: RunShown) -> list[Evaluated]:
    """Return a few evaluations evenly apart, the first and the last among them."""
    every = run.evaluations
    return [every[at] for at in spread(len(every), MOST_EVALUATIONS)]


def followed_tasks(evaluations: Sequence[Evaluated]) -> list[Followed]:
    """Return the tasks to show of a run. A task that comes twice in an evaluation is two tasks."""
    found: dict[tuple[str, int], list[ShownGroup | None]] = {}
    for at, one in enumerate(evaluations):
        seen: dict[str, int] = {}
        for group in one.evaluation.shown:
            times = seen[group.task] = seen.get(group.task, 0) + 1
            found.setdefault((group.task, times), [None] * len(evaluations))[at] = group
    return [Followed(tuple(groups)) for groups in list(found.values())[:MOST_TASKS]]


def count_texts(tasks: Sequence[Followed]) -> int:
    """Return the number of attempts that are shown."""
    return sum(min(len(group.attempts), MOST_ATTEMPTS) for task in tasks for group in task.groups if group is not None)


def through_html(evaluations: Sequence[Evaluated], tasks: Sequence[Followed], longest: int) -> str:
    """Return the tasks of a run, each of which unfolds. The first one is unfolded."""
    titles = Titles.of([task.any.prompt for task in tasks])
    return "".join(_task(evaluations, task, titles, longest, at == 0) for at, task in enumerate(tasks))


def _task(evaluations: Sequence[Evaluated], task: Followed, titles: Titles, longest: int, is_open: bool) -> str:
    heads = "".join(
        f'<th scope="col">{when(one)}<span class="sub">{_told(group)}</span></th>'
        for one, group in zip(evaluations, task.groups, strict=True)
    )
    many = max(len(group.attempts) for group in task.groups if group is not None)
    rows = "".join(_row(task, at, longest) for at in range(min(many, MOST_ATTEMPTS)))
    return (
        f'<details class="prompt"{" open" if is_open else ""}><summary><span class="rate">{_summary(task)}</span>'
        f'<span class="ask"><bdi>{titles.html(task.any.prompt)}</bdi></span></summary>'
        f'<div class="inside">{asked_html(task.any, longest)}'
        '<div class="scroll" tabindex="0" role="group" aria-label="Attempts at this task through training">'
        f'<table class="through of-{len(evaluations)}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{left_html(max(0, many - MOST_ATTEMPTS))}</div></details>"
    )


def when(one: Evaluated) -> str:
    return f"step {one.step:,}" if one.step else "before training"


def _told(group: ShownGroup | None) -> str:
    if group is None:
        return "not shown"
    reward = mean_reward(group)
    return "no reward" if reward is None else f"mean reward {number(reward)}"


def _summary(task: Followed) -> str:
    """Return the mean reward in the first and in the last evaluation that shows the task."""
    known = [group for group in task.groups if group is not None]
    ends = [number(mean_reward(group)) for group in (known[0], known[-1])]
    return f"reward {ends[0]} → {ends[1]}" if len(known) > 1 else f"reward {ends[0]}"


def _row(task: Followed, at: int, longest: int) -> str:
    cells = (
        attempt_html(group.attempts[at], longest) if group is not None and at < len(group.attempts) else ""
        for group in task.groups
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
