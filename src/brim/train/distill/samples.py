"""Samples of compressed algorithm distillation, cut from learning histories.

A sample is a stretch of one history from its very first step: up to three stages, oldest first, and the context behind
them, in which actions are to be predicted. Every stretch is between half a window and a whole one, so samples are
ragged in depth and in length. Where a sample is cut depends on the file, the options and its number alone, and how it
is shaped is known without reading it.

A step is a token of what is known before acting: the cell, and the action and the reward that led there. At the first
step of an episode nothing led there, and the action is START. What the last action of an episode led to is in no token,
for nothing is done there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint
from brim.core.options import check_counts
from brim.core.rng import raw_bits
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.nested.lengths import structure_table
from brim.data.nested.structure import outline
from brim.envs.darkroom.histories import Histories
from brim.envs.darkroom.room import ACTIONS, Episode

START = ACTIONS
"""The action that led to the first state of an episode: none."""


@dataclass(frozen=True, kw_only=True)
class CutConfig:
    """Options of cutting histories into samples."""

    window: int = 40
    """Upper limit of the steps in a stage or a context; the lower limit is half of it."""
    depth: int = 3
    """Upper limit of the stages in a sample."""
    samples: int = 32768
    """Samples in an epoch: different cuts of the same histories."""

    def __post_init__(self) -> None:
        check_counts(window=self.window, samples=self.samples)
        if self.window < 2:
            raise OptionError(f"window must be at least 2, got {self.window}")
        if self.depth < 0:
            raise OptionError(f"depth must not be negative, got {self.depth}")


class Shape(NamedTuple):
    """The shape of a sample, known without reading it."""

    depth: int
    lengths: tuple[int, ...]
    """Lengths of the stages, oldest first, and of the context."""


class HistoryDataset:
    """A map-style data set of nested samples. Opens the file of histories in whatever process reads it."""

    def __init__(self, histories: Histories, config: CutConfig, *, seed: int) -> None:
        """Decide where every sample is cut.

        Raises:
            OptionError: The histories are too short for these options.
        """
        needed = config.depth * config.window + 1
        if histories.steps < needed:
            raise OptionError(
                f"histories of {histories.steps} steps are too short for {config.depth} stages of {config.window} "
                "steps and a context; record more episodes, or make the window or the depth smaller"
            )
        self.histories, self.config, self.seed = histories, config, seed
        self._history, self._depth, self._ends = _cuts(histories, config, seed)

    def __len__(self) -> int:
        return self.config.samples

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Read several samples at once. A `DataLoader` reads batches this way."""
        for row in rows:
            if not -len(self) <= row < len(self):
                raise IndexError(f"row {row} of {len(self)} samples")
        at = np.asarray(rows, np.int64) % len(self)
        steps = tokens(self.histories.read(self._history[at]), self.histories.horizon)
        return [
            self._sample(row, {name: column[place] for name, column in steps.items()})
            for place, row in enumerate(at.tolist())
        ]

    def shape_of(self, row: int) -> Shape:
        """Return the shape of a sample, without reading it."""
        depth = int(self._depth[row])
        return Shape(depth, tuple(np.diff(self._ends[row, : depth + 1], prepend=0).tolist()))

    def id_of(self, row: int) -> str:
        """Return an id made of the history, the step at which the context begins, and the number of the sample."""
        depth = int(self._depth[row])
        return f"h{self._history[row]}-t{self._ends[row, depth - 1] if depth else 0}-s{row}"

    @cached_property
    def table(self) -> LengthCache:
        """The table that the planner reads: a structure and lengths for each sample."""
        kinds, depths = np.unique(self._depth, return_inverse=True)
        outlines = [outline(self[int(np.argmax(self._depth == kind))]) for kind in kinds]
        sizes = np.diff(self._ends, axis=1, prepend=0)
        lengths = [
            sizes[self._depth == kind][:, _axis_of_arrays(found.structure.arrays)]
            for kind, found in zip(kinds, outlines, strict=True)
        ]
        return structure_table(
            [found.structure for found in outlines],
            depths.astype(np.int64),
            lengths,
            ids=Ids.of(self.id_of(row) for row in range(len(self))),
            dataset_hash=self.fingerprint,
        )

    @property
    def fingerprint(self) -> str:
        config = self.config
        return fingerprint(
            histories=self.histories.fingerprint,
            window=config.window,
            depth=config.depth,
            samples=config.samples,
            seed=self.seed,
        )

    def _sample(self, row: int, steps: dict[str, NDArray[Any]]) -> dict[str, Any]:
        depth, ends = int(self._depth[row]), [0, *self._ends[row].tolist()]
        stretches = [{name: column[ends[i] : ends[i + 1]] for name, column in steps.items()} for i in range(depth + 1)]
        return {
            "id": self.id_of(row),
            "compression_depth": depth,
            "num_compression_stages": depth,
            "compression_stages": [
                {name: stage[name] for name in ("states", "actions", "rewards")} for stage in stretches[:-1]
            ],
            "context": stretches[-1],
        }


def tokens(history: Episode, horizon: int) -> dict[str, NDArray[Any]]:
    """Turn histories into columns of what is known before each action, and the action: states, actions, rewards,
    targets. [rows, steps]
    """
    actions, rewards = history.actions.astype(np.int64), history.rewards.astype(np.float32)
    led = np.concatenate([np.full_like(actions[:, :1], START), actions[:, :-1]], axis=1)
    earned = np.concatenate([np.zeros_like(rewards[:, :1]), rewards[:, :-1]], axis=1)
    led[:, ::horizon], earned[:, ::horizon] = START, 0.0
    return {"states": history.states.astype(np.int64), "actions": led, "rewards": earned, "targets": actions}


def _cuts(
    histories: Histories, config: CutConfig, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw for each sample its history, its depth, and where its stretches end.

    [samples], [samples], [samples, depth + 1]
    """
    count, stretches = config.samples, config.depth + 1
    bits = raw_bits(count * (stretches + 2), seed=seed, purpose="cuts").reshape(count, -1) >> np.uint64(32)
    history = _below(bits[:, 0], np.int64(histories.count))
    depth = _below(bits[:, 1], np.int64(stretches))
    least = config.window // 2
    lengths = least + _below(bits[:, 2:], np.int64(config.window - least + 1))
    ends = np.minimum(np.cumsum(lengths, axis=1), histories.steps)
    return history, depth, ends


def _below(bits: NDArray[np.uint64], bound: np.int64) -> NDArray[np.int64]:
    """Scale words of 32 bits to numbers below a bound."""
    return ((bits * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def _axis_of_arrays(paths: Sequence[str]) -> list[int]:
    """Return the number of the stretch that each array of a sample belongs to; the context comes after the stages."""
    stages = [int(path.split("/")[1]) if path.startswith("compression_stages/") else -1 for path in paths]
    return [stage if stage >= 0 else max(stages) + 1 for stage in stages]
