"""Random tasks, states and actions of ARC environments, and their comparison to the bit. Nothing here imports JAX.

The engine in JAX takes seconds to compile for every configuration, batch size and size of the bank. Tests that need no
special one use `config("bbox")`, the tasks of `shared_bank()` and a batch size that is used already: 1, 7, 64 or 1024.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from brim.envs.arc import (
    PADDING,
    ArcEnvState,
    ArcOperation,
    ArcRewardConfig,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    TaskBank,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    build_bank,
)
from brim.envs.arc.engine import reference
from brim.envs.arc.engine.call import CHANGED
from brim.envs.arc.state import BITS

FORMATS = ("point", "bbox", "mask")
READABLE = (
    *(name for name in CHANGED if name not in ("cells", "held", "selection")),
    *("working_grid", "clipboard", "selected", "input_grid", "target_grid", "working_grid_mask", "target_grid_mask"),
    *("episode_done", "on_test_pair", "solved"),
)


def config(
    form: str = "point",
    engine: str = "auto",
    shape: tuple[int, int] = (30, 30),
    *,
    max_episode_steps: int = 300,
    **environment: Any,
) -> JaxArcConfig:
    """A configuration in which every part of a reward is another number."""
    return JaxArcConfig(
        environment=EnvironmentConfig(engine=engine, max_episode_steps=max_episode_steps, **environment),
        dataset=UnifiedDatasetConfig(max_grid_height=shape[0], max_grid_width=shape[1]),
        action=UnifiedActionConfig(selection_format=form),
        reward=ArcRewardConfig(similarity_weight=1.3, unsolved_submission_penalty=-1.7, invalid_penalty=-0.3),
    )


def with_engine(setting: JaxArcConfig, engine: str) -> JaxArcConfig:
    return replace(setting, environment=replace(setting.environment, engine=engine))


def keys(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (batch, 2), dtype=np.uint32)


@cache
def shared_bank() -> TaskBank:
    """40 random tasks of all sizes."""
    random = np.random.default_rng(10)
    return build_bank([random_task(random, number) for number in range(40)], config())


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


def on_host(states: ArcEnvState) -> ArcEnvState:
    """States of any engine as those of the kernel on NumPy arrays: batches, single states and trajectories.

    A property of JAX arrays is compiled for every shape; what is compared often is compared in this form.
    """
    leaves = {name: np.asarray(leaf) for name, leaf in zip(states._fields, states, strict=True) if name != "bank"}
    bank = type(states.bank)(*(None if leaf is None else np.asarray(leaf) for leaf in states.bank))
    if states.has_bits:
        if states.status.ndim == 0:
            one = on_host(ArcEnvState(states.bank, **{name: _with_batch(name, leaf) for name, leaf in leaves.items()}))
            return ArcEnvState(bank, *(leaf[0] for leaf in one[1:-1]))
        inputs, targets = np.moveaxis(leaves["pair_planes"], -4, 0)
        assert_same(_cells(inputs, bank.shape[1]), bank.inputs[leaves["pair_index"]], "pair_planes of inputs")
        assert_same(_cells(targets, bank.shape[1]), bank.targets[leaves["pair_index"]], "pair_planes of targets")
        leaves |= {name: _cells(leaves[name], bank.shape[1]) for name in ("cells", "held")}
        leaves["selection"] = leaves["selection"].swapaxes(-1, -2)
    return ArcEnvState(bank, **(leaves | {"pair_planes": None}))


def as_bits(states: ArcEnvState) -> ArcEnvState:
    """The other way round: a batch of the kernel on NumPy arrays as the engine in JAX keeps it, except for its bank."""
    pairs = [_planes(grids[states.pair_index]) for grids in (states.bank.inputs, states.bank.targets)]
    return states._replace(
        cells=_planes(states.cells),
        held=_planes(states.held),
        selection=np.ascontiguousarray(states.selection.swapaxes(0, 1)),
        pair_planes=np.stack(pairs),
    )


def _with_batch(name: str, leaf: np.ndarray) -> np.ndarray:
    return leaf[..., None] if name in BITS else leaf[None]


def _cells(planes: np.ndarray, width: int) -> np.ndarray:
    """[..., 4, height, batch] of uint32 -> [..., batch, height, width] of uint8: bit c of word p is bit p of cell c."""
    words = np.ascontiguousarray(np.moveaxis(planes, -1, -3))[..., None]  # [..., batch, 4, height, 1]
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=-1, count=width, bitorder="little")
    return np.bitwise_or.reduce(bits << np.arange(4, dtype=np.uint8)[:, None, None], axis=-3)


def _planes(cells: np.ndarray) -> np.ndarray:
    """[batch, height, width] of uint8 -> [4, height, batch] of uint32"""
    padded = np.pad(cells, ((0, 0), (0, 0), (0, 32 - cells.shape[2])), constant_values=PADDING)
    bits = padded[:, None] >> np.arange(4, dtype=np.uint8)[:, None, None] & 1  # [batch, 4, height, 32]
    words = np.packbits(bits, axis=-1, bitorder="little").view("<u4")[..., 0].astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, 0, -1))


def assert_same_states(one: ArcEnvState, other: ArcEnvState, what: object = "") -> None:
    """Compare states of any two engines: everything that they hold, their banks included."""
    left, right = on_host(one), on_host(other)
    for name in (*CHANGED, "key", "fixed_task"):
        assert_same(getattr(left, name), getattr(right, name), (what, name))
    for place, pair in enumerate(zip(left.bank[:5], right.bank[:5], strict=True)):
        assert_same(*pair, (what, "bank", place))


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
    states = on_host(result.states)
    named = [getattr(states, name) for name in CHANGED]
    return [np.asarray(array)[chosen] for array in (*named, result.obs, result.rewards, result.dones)] + [
        np.asarray(result.infos[name])[chosen] for name in sorted(result.infos)
    ]
