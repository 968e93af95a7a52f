"""Rolling plans: training windows drawn from a replay buffer that keeps changing.

A window is drawn from a snapshot of a `ReplayBuffer` and planned by the same planner as any data set. It is a pure
function of the snapshot, the options, the number of the window and the entries of the window before: the same snapshot
and seed give the same microbatches. A window holds the tokens of its samples, so the buffer may change, and evict them,
while the window is trained on.

Samples of high priority are likelier to be drawn, no sample is drawn twice, and at most `overlap_fraction` of a window
was in the window before.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.batch.batch import Batch
from brim.batch.collate import collate
from brim.core.arrays import begins
from brim.core.columns import Columns, write_columns
from brim.core.errors import DamagedError, DataError, MismatchError, OptionError
from brim.core.fingerprint import fingerprint
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.sample import Sample
from brim.data.token_store import TokenStore
from brim.plan.build import ALGORITHM
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan
from brim.plan.version_1 import identity_1
from brim.stream.curriculum import Curriculum
from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.replay.snapshot import BufferSnapshot
from brim.stream.window_draw import WindowConfig, draw_order, draw_rows, largest_window

FORMAT = "brim.window/1"

Keys = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Window:
    """A plan with one epoch for every pass, and the tokens of its rows. Row i is the entry `keys[i]` of the buffer."""

    window_id: int
    plan: BatchPlan
    store: TokenStore
    keys: Keys
    snapshot: BufferSnapshot | str = field(repr=False)
    """The snapshot that the window was drawn from; only its fingerprint if the window was loaded from a file."""
    snapshot_size: int

    @property
    def fingerprint(self) -> str:
        return self.plan.fingerprint

    @property
    def snapshot_fingerprint(self) -> str:
        """Computed when it is first asked for, which reads all tokens of the snapshot."""
        return self.snapshot if isinstance(self.snapshot, str) else self.snapshot.fingerprint

    @property
    def num_microbatches(self) -> int:
        """Microbatches of all passes."""
        return self.plan.total_microbatches

    @property
    def num_samples(self) -> int:
        return len(self.keys)

    def microbatch(self, number: int) -> MicrobatchSpec:
        """A microbatch by its number, counted through all passes."""
        epoch = int(np.searchsorted(self._pass_ends, number, side="right"))
        return self.plan.get_epoch(epoch)[number - (self._pass_ends[epoch - 1] if epoch else 0)]

    @cached_property
    def _pass_ends(self) -> list[int]:
        return list(accumulate(self.plan.num_microbatches(epoch) for epoch in range(self.plan.num_epochs)))


@dataclass(frozen=True)
class WindowState:
    """The position of a rolling plan."""

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
        """The consumed share of the window, from 0 to 1."""
        return self.microbatches_consumed / self.plan_microbatches if self.plan_microbatches else 1.0


class RollingBatchPlanWindow:
    """The window that is being trained on, and the means to build the next one.

    Example:
        >>> from brim import BatchingConfig, StreamSample
        >>> buffer = ReplayBuffer(max_size=100)
        >>> for number in range(20):
        ...     tokens = [1] * (number + 1)
        ...     _ = buffer.add(StreamSample(sample_id=number, input_ids=tokens, loss_mask=tokens))
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
        """Start before the first window.

        `curriculum` makes samples near its target likelier. `options` are those of a `WindowConfig`.
        """
        if config is not None and options:
            raise OptionError("give a WindowConfig or options, not both")
        self.buffer = buffer
        self.config = config or WindowConfig(**options)
        self.curriculum = curriculum
        self.pad_id = pad_id
        self.tokenizer_hash = tokenizer_hash
        self.current: Window | None = None
        self.window_id = -1
        """The number of the last window that was built; -1 before the first."""
        self.consumed = 0
        """Microbatches of the current window that were handed out, counted through all passes."""
        self._before: Keys = np.empty(0, np.int64)
        self._algorithm = ALGORITHM
        """Version of the planner that draws and plans all windows of a run."""

    @property
    def can_build(self) -> bool:
        """Whether the buffer has enough samples for the next window."""
        return self._available() >= self.config.min_samples

    def build_next_window(self) -> Window:
        """Draw and plan the next window. The rest of the current one is discarded.

        Raises:
            DataError: The buffer has too few samples that the window may hold, or one has segments of its own.
            LengthError: A sample does not fit the budget while `batching.overflow` is "error", or it is split into more
                microbatches than a window has.
        """
        available = self._available()
        number = self.window_id + 1
        if available < self.config.min_samples:
            raise DataError(
                f"window {number} needs {self.config.min_samples} samples, there are {available} to choose from (the "
                f"buffer holds {self.buffer.size}; at most {self.config.overlap_fraction:.0%} of a window may have "
                "been in the one before); add samples, lower min_samples, or raise overlap_fraction"
            )
        snapshot = self.buffer.snapshot()
        order = draw_order(self._weights(snapshot), seed=self.config.seed, window_id=number)
        old = np.isin(snapshot.keys, self._before)
        rows = draw_rows(snapshot, order, old, available, self.config, number, self._algorithm)
        self.current = self._window(snapshot, rows, number)
        self.window_id = number
        self.consumed = 0
        self._before = np.sort(self.current.keys)
        return self.current

    def _available(self) -> int:
        """The size of the largest possible window: all new samples, and as many old ones as the overlap allows."""
        old = self.buffer.count_held(self._before)
        return largest_window(self.buffer.size - old, old, self.config.overlap_fraction)

    def _weights(self, snapshot: BufferSnapshot) -> NDArray[np.float64]:
        """The sampling weight of every row."""
        weights = np.ones(snapshot.size)
        if self.config.prioritized:
            weights = np.power(snapshot.priorities, self.buffer.config.priority_alpha)
        if self.curriculum is not None:
            weights = weights * self.curriculum.weights(snapshot.difficulty)
        return weights

    def _window(self, snapshot: BufferSnapshot, rows: NDArray[np.int64], number: int) -> Window:
        if snapshot.segmented[rows].any():
            first = snapshot.sample_ids[int(rows[snapshot.segmented[rows]][0])]
            raise DataError(
                f"sample {first!r} has segments of its own, which a plan cannot keep apart; add each segment as a "
                "sample"
            )
        hashes = {"tokenizer_hash": self.tokenizer_hash, "dataset_hash": snapshot.content_hash(rows)}
        store = snapshot.store(rows, pad_id=self.pad_id, **hashes)
        plan = self._plan(snapshot.get_lengths(rows, **hashes), number, self._algorithm)
        return Window(number, plan, store, snapshot.keys[rows], snapshot, snapshot.size)

    def _plan(self, lengths: LengthCache, number: int, algorithm: int) -> BatchPlan:
        config = self.config.plan_config(number)
        return BatchPlan.build(lengths, config, num_epochs=self.config.passes, algorithm=algorithm)

    @property
    def state(self) -> WindowState | None:
        """None before the first window, and after `discard_current`."""
        window = self.current
        if window is None:
            return None
        return WindowState(
            window_id=window.window_id,
            snapshot_size=window.snapshot_size,
            snapshot_fingerprint=window.snapshot_fingerprint,
            plan_fingerprint=window.fingerprint,
            plan_microbatches=window.num_microbatches,
            microbatches_consumed=self.consumed,
        )

    def iter_current(self) -> Iterator[MicrobatchSpec]:
        """The microbatches of the current window, all passes, that were not handed out yet.

        A second loop resumes where an earlier one stopped.
        """
        window = self._present()
        while self.consumed < window.num_microbatches and self.current is window:
            self.consumed += 1
            yield window.microbatch(self.consumed - 1)

    def iter_current_with_samples(self) -> Iterator[tuple[MicrobatchSpec, list[Sample]]]:
        """The same microbatches, each with its samples, whole."""
        store = self._present().store
        for microbatch in self.iter_current():
            spans = [store.sample(row) for row in microbatch.indices.tolist()]
            pairs = zip(microbatch.samples, spans, strict=True)
            yield microbatch, [Sample(id, span.tokens, span.learned) for id, span in pairs]

    def batches(self) -> Iterator[Batch]:
        """The same microbatches as arrays to train on."""
        store = self._present().store
        return (collate(microbatch, store) for microbatch in self.iter_current())

    def keys_of(self, microbatch: MicrobatchSpec) -> Keys:
        """The keys of a microbatch of the current window, for `buffer.update_priorities`."""
        return self._present().keys[microbatch.indices]

    def go_to(self, microbatch: int) -> None:
        """Let `iter_current` resume from a microbatch of the current window, counted through all passes."""
        last = self._present().num_microbatches
        if not 0 <= microbatch <= last:
            raise OptionError(f"microbatch {microbatch} does not exist: the window has {last}")
        self.consumed = microbatch

    def discard_current(self) -> None:
        """Discard the rest of the window. Its samples still count as those of the window before."""
        self.current = None
        self.consumed = 0

    def _present(self) -> Window:
        if self.current is None:
            raise OptionError("there is no window; call build_next_window first")
        return self.current

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the current window with its tokens, and how much of it was consumed: whole, or not at all."""
        window = self.current
        meta: dict[str, Any] = {
            "options": self._identity(self.config.passes, self._algorithm),
            "window_id": self.window_id,
            "consumed": self.consumed,
            "window": None,
        }
        columns: dict[str, NDArray[Any]] = {"before": self._before}
        if window is not None:
            store = window.store
            # The rows of the window lie anywhere in the tokens of the buffer: gather them end to end.
            total = int(store.lengths.sum(dtype=np.int64))
            flat = np.repeat(store.starts - begins(store.lengths), store.lengths) + np.arange(total)
            meta["window"] = {
                "window_id": window.window_id,
                "plan": window.fingerprint,
                "dataset": store.dataset_hash,
                "snapshot": window.snapshot_fingerprint,
                "snapshot_size": window.snapshot_size,
            }
            columns |= {"keys": window.keys, "tokens": store.tokens[flat], "learned": store.learned[flat]}
            columns["length"] = store.lengths
            columns |= window.plan.table.ids.to_columns()
        write_columns(path, FORMAT, meta, columns)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restore what was saved: the same window, and the same next microbatch.

        The next windows are planned by the version of the planner that planned this one.

        Raises:
            MismatchError: It was saved with other options.
            DamagedError: The file is not as it was written.
        """
        columns = Columns(path, FORMAT)
        meta = columns.meta
        algorithms = {self._identity(self.config.passes, number): number for number in range(1, ALGORITHM + 1)}
        # Version 0.5.0 planned one pass, whatever the number of passes, and did not record that number.
        algorithms[self._identity(1, 1)] = 1
        algorithm = algorithms.get(meta["options"])
        if algorithm is None:
            raise MismatchError(
                f"{path} was written by a rolling plan with other options; use those, or start a new run"
            )
        self.current = None if meta["window"] is None else self._restored(columns, meta["window"], algorithm)
        self._algorithm = algorithm
        self.window_id = meta["window_id"]
        self.consumed = meta["consumed"]
        self._before = np.array(columns["before"])

    def _restored(self, columns: Columns, found: dict[str, Any], algorithm: int) -> Window:
        lengths = np.array(columns["length"])
        keys = np.array(columns["keys"])
        number = found["window_id"]
        ids = Ids.from_columns(len(keys), {name: np.array(columns[name]) for name in Ids.COLUMNS if name in columns})
        hashes: dict[str, Any] = {"tokenizer_hash": self.tokenizer_hash, "dataset_hash": found["dataset"]}
        tokens, learned = np.array(columns["tokens"]), np.array(columns["learned"])
        store = TokenStore(tokens, learned, begins(lengths), lengths, pad_id=self.pad_id, **hashes)
        plan = self._plan(LengthCache(ids, lengths, **hashes), number, algorithm)
        # Version 0.5.0 recorded the fingerprint of the plan of one pass.
        one_pass = BatchPlan.build(plan.table, plan.config, algorithm=algorithm)
        if found["plan"] not in (plan.fingerprint, one_pass.fingerprint):
            mine, theirs = plan.fingerprint[:8], found["plan"][:8]
            raise DamagedError(
                f"{columns.path}: the plan of the window is {mine}.., but the file records {theirs}..; start a new run"
            )
        return Window(number, plan, store, keys, found["snapshot"], found["snapshot_size"])

    def _identity(self, passes: int, algorithm: int) -> str:
        """The fingerprint of the options, and of the version of the planner from its second on. A single pass is left
        out of it, as version 0.5.0 knew no other number.
        """
        config = self.config
        more = {"passes": passes} if passes > 1 else {}
        if algorithm > 1:
            more["algorithm"] = algorithm
        return fingerprint(
            window_microbatches=config.window_microbatches,
            min_samples=config.min_samples,
            overlap_fraction=config.overlap_fraction,
            prioritized=config.prioritized,
            batching=identity_1(config.batching) if algorithm == 1 else config.batching.identity,
            seed=config.seed,
            tokenizer=self.tokenizer_hash,
            pad=self.pad_id,
            **more,
        )
