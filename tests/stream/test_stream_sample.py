"""Stream samples, what is counted of them, and what a stream must offer."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.envs.episode import DIFFICULTIES, EpisodeStatus
from brim.stream.metrics import StreamMetrics
from brim.stream.protocols import AsyncSampleStream, SampleStream
from brim.stream.sample import SampleSource, StreamSample

finite = st.floats(-1e9, 1e9)
counts = st.integers(0, 10**6)


@st.composite
def samples(draw):
    pairs = draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1), st.integers(0, 5)), max_size=8))
    optional = {
        "segment_ids": st.just(sorted(segment for _, _, segment in pairs)),
        "dataset_id": st.text(max_size=5),
        "source": st.sampled_from(list(SampleSource)),
        "timestamp": finite,
        "episode_id": st.none() | st.text(max_size=5),
        "episode_status": st.none() | st.sampled_from(list(EpisodeStatus)),
        "step_index": st.none() | counts,
        "total_steps": st.none() | counts,
        "reward": st.none() | finite | st.integers(-9, 9),
        "difficulty": st.none() | st.floats(0, 1),
        "success": st.none() | st.booleans(),
        "policy_version": st.none() | counts,
        "replay_count": counts,
        "priority": st.floats(0, 1e9),
    }
    values = draw(st.fixed_dictionaries({"sample_id": st.text(max_size=5) | st.integers(0, 99)}, optional=optional))
    return StreamSample(input_ids=[token for token, _, _ in pairs], loss_mask=[bit for _, bit, _ in pairs], **values)


def small(**values):
    return StreamSample(**{"sample_id": "a", "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], **values})


@given(samples())
def test_a_sample_survives_real_json_pickling_and_copying(sample):
    for again in (json.loads(json.dumps(sample.to_dict())), orjson.loads(orjson.dumps(sample.to_dict()))):
        read = StreamSample.from_dict(again)
        assert read == sample
        assert [type(getattr(read, field.name)) for field in fields(read)] == [
            type(getattr(sample, field.name)) for field in fields(sample)
        ]
        assert read.timestamp == sample.timestamp
    for same in (pickle.loads(pickle.dumps(sample)), copy.deepcopy(sample), copy.copy(sample)):
        assert same == sample
        assert not same.input_ids.flags.writeable


def test_a_sample_cannot_be_changed_in_any_way():
    given = np.array([5, 6, 7], np.int32)
    sample = small(input_ids=given, segment_ids=[1, 1, 2])
    given[0] = 99
    assert sample.input_ids.tolist() == [5, 6, 7]
    with pytest.raises(FrozenInstanceError):
        sample.reward = 1.0
    for name in ("input_ids", "loss_mask", "segment_ids"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(sample, name)[0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(sample)


CHANGES = {
    "sample_id": "b",
    "input_ids": [5, 6, 8],
    "loss_mask": [0, 0, 1],
    "segment_ids": [1, 1, 1],
    "dataset_id": "d",
    "source": SampleSource.GYM,
    "episode_id": "e",
    "episode_status": EpisodeStatus.ERROR,
    "step_index": 0,
    "total_steps": 0,
    "reward": 0.0,
    "difficulty": 0.0,
    "success": False,
    "policy_version": 0,
    "replay_count": 1,
    "priority": 2.0,
}


def test_samples_are_equal_if_all_but_the_moment_is():
    assert small(timestamp=1.0) == small(timestamp=2.0)
    assert {*CHANGES, "timestamp"} == {field.name for field in fields(StreamSample)}
    for name, value in CHANGES.items():
        assert small(**{name: value}) != small()
    assert small(reward=1) == small(reward=np.float32(1.0)) == small(reward=1.0)
    assert small(sample_id=1) != small(sample_id="1")
    assert small() != "a"


def test_numbers_of_arrays_become_plain_ones():
    sample = small(
        reward=np.float32(0.5), difficulty=np.float64(0.5), step_index=np.int64(3), success=np.bool_(True), priority=2
    )
    kinds = [type(getattr(sample, name)) for name in ("reward", "difficulty", "step_index", "success", "priority")]
    assert kinds == [float, float, int, bool, float]
    assert json.loads(json.dumps(sample.to_dict()))["success"] is True


def test_playing_again_makes_a_copy_that_says_so():
    sample = small(source=SampleSource.GYM, reward=1.0, episode_id="e", timestamp=1.0)
    once = sample.with_replay()
    twice = once.with_replay()
    assert [s.replay_count for s in (sample, once, twice)] == [0, 1, 2]
    assert [s.is_replay for s in (sample, once)] == [False, True]
    assert once.timestamp > sample.timestamp
    assert small(source="replay", replay_count=1, reward=1.0, episode_id="e") == once
    assert (once.is_gym_sample, small().is_gym_sample) == (True, False)


def test_a_sample_to_train_on_has_the_same_arrays():
    sample = small(segment_ids=[1, 2, 2])
    trained = sample.to_sample()
    assert (trained.id, len(sample), sample.length) == ("a", 3, 3)
    assert trained.input_ids is sample.input_ids
    assert trained.segment_ids is sample.segment_ids


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss_mask": [1]}, "loss_mask has 1 entries for 3 tokens"),
        ({"loss_mask": [0, 1, 2]}, "loss_mask holds 2"),
        ({"segment_ids": [1]}, "segment_ids has 1 entries"),
        ({"sample_id": None}, "an id is a string or an integer"),
        ({"source": "web"}, "source must be one of offline, gym, replay, synthetic, got 'web'"),
        ({"episode_status": "sucess"}, 'Did you mean "success"?'),
        ({"reward": float("nan")}, "reward is nan; it must be a finite number"),
        ({"reward": "1"}, "reward is '1'"),
        ({"reward": True}, "reward is True"),
        ({"difficulty": 1.1}, "difficulty is 1.1; it must be a number between 0 and 1"),
        ({"difficulty": "hard"}, "difficulty is 'hard'"),
        ({"success": 1}, "success is 1; it must be true or false"),
        ({"step_index": -1}, "step_index is -1; it must be an integer that is not negative"),
        ({"total_steps": 1.5}, "total_steps is 1.5"),
        ({"policy_version": True}, "policy_version is True"),
        ({"replay_count": None}, "replay_count is None"),
        ({"priority": -0.1}, "priority is -0.1; it must be finite and not negative"),
        ({"priority": float("inf")}, "priority is inf"),
        ({"priority": None}, "priority is None"),
        ({"episode_id": 3}, "episode_id is 3; it must be a string"),
        ({"dataset_id": None}, "dataset_id is None"),
        ({"rewards": 3}, "unknown field 'rewards' of a stream sample. Did you mean \"reward\"?"),
    ],
)
def test_a_sample_that_makes_no_sense_is_refused(values, message):
    with pytest.raises(DataError) as refused:
        StreamSample.from_dict({"sample_id": "a", "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], **values})
    assert message in str(refused.value)


def test_a_sample_needs_an_id_tokens_and_a_mask():
    for name in ("sample_id", "input_ids", "loss_mask"):
        values = {key: value for key, value in small().to_dict().items() if key != name}
        with pytest.raises(DataError, match=f"needs the field '{name}'"):
            StreamSample.from_dict(values)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(samples(), max_size=5))
def test_metrics_are_sums_over_the_samples(found):
    metrics = StreamMetrics()
    for sample in found:
        metrics.record(sample)
    rewards = [sample.reward for sample in found if sample.reward is not None]
    known = [sample.success for sample in found if sample.success is not None]
    assert (metrics.samples, metrics.tokens) == (len(found), sum(len(sample) for sample in found))
    assert metrics.mean_reward == (sum(rewards) / len(rewards) if rewards else None)
    assert metrics.success_rate == (sum(known) / len(known) if known else None)
    again = StreamMetrics.from_dict(orjson.loads(orjson.dumps(metrics.to_dict())))
    assert again == metrics
    assert again.to_dict() == metrics.to_dict()


def test_means_of_nothing_are_none():
    metrics = StreamMetrics()
    assert {
        metrics.mean_length,
        metrics.mean_reward,
        metrics.mean_difficulty,
        metrics.success_rate,
        metrics.filter_rate,
    } == {None}
    assert (metrics.samples_per_second, metrics.episodes_per_second) == (0, 0)


def test_episodes_count_before_samples_and_by_difficulty():
    metrics = StreamMetrics()
    metrics.record(small(success=False, difficulty=0.5))
    assert metrics.success_rate == 0
    for status, difficulty in (("success", "easy"), ("success", "easy"), ("timeout", "hard"), ("failure", None)):
        metrics.record_episode(EpisodeStatus(status), difficulty)
    metrics.record_filtered("too long")
    assert (metrics.success_rate, metrics.num_episodes, metrics.filter_rate, metrics.mean_difficulty) == (
        0.5,
        4,
        0.5,
        0.5,
    )
    assert metrics.episodes == {"success": 2, "timeout": 1, "failure": 1}
    assert {name: (rate.hits, rate.of) for name, rate in metrics.success_by_difficulty.items()} == {
        "easy": (2, 2),
        "hard": (0, 1),
    }
    assert StreamMetrics.from_dict(json.loads(json.dumps(metrics.to_dict()))) == metrics
    assert StreamMetrics.from_dict(orjson.loads(orjson.dumps(metrics.to_dict()))) == metrics


def test_what_is_brought_back_is_not_counted_as_speed():
    metrics = StreamMetrics(samples=10**9, episodes={"success": 10**9})
    assert metrics.samples_per_second > 0
    again = StreamMetrics.from_dict(metrics.to_dict())
    assert (again.samples_per_second, again.episodes_per_second) == (0, 0)


def test_unknown_counts_are_refused():
    with pytest.raises(DataError, match=r"unknown count 'sample' of a stream\. Did you mean .samples.\?"):
        StreamMetrics.from_dict({"sample": 3})


def test_a_list_is_no_stream_and_difficulties_rise():
    assert not isinstance([], SampleStream | AsyncSampleStream)
    assert list(DIFFICULTIES.values()) == sorted(DIFFICULTIES.values())
