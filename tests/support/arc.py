"""Random tasks, states and actions of ARC environments, and their comparison to the bit. Nothing here imports JAX."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from brim.envs.arc import ArcEnvState, ArcOperation, BboxAction, JaxArcTask, MaskAction, PointAction
from brim.envs.arc.engine import reference
from brim.envs.arc.engine.call import CHANGED

FORMATS = ("point", "bbox", "mask")
READABLE = (
    *(name for name in CHANGED if name not in ("cells", "held", "selection")),
    *("working_grid", "clipboard", "selected", "input_grid", "target_grid", "working_grid_mask", "target_grid_mask"),
    *("episode_done", "on_test_pair", "solved"),
)


def random_grid(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A grid of any size up to `shape`, of few or many colours, speckled or in blocks."""
    rows, columns = random.integers(1, shape[0] + 1), random.integers(1, shape[1] + 1)
    grid = random.integers(0, random.integers(1, 11), (rows, columns))
    if random.random() < 0.5:
        block = random.integers(1, 6)
        grid = np.kron(grid, np.ones((block, block), np.int64))[:rows, :columns]
    return grid


def random_task(random: np.random.Generator, number: int, shape: tuple[int, int] = (30, 30)) -> JaxArcTask:
    """A task with one to four demonstrations and one to three tests; some answers equal their questions."""

    def pair() -> tuple[np.ndarray, np.ndarray]:
        grid = random_grid(random, shape)
        return grid, grid if random.random() < 0.2 else random_grid(random, shape)

    demos, tests = random.integers(1, 5), random.integers(1, 4)
    return JaxArcTask(f"task{number}", [pair() for _ in range(demos)], [pair() for _ in range(tests)])


def random_actions(random: np.random.Generator, form: str, batch: int, shape: tuple[int, int] = (30, 30)) -> Any:
    """Actions of every kind: all operations, unknown ones, and selections inside, outside and across the borders."""
    operation = random.integers(-2, len(ArcOperation) + 2, batch).astype(np.int32)
    rows, columns = (lambda: _coordinates(random, batch, shape[0])), (lambda: _coordinates(random, batch, shape[1]))
    if form == "point":
        return PointAction(operation, rows(), columns())
    if form == "bbox":
        return BboxAction(operation, rows(), columns(), rows(), columns())
    share = random.choice([0, 0.001, 0.02, 0.5, 1], size=(batch, 1, 1))
    return MaskAction(operation, random.random((batch, *shape)) < share)


def _coordinates(random: np.random.Generator, batch: int, size: int) -> np.ndarray:
    inside = np.minimum(random.integers(0, size, batch), random.integers(0, size, batch))
    return np.where(random.random(batch) < 0.03, random.choice([-1, size, 10**6, -(2**31)], batch), inside).astype(
        np.int32
    )


def random_states(random: np.random.Generator, states: ArcEnvState) -> ArcEnvState:
    """NumPy states with random grids and clipboards in place of their own."""
    shape = states.bank.shape
    states = states._replace(**{name: getattr(states, name).copy() for name in CHANGED})
    for lane in range(len(states.status)):
        grid, copied = random_grid(random, shape), random_grid(random, shape)
        states.cells[lane], states.held[lane] = 10, 10
        states.cells[lane, : grid.shape[0], : grid.shape[1]] = grid
        states.height[lane], states.width[lane] = grid.shape
        target = reference.target_of(states.bank, states.pair_index[lane])
        states.similarity_score[lane] = reference.similarity(grid, target)
        states.held[lane, : copied.shape[0], : copied.shape[1]] = np.where(
            random.random(copied.shape) < 0.2, 10, copied
        )
    return states


def assert_same(one: Any, other: Any, what: object = "") -> None:
    """Compare two arrays of any library: shape, dtype and bits."""
    left, right = np.asarray(one), np.asarray(other)
    assert (left.shape, left.dtype) == (right.shape, right.dtype), what
    assert left.tobytes() == right.tobytes(), (what, np.argwhere(left != right)[:3].tolist())


def assert_same_states(one: ArcEnvState, other: ArcEnvState, what: object = "") -> None:
    for name in READABLE:
        assert_same(getattr(one, name), getattr(other, name), (what, name))


def assert_same_results(one: Any, other: Any, what: object = "") -> None:
    """Compare two results of `batch_step`: states, observations, rewards, dones and infos."""
    assert_same_states(one.states, other.states, what)
    assert_same(one.obs, other.obs, (what, "obs"))
    assert_same(one.rewards, other.rewards, (what, "rewards"))
    assert_same(one.dones, other.dones, (what, "dones"))
    assert set(one.infos) == set(other.infos)
    for name in one.infos:
        assert_same(one.infos[name], other.infos[name], (what, name))


def lanes(result: Any, chosen: Iterable[int]) -> list[Any]:
    """What a step says about some environments, as NumPy arrays."""
    chosen = np.asarray(list(chosen))
    named = [getattr(result.states, name) for name in READABLE]
    return [np.asarray(array)[chosen] for array in (*named, result.obs, result.rewards, result.dones)] + [
        np.asarray(result.infos[name])[chosen] for name in sorted(result.infos)
    ]
