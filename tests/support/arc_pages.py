"""Episodes and tasks for pages of ARC: random ones of every kind, and some with hostile names."""

import json
import re

import numpy as np

from brim.envs.arc import ArcEpisode, ArcOperation, JaxArcTask, replay
from support.arc import FORMATS, config, random_actions, random_task
from support.query_runs import HOSTILE

NAMES = [text[:50].replace("\ud800", "") for text in HOSTILE.values()]  # no digest of a task can hold half a pair
NAMES += ["__proto__", "constructor", "", "7 \u2029 \u2067"]
"""Names of tasks that a page must show and never obey."""


def random_episode(
    seed: int, form: str, *, steps: int = 40, submits: bool = False, name: str | None = None
) -> ArcEpisode:
    """An episode with all operations, invalid actions, changes of the pair and of the grid's size."""
    random = np.random.default_rng(seed)
    shape = (int(random.integers(2, 31)), int(random.integers(2, 31)))
    task = random_task(random, seed, shape)
    if name is not None:
        task = renamed(task, name)
    actions = random_actions(random, form, steps, shape)
    actions.operation[actions.operation == ArcOperation.SUBMIT] = ArcOperation.COPY
    if submits and steps:
        actions.operation[-1] = ArcOperation.SUBMIT
    setting = config(form, shape=shape, max_episode_steps=steps + 1 if seed % 2 else max(steps, 1))
    return replay(task, setting, actions, env=seed)


def random_episodes(many: int, **options) -> list[ArcEpisode]:
    """Episodes of all forms of actions in turn."""
    return [random_episode(seed, FORMATS[seed % 3], submits=seed % 4 == 0, **options) for seed in range(many)]


def renamed(task: JaxArcTask, name: str) -> JaxArcTask:
    return JaxArcTask(name, task.train, task.test)


def data_of(page: str) -> dict:
    """The values that a page hands to its script."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
