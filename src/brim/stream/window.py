"""Rolling plans: the next window of training over a memory that keeps changing.

A window is drawn from a snapshot of a `ReplayBuffer` and planned by the same planner as any data set. It is a pure function of the
snapshot, the options, the number of the window and what was in the window before: the same snapshot and seed give the same microbatches.
It holds the tokens of its samples, so that the buffer may go on, and evict them, while the window is trained on.

Which samples: those of high priority are likelier, none comes twice, and at most `overlap_fraction` of a window was in the one before.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.batch.batch import Batch
from brim.batch.collate import collate
from brim.core.columns import Columns, write_columns
from brim.core.errors import DamagedError, DataError, LengthError, MismatchError, OptionError, check_counts
from brim.core.fingerprint import fingerprint
from brim.core.rng import raw_bits
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.sample import Sample
from brim.data.token_store import TokenStore, begins
from brim.plan.config import BatchingConfig
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan
from brim.stream.curriculum import Curriculum
from brim.stream.replay.buffer import BufferSnapshot, ReplayBuffer

FORMAT = "brim.window/1"

Keys = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How large a window is, and what goes into it."""

    window_microbatches: int = 1000
    """A window has at most this many microbatches."""
    min_samples: int = 100
    """And is drawn from at least this many samples; while there are fewer, there is no window."""
    overlap_fraction: float = 0.1
    """At most this share of its samples was in the window before; 1 for no limit."""
    prioritized: bool = True
    """Samples are drawn by their priority, raised to the buffer's alpha; without, all alike."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """How samples share microbatches. Its seed is not used: every window has its own."""
    seed: int = 42

    def __post_init__(self) -> None:
        check_counts(window_microbatches=self.window_microbatches, min_samples=self.min_samples)
        if not 0 <= self.overlap_fraction <= 1:
            raise OptionError(f"overlap_fraction must lie between 0 and 1, got {self.overlap_fraction}")

    def plan_config(self, window_id: int) -> BatchingConfig:
        """With the seed of one window."""
        return replace(self.batching, seed=int(raw_bits(1, seed=self.seed, purpose="window plan", epoch=window_id)[0]) >> 1)


@dataclass(frozen=True, eq=False)
class Window:
    """A plan of one epoch, and the tokens of its rows. Row i is the entry `keys[i]` of the buffer."""

    window_id: int
    plan: BatchPlan
    store: TokenStore
    keys: Keys
    snapshot_fingerprint: str
    snapshot_size: int

    @property
    def fingerprint(self) -> str:
        return self.plan.fingerprint

    @property
    def num_microbatches(self) -> int:
        return self.plan.num_microbatches(0)

    @property
    def num_samples(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class WindowState:
    """Where a rolling plan is."""

    window_id: int
    snapshot_size: int
    snapshot_fingerprint: str
    plan_fingerprint: str
    plan_microbatches: int
    microbatches_consumed: int

    @property
    def remaining(self) -> int:
        return self.plan_microbatches - self.microbatches_consumed

    @property
    def is_exhausted(self) -> bool:
        return self.remaining == 0

    @property
    def progress(self) -> float:
        return self.microbatches_consumed / self.plan_microbatches if self.plan_microbatches else 1.0


class RollingBatchPlanWindow:
    """The window that is trained on, and the way to the next one.

    Example:
        >>> from brim.stream.sample import StreamSample
        >>> buffer = ReplayBuffer(max_size=100)
        >>> for number in range(20):
        ...     _ = buffer.add(StreamSample(sample_id=number, input_ids=[1] * (number + 1), loss_mask=[1] * (number + 1)))
        >>> rolling = RollingBatchPlanWindow(buffer, min_samples=10, batching=BatchingConfig(token_budget=64))
        >>> window = rolling.build_next_window()
        >>> sum(microbatch.batch_size for microbatch in rolling.iter_current()) == window.num_samples == 20
        True
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        config: WindowConfig | None = None,
        *,
        pad_id: int = 0,
        tokenizer_hash: str = "",
        curriculum: Curriculum | None = None,
        **options: Any,
    ) -> None:
        """`curriculum` makes samples near its target likelier. `options` are those of a `WindowConfig`."""
        if config is not None and options:
            raise OptionError("give a WindowConfig or options, not both")
        self.buffer, self.config, self.curriculum = buffer, config or WindowConfig(**options), curriculum
        self.pad_id, self.tokenizer_hash = pad_id, tokenizer_hash
        self.current: Window | None = None
        self.window_id = -1
        """Of the last window that was built; -1 before the first."""
        self.consumed = 0
        """Microbatches of the current window that were handed out."""
        self._before: Keys = np.empty(0, np.int64)

    @property
    def can_build(self) -> bool:
        """Whether the buffer has enough for the next window."""
        return self._available(self.buffer.snapshot()) >= self.config.min_samples

    def build_next_window(self) -> Window:
        """Draw and plan the next window. What is left of the current one is given up.

        Raises:
            DataError: The buffer has too few samples that the window may hold, or one has segments of its own.
            LengthError: A sample does not fit the budget, and `batching.overflow` says it must; or, split, it does not fit a window.
        """
        snapshot = self.buffer.snapshot()
        available = self._available(snapshot)
        if available < self.config.min_samples:
            raise DataError(
                f"window {self.window_id + 1} needs {self.config.min_samples} samples, there are {available} to choose from (the buffer "
                f"holds {snapshot.size}; at most {self.config.overlap_fraction:.0%} of a window may have been in the one before); add "
                "samples, or lower min_samples, or raise overlap_fraction"
            )
        number = self.window_id + 1
        self.current = self._window(snapshot, self._drawn(snapshot, available, number), number)
        self.window_id, self.consumed, self._before = number, 0, np.sort(self.current.keys)
        return self.current

    def _available(self, snapshot: BufferSnapshot) -> int:
        """How many samples the next window could hold: all new ones, and as many old ones as the overlap allows beside them."""
        old = int(np.isin(snapshot.keys, self._before).sum())
        return _most(snapshot.size - old, old, self.config.overlap_fraction)

    def _drawn(self, snapshot: BufferSnapshot, available: int, number: int) -> NDArray[np.int64]:
        """As many rows as make no more microbatches than a window has."""
        order = self._ordered(snapshot, number)
        old = np.isin(snapshot.keys[order], self._before)

        def rows(size: int) -> NDArray[np.int64]:
            return _pick(order, old, size, self.config.overlap_fraction)

        def fits(size: int) -> bool:
            return self._planned(snapshot, rows(size), number) <= self.config.window_microbatches

        if fits(available):
            return rows(available)
        low, high = 0, available
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if low == 0:
            first = int(rows(1)[0])
            raise LengthError(
                f"sample {snapshot.sample_ids[first]!r} with {int(snapshot.lengths[first])} tokens makes more than the "
                f"{self.config.window_microbatches} microbatches of a window; raise window_microbatches, or truncate instead of splitting"
            )
        return rows(low)

    def _ordered(self, snapshot: BufferSnapshot, number: int) -> NDArray[np.int64]:
        """Rows in the order in which they are drawn.

        The row with the smallest -log(u) / weight comes first: that draws without replacement, in proportion to the weights.
        """
        weights = np.ones(snapshot.size)
        if self.config.prioritized:
            weights = np.power(snapshot.priorities, self.buffer.config.priority_alpha)
        if self.curriculum is not None:
            weights = weights * self.curriculum.weights(snapshot.difficulty)
        uniform = ((raw_bits(snapshot.size, seed=self.config.seed, purpose="window", epoch=number) >> np.uint64(11)) + 0.5) * 2.0**-53
        with np.errstate(divide="ignore", over="ignore"):
            return np.argsort(-np.log(uniform) / weights, kind="stable")

    def _planned(self, snapshot: BufferSnapshot, rows: NDArray[np.int64], number: int) -> int:
        """How many microbatches some rows make."""
        lengths = LengthCache(Ids.rows(len(rows)), snapshot.lengths[rows])
        return BatchPlan.build(lengths, self.config.plan_config(number)).num_microbatches(0)

    def _window(self, snapshot: BufferSnapshot, rows: NDArray[np.int64], number: int) -> Window:
        if snapshot.segmented[rows].any():
            first = snapshot.sample_ids[int(rows[snapshot.segmented[rows]][0])]
            raise DataError(f"sample {first!r} has segments of its own, which a plan cannot keep apart; add each of them as a sample")
        store = snapshot.store(rows, pad_id=self.pad_id, tokenizer_hash=self.tokenizer_hash)
        plan = BatchPlan.build(snapshot.get_lengths(rows, tokenizer_hash=self.tokenizer_hash), self.config.plan_config(number))
        return Window(number, plan, store, snapshot.keys[rows], snapshot.fingerprint, snapshot.size)

    @property
    def state(self) -> WindowState | None:
        """None before the first window, and after `discard_current`."""
        window = self.current
        if window is None:
            return None
        return WindowState(
            window.window_id, window.snapshot_size, window.snapshot_fingerprint, window.fingerprint, window.num_microbatches, self.consumed
        )

    def iter_current(self) -> Iterator[MicrobatchSpec]:
        """The microbatches of the current window that were not handed out yet. Goes on where an earlier loop was left."""
        window = self._present()
        while self.consumed < window.num_microbatches and self.current is window:
            self.consumed += 1
            yield window.plan.get_epoch(0)[self.consumed - 1]

    def iter_current_with_samples(self) -> Iterator[tuple[MicrobatchSpec, list[Sample]]]:
        """The same with the samples of each microbatch, whole."""
        store = self._present().store
        for microbatch in self.iter_current():
            spans = [store.sample(row) for row in microbatch.indices.tolist()]
            yield microbatch, [Sample(id, span.tokens, span.learned) for id, span in zip(microbatch.samples, spans, strict=True)]

    def batches(self) -> Iterator[Batch]:
        """The same as arrays to train on."""
        store = self._present().store
        return (collate(microbatch, store) for microbatch in self.iter_current())

    def keys_of(self, microbatch: MicrobatchSpec) -> Keys:
        """The entries of the buffer that a microbatch of the current window holds, for `buffer.update_priorities`."""
        return self._present().keys[microbatch.indices]

    def go_to(self, microbatch: int) -> None:
        """Let `iter_current` go on from a microbatch of the current window."""
        last = self._present().num_microbatches
        if not 0 <= microbatch <= last:
            raise OptionError(f"microbatch {microbatch} does not exist: the window has {last}")
        self.consumed = microbatch

    def discard_current(self) -> None:
        """Give up what is left of the window. The next one knows what was in it."""
        self.current, self.consumed = None, 0

    def _present(self) -> Window:
        if self.current is None:
            raise OptionError("there is no window; call build_next_window first")
        return self.current

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the current window with its tokens and how far it was consumed: whole, or not at all."""
        window = self.current
        meta: dict[str, Any] = {
            "options": self._identity(),
            "window_id": self.window_id,
            "consumed": self.consumed,
            "window": None,
        }
        columns: dict[str, NDArray[Any]] = {"before": self._before}
        if window is not None:
            store = window.store
            flat = np.repeat(store.starts - begins(store.lengths), store.lengths) + np.arange(int(store.lengths.sum(dtype=np.int64)))
            meta["window"] = {
                "window_id": window.window_id,
                "plan": window.fingerprint,
                "dataset": store.dataset_hash,
                "snapshot": window.snapshot_fingerprint,
                "snapshot_size": window.snapshot_size,
            }
            columns |= {"keys": window.keys, "tokens": store.tokens[flat], "learned": store.learned[flat], "length": store.lengths}
            columns |= window.plan.table.ids.columns
        write_columns(path, FORMAT, meta, columns)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Become what was saved: the same window, the same microbatch next.

        Raises:
            MismatchError: It was saved with other options.
            DamagedError: The file is not as it was written.
        """
        columns = Columns(path, FORMAT)
        meta = columns.meta
        if meta["options"] != self._identity():
            raise MismatchError(f"{path} was written by a rolling plan with other options; give those, or start anew")
        window = None if meta["window"] is None else self._restored(columns, meta["window"])
        self.current, self.window_id, self.consumed = window, meta["window_id"], meta["consumed"]
        self._before = np.array(columns["before"])

    def _restored(self, columns: Columns, found: dict[str, Any]) -> Window:
        lengths, keys, number = np.array(columns["length"]), np.array(columns["keys"]), found["window_id"]
        ids = Ids(len(keys), {name: np.array(columns[name]) for name in ("id", "id_text", "id_ends") if name in columns})
        hashes: dict[str, Any] = {"tokenizer_hash": self.tokenizer_hash, "dataset_hash": found["dataset"]}
        tokens, learned = np.array(columns["tokens"]), np.array(columns["learned"])
        store = TokenStore(tokens, learned, begins(lengths), lengths, pad_id=self.pad_id, **hashes)
        plan = BatchPlan.build(LengthCache(ids, lengths, **hashes), self.config.plan_config(number))
        if plan.fingerprint != found["plan"]:
            raise DamagedError(f"{columns.path}: the plan of the window is {plan.fingerprint[:8]}.., it was {found['plan'][:8]}..")
        return Window(number, plan, store, keys, found["snapshot"], found["snapshot_size"])

    def _identity(self) -> str:
        config = self.config
        return fingerprint(
            window_microbatches=config.window_microbatches,
            min_samples=config.min_samples,
            overlap_fraction=config.overlap_fraction,
            prioritized=config.prioritized,
            batching=config.batching.identity,
            seed=config.seed,
            tokenizer=self.tokenizer_hash,
            pad=self.pad_id,
        )


def _most(new: int, old: int, overlap: float) -> int:
    """The largest window of so many new and old samples, of which at most a share is old."""
    if new == 0:
        return old if overlap == 1 else 0
    beside = old if overlap == 1 else min(old, math.floor(overlap * new / (1 - overlap) + 1e-9))
    return new + beside


def _pick(order: NDArray[np.int64], old: NDArray[np.bool_], size: int, overlap: float) -> NDArray[np.int64]:
    """The first rows for a window of `size`, passing over old ones when there are as many as the overlap allows."""
    allowed = ~old | (np.cumsum(old) <= math.floor(overlap * size + 1e-9))
    return order[allowed][:size]
