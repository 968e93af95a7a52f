"""A replay buffer in a few lines, and samples of every kind to put into one."""

import numpy as np
from hypothesis import strategies as st

from brim.envs.episode import EpisodeStatus
from brim.stream.sample import SampleSource, StreamSample


def sample(id="a", tokens=(1, 2, 3), **fields):
    return StreamSample(sample_id=id, input_ids=list(tokens), loss_mask=[1] * len(tokens), **fields)


def numbered(count, length=4, **fields):
    """Samples whose tokens say which one they are."""
    return [sample(f"s{i}", [i] * length, **fields) for i in range(count)]


@st.composite
def samples(draw, ids=None):
    ids = (
        st.one_of(st.integers(-3, 12), st.integers(0, 12).map(str), st.sampled_from(["ä", "", 2**70]))
        if ids is None
        else ids
    )
    tokens = draw(st.lists(st.one_of(st.integers(0, 9), st.sampled_from([65535, 65536, 2**31 - 1])), max_size=6))
    maybe = lambda values: draw(st.one_of(st.none(), values))  # noqa: E731
    return StreamSample(
        sample_id=draw(ids),
        input_ids=tokens,
        loss_mask=draw(st.lists(st.integers(0, 1), min_size=len(tokens), max_size=len(tokens))),
        segment_ids=maybe(st.just(sorted(range(len(tokens))))),
        dataset_id=draw(st.sampled_from(["", "gym", "ä"])),
        source=draw(st.sampled_from(SampleSource)),
        timestamp=draw(st.floats(0, 2e9)),
        episode_id=maybe(st.sampled_from(["e1", "", "e\udc80"])),
        episode_status=maybe(st.sampled_from(EpisodeStatus)),
        step_index=maybe(st.integers(0, 2**62)),
        total_steps=maybe(st.integers(0, 9)),
        reward=maybe(st.floats(-9, 9)),
        difficulty=maybe(st.floats(0, 1)),
        success=maybe(st.booleans()),
        policy_version=maybe(st.integers(0, 9)),
        replay_count=draw(st.integers(0, 3)),
        priority=draw(st.floats(0, 100)),
    )


class Naive:
    """A list of [sample, priority, number], oldest first."""

    def __init__(self, max_size, policy, duplicates="keep"):
        self.entries, self.max_size, self.policy, self.duplicates, self.added = [], max_size, policy, duplicates, 0

    def add(self, one, priority):
        if self.duplicates == "replace":
            self.entries = [entry for entry in self.entries if entry[0].sample_id != one.sample_id]
        if len(self.entries) == self.max_size:
            self.entries.remove(
                min(self.entries, key=lambda entry: (entry[1] if self.policy == "priority" else 0, entry[2]))
            )
        self.added += 1
        self.entries.append([one, priority, self.added])

    def update(self, id, priority):
        for entry in self.entries:
            if entry[0].sample_id == id:
                entry[1] = priority


def same_bits(one, other):
    return np.array_equal(np.asarray(one), np.asarray(other))
