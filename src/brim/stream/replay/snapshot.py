"""`BufferSnapshot`: the content of a replay buffer at one moment, oldest first.

A snapshot never changes, whatever happens to the buffer. Its small columns are copies; tokens are shared with the
buffer, which never overwrites any.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ends, offsets, segment_sums
from brim.core.fingerprint import array_bytes, fingerprint, new_hash
from brim.core.options import one_of
from brim.data.ids import Ids, SampleId
from brim.data.lengths import LengthCache
from brim.data.token_store import TokenStore
from brim.envs.episode import DIFFICULTIES
from brim.stream.replay.columns import CHUNK, SOURCES, Entries, gather, read_only
from brim.stream.sample import SampleSource, StreamSample

Rows = NDArray[np.integer[Any]]


class BufferSnapshot:
    """Columns with a value for every entry. A row of the snapshot is an index into these columns."""

    def __init__(
        self,
        entries: Entries,
        rows: NDArray[np.int64],
        *,
        keys: NDArray[np.int64],
        priorities: NDArray[np.float64],
        replays: NDArray[np.int64],
        total_added: int,
        total_evicted: int,
    ) -> None:
        """Use `ReplayBuffer.snapshot` instead."""
        self.keys = keys
        self.priorities = priorities
        self.total_added = total_added
        self.total_evicted = total_evicted
        self.lengths: NDArray[np.int32] = entries.columns["length"][rows]
        self._entries = entries
        self._rows = rows
        self._replays = replays

    @property
    def size(self) -> int:
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def sample_ids(self) -> list[SampleId]:
        return self._entries.columns["sample_id"][self._rows].tolist()

    @cached_property
    def reward(self) -> NDArray[np.float64]:
        """NaN where there is no reward."""
        return self._entries.columns["reward"][self._rows]

    @cached_property
    def difficulty(self) -> NDArray[np.float64]:
        """NaN where it is unknown."""
        return self._entries.columns["difficulty"][self._rows]

    @cached_property
    def success(self) -> NDArray[np.int8]:
        """1 or 0, and -1 where it is unknown."""
        return self._entries.columns["success"][self._rows]

    @cached_property
    def source(self) -> NDArray[np.int8]:
        """An index into `SampleSource`."""
        return self._entries.columns["source"][self._rows]

    @cached_property
    def policy_version(self) -> NDArray[np.int64]:
        """-1 where there is no policy version."""
        return self._entries.columns["policy_version"][self._rows]

    @cached_property
    def replay_count(self) -> NDArray[np.int64]:
        """Number of times that each entry was drawn, including draws before it was added to this buffer."""
        return self._entries.columns["replay_count"][self._rows] + self._replays

    @cached_property
    def segmented(self) -> NDArray[np.bool_]:
        """Whether each entry has segments of its own."""
        return self._entries.columns["segmented"][self._rows] > 0

    @cached_property
    def num_loss_tokens(self) -> NDArray[np.int64]:
        """The trained-on tokens of each entry."""
        sums: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        for part in self._parts(self._rows):
            lengths = self._entries.columns["length"][part]
            learned = gather(self._entries.learned, self._entries.columns["start"][part], lengths)
            sums.append(segment_sums(learned, offsets(lengths)))
        return np.concatenate(sums)

    def samples(self, rows: Rows | None = None) -> list[StreamSample]:
        """Some entries, or all, as samples, not marked as replayed."""
        which = np.arange(self.size) if rows is None else rows
        return self._entries.samples(self._rows[which], self.replay_count[which])

    def get_lengths(
        self, rows: Rows | None = None, *, tokenizer_hash: str = "", dataset_hash: str | None = None
    ) -> LengthCache:
        """The lengths of some entries, or all, from which a plan is built. They belong to the `store` of the same rows.

        The ids are those of the samples. If two entries have the same id, or one is not valid text, the keys of the
        entries are used instead. `dataset_hash` is the `content_hash` of the rows, if it is known already.
        """
        which = np.arange(self.size) if rows is None else rows
        try:
            ids = Ids.of(self._entries.columns["sample_id"][self._rows[which]].tolist())
        except UnicodeEncodeError:  # half of a surrogate pair
            ids = Ids.integers(self.keys[which])
        if ids.duplicate() is not None:
            ids = Ids.integers(self.keys[which])
        if dataset_hash is None:
            dataset_hash = self.content_hash(rows)
        return LengthCache(ids, self.lengths[which], dataset_hash=dataset_hash, tokenizer_hash=tokenizer_hash)

    def store(
        self,
        rows: Rows | None = None,
        *,
        pad_id: int = 0,
        tokenizer_hash: str = "",
        dataset_hash: str | None = None,
    ) -> TokenStore:
        """Some entries, or all, as a data set of their own. The tokens are shared with the buffer and are read-only.

        `dataset_hash` is the `content_hash` of the rows, if it is known already.
        """
        which = np.arange(self.size) if rows is None else rows
        if dataset_hash is None:
            dataset_hash = self.content_hash(rows)
        return TokenStore(
            read_only(self._entries.tokens),
            read_only(self._entries.learned),
            self._entries.columns["start"][self._rows[which]],
            self.lengths[which],
            pad_id=pad_id,
            dataset_hash=dataset_hash,
            tokenizer_hash=tokenizer_hash,
        )

    def content_hash(self, rows: Rows | None = None) -> str:
        """The fingerprint of some entries, or all, in their order.

        It covers ids, tokens, masks and segments, but not keys and priorities.
        """
        which = self._rows if rows is None else self._rows[rows]
        ids: list[SampleId] = self._entries.columns["sample_id"][which].tolist()
        hash = new_hash()
        for part in self._parts(which):
            begin, lengths = self._entries.columns["start"][part], self._entries.columns["length"][part]
            tokens = np.empty(int(lengths.sum(dtype=np.int64)), np.int32)
            hash.update(array_bytes(gather(self._entries.tokens, begin, lengths, tokens)))
            hash.update(array_bytes(gather(self._entries.learned, begin, lengths)))
            segmented = self._entries.columns["segmented"][part]
            hash.update(array_bytes(segmented))
            if self._entries.segments is not None and segmented.any():
                some = segmented > 0
                hash.update(array_bytes(gather(self._entries.segments, begin[some], lengths[some])))
        lengths = self._entries.columns["length"][which]
        return fingerprint(ids=ids, lengths=lengths, tokens=hash.hexdigest())

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the content or the priority of any entry and with their order, not with time.

        Reads all tokens.
        """
        return fingerprint(content=self.content_hash(), priorities=self.priorities.view(np.int64))

    @property
    def mean_reward(self) -> float | None:
        """The mean over the entries with a reward; None if there is none."""
        return _mean(self.reward[~np.isnan(self.reward)])

    @property
    def mean_difficulty(self) -> float | None:
        """The mean over the entries whose difficulty is known; None if there is none."""
        return _mean(self.difficulty[~np.isnan(self.difficulty)])

    @property
    def success_rate(self) -> float | None:
        """The success rate of the entries whose success is known; None if there is none."""
        return _mean(self.success[self.success >= 0])

    def statistics(self) -> dict[str, Any]:
        """Counts and means as JSON-like values.

        Difficulties are grouped by fifths of the scale, named as in `DIFFICULTIES`, or "unknown". `bytes` is the memory
        of the columns, with their spare room; ids and names count as references.
        """
        fifth = np.clip(np.nan_to_num(self.difficulty) * 5, 0, 4)
        level = np.where(np.isnan(self.difficulty), len(DIFFICULTIES), fifth).astype(np.int64)
        by_success = (("success", 1), ("failure", 0), ("unknown", -1))
        return {
            "size": self.size,
            "tokens": int(self.lengths.sum(dtype=np.int64)),
            "bytes": self._entries.nbytes,
            "loss_tokens": int(self.num_loss_tokens.sum()),
            "mean_priority": _mean(self.priorities),
            "mean_reward": self.mean_reward,
            "mean_difficulty": self.mean_difficulty,
            "success_rate": self.success_rate,
            "by_difficulty": self._by(level, (*DIFFICULTIES, "unknown")),
            "by_source": self._by(self.source, tuple(SampleSource)),
            "by_success": {name: int((self.success == code).sum()) for name, code in by_success},
            "replays": int(self.replay_count.sum()),
        }

    def _by(self, codes: NDArray[Any], names: Sequence[str]) -> dict[str, Any]:
        """Count and success rate of each group; empty groups are left out."""
        counts = np.bincount(codes, minlength=len(names)).tolist()
        groups: dict[str, Any] = {}
        for code, (name, count) in enumerate(zip(names, counts, strict=True)):
            if count:
                known = self.success[(codes == code) & (self.success >= 0)]
                groups[str(name)] = {"count": count, "success_rate": _mean(known)}
        return groups

    def _parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Split rows into parts of about a million tokens, at positions that depend on the lengths alone."""
        cuts = np.flatnonzero(np.diff(ends(self._entries.columns["length"][rows]) // CHUNK)) + 1
        return np.split(rows, cuts) if len(rows) else []


class SnapshotQueries(ABC):
    """Questions about the current content of a buffer, each answered from a new snapshot.

    To ask several of them, take one `snapshot()` and ask that.
    """

    @abstractmethod
    def snapshot(self) -> BufferSnapshot:
        """The current content, oldest first. It does not change when the buffer does."""

    def get_all(self) -> list[StreamSample]:
        """All samples, oldest first. Their `replay_count` includes the draws from this buffer."""
        return self.snapshot().samples()

    def filter(self, predicate: Callable[[StreamSample], bool]) -> list[StreamSample]:
        """The samples for which `predicate` is true, oldest first."""
        return [sample for sample in self.get_all() if predicate(sample)]

    def filter_by_difficulty(self, lowest: float, highest: float) -> list[StreamSample]:
        """The samples whose difficulty is known and lies from `lowest` to `highest`, oldest first."""
        snapshot = self.snapshot()
        return snapshot.samples(np.flatnonzero((snapshot.difficulty >= lowest) & (snapshot.difficulty <= highest)))

    def filter_by_success(self, success: bool) -> list[StreamSample]:
        """The samples whose success is known and equal to `success`, oldest first."""
        snapshot = self.snapshot()
        return snapshot.samples(np.flatnonzero(snapshot.success == int(success)))

    def filter_by_source(self, *sources: SampleSource) -> list[StreamSample]:
        """The samples that came from one of these sources, oldest first."""
        codes = [SOURCES.index(SampleSource(one_of("source", source, SampleSource))) for source in sources]
        snapshot = self.snapshot()
        return snapshot.samples(np.flatnonzero(np.isin(snapshot.source, codes)))

    @property
    def mean_reward(self) -> float | None:
        """The mean over the entries with a reward; None if there is none."""
        return self.snapshot().mean_reward

    @property
    def mean_difficulty(self) -> float | None:
        """The mean over the entries whose difficulty is known; None if there is none."""
        return self.snapshot().mean_difficulty

    @property
    def success_rate(self) -> float | None:
        """The success rate of the entries whose success is known; None if there is none."""
        return self.snapshot().success_rate

    def statistics(self) -> dict[str, Any]:
        """Counts by difficulty, source and success; see `BufferSnapshot.statistics`."""
        return self.snapshot().statistics()


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
