"""The gym without a server: its puzzles are real, its players are right as often as they should be, and it can be
entered anywhere.
"""

import asyncio
import json
from itertools import groupby, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, MismatchError, OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.episode import EpisodeStatus
from brim.stream.mock_gym import MockGymStream, level, right_action
from brim.stream.protocols import AsyncSampleStream, SampleStream, StreamState
from brim.stream.sample import SampleSource

BYTE = ByteTokenizer()


def read_and_learned(sample):
    learned = sample.loss_mask == 1
    return BYTE.decode(sample.input_ids[~learned]).removesuffix("\n"), BYTE.decode(sample.input_ids[learned])


def episodes(stream):
    return [list(samples) for _, samples in groupby(stream, key=lambda sample: sample.episode_id)]


async def collected(stream):
    return [sample async for sample in stream]


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 99), st.floats(0, 1), st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted))
def test_every_episode_is_a_puzzle_played_as_its_samples_say(steps, seed, rate, ends):
    stream = MockGymStream(
        "byte", num_episodes=6, steps_per_episode=steps, seed=seed, success_rate=rate, difficulty_range=tuple(ends)
    )
    played = episodes(stream)
    assert len(played) == 6
    for samples in played:
        success = samples[0].success
        turns = [read_and_learned(sample) for sample in samples]
        wrong = [action != right_action(prompt) for prompt, action in turns]
        assert sum(wrong) == (0 if success else 1)
        assert [sample.step_index for sample in samples] == list(range(steps))
        assert [sample.reward for sample in samples] == [0.0] * (steps - 1) + [float(success)]
        assert {sample.episode_status for sample in samples} == {
            EpisodeStatus.SUCCESS if success else EpisodeStatus.FAILURE
        }
        assert {(sample.total_steps, sample.source, sample.dataset_id) for sample in samples} == {
            (steps, SampleSource.GYM, "mock")
        }
        assert ends[0] <= samples[0].difficulty <= ends[1]
        assert len({sample.difficulty for sample in samples}) == 1
        for (before, action), (after, _) in pairwise(turns):
            assert numbers(after, "Placed") == [*numbers(before, "Placed"), int(action.split()[1])]
            assert set(numbers(before, "Left")) - set(numbers(after, "Left")) == {int(action.split()[1])}
    assert len({sample.sample_id for samples in played for sample in samples}) == 6 * steps


def numbers(prompt, what):
    line = next(line for line in prompt.splitlines() if line.startswith(what))
    return [] if line.endswith("none") else [int(word) for word in line.split()[1:]]


def test_a_prompt_is_read_and_the_action_with_its_end_is_learned():
    sample = next(MockGymStream("byte"))
    prompt, action = read_and_learned(sample)
    assert prompt.startswith("Sort the numbers, the smallest first.\nPlaced: none\nLeft: ")
    assert action.startswith("place ")
    assert sample.input_ids[-1] == BYTE.eos_id
    assert sample.loss_mask[-1] == 1
    with pytest.raises(DataError, match="not a position of the sorting puzzle: 'hello'"):
        right_action("hello")


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_the_success_rate_is_about_the_one_asked_for_and_lower_where_it_is_hard(rate):
    stream = MockGymStream("byte", num_episodes=1200, steps_per_episode=1, success_rate=rate)
    for _ in stream:
        pass
    metrics = stream.metrics
    assert metrics.num_episodes == metrics.samples == 1200
    assert metrics.success_rate == pytest.approx(rate, abs=0.03)
    by_level = {name: metrics.success_by_difficulty[name] for name in ("easy", "medium", "hard")}
    assert sum(counted.of for counted in by_level.values()) == 1200
    ratios = [counted.ratio for counted in by_level.values()]
    if 0 < rate < 1:
        assert ratios[0] > ratios[1] + 0.05 > ratios[2] + 0.1
    else:
        assert ratios == [rate] * 3


def test_failures_go_wrong_at_any_step():
    played = episodes(MockGymStream("byte", num_episodes=40, steps_per_episode=4, success_rate=0))
    wrong = {
        step
        for samples in played
        for step, (prompt, action) in enumerate(map(read_and_learned, samples))
        if action != right_action(prompt)
    }
    assert wrong == {0, 1, 2, 3}


def test_harder_puzzles_have_larger_numbers():
    def largest(difficulty):
        stream = MockGymStream("byte", num_episodes=40, steps_per_episode=1, difficulty_range=(difficulty, difficulty))
        return max(number for sample in stream for number in numbers(read_and_learned(sample)[0], "Left"))

    assert largest(0.0) < 10 < largest(0.5) < 100 < largest(1.0) < 1000


def test_levels_are_the_nearest_words():
    assert [level(d) for d in (0.0, 0.35, 0.45, 0.59, 0.61, 1.0)] == [
        "easy",
        "easy",
        "medium",
        "medium",
        "hard",
        "hard",
    ]


def test_resumed_at_any_sample_it_goes_on_as_if_nothing_had_been():
    options = {"num_episodes": 4, "steps_per_episode": 3, "seed": 5}
    whole = MockGymStream("byte", **options)
    expected = list(whole)
    for done in range(len(expected) + 1):
        one, other = MockGymStream("byte", **options), MockGymStream("byte", **options)
        taken = list(islice(one, done))
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        rest = asyncio.run(collected(other)) if done % 2 else list(other)
        assert taken + rest == expected
        assert other.metrics == whole.metrics


def test_reset_gives_the_same_again_and_another_seed_something_else():
    stream = MockGymStream("byte", num_episodes=5)
    fresh, first = stream.state_dict(), list(stream)
    assert (stream.state, list(stream)) == (StreamState.EXHAUSTED, [])
    stream.reset()
    assert stream.state_dict() == fresh
    assert asyncio.run(collected(stream)) == first
    assert [s.input_ids.tolist() for s in MockGymStream("byte", num_episodes=5, seed=43)] != [
        s.input_ids.tolist() for s in first
    ]
    assert list(islice(MockGymStream("byte", num_episodes=9), len(first))) == first


def test_it_is_a_stream_in_both_manners_and_closes():
    with MockGymStream(ByteTokenizer()) as stream:
        assert isinstance(stream, SampleStream)
        assert isinstance(stream, AsyncSampleStream)
        next(stream)
    assert stream.state is StreamState.CLOSED
    for use in (lambda: next(stream), stream.reset, lambda: asyncio.run(collected(stream))):
        with pytest.raises(BrimError, match="closed"):
            use()


def test_states_and_options_that_do_not_fit_are_refused():
    stream = MockGymStream("byte", num_episodes=3)
    list(stream)
    for name, value in {
        "seed": 1,
        "steps_per_episode": 4,
        "success_rate": 0.5,
        "difficulty_range": (0.1, 1),
        "dataset_id": "x",
    }.items():
        with pytest.raises(MismatchError, match=rf"another stream: other {name} \("):
            MockGymStream("byte", **{"num_episodes": 3, name: value}).load_state_dict(stream.state_dict())
    with pytest.raises(MismatchError, match="behind 15 samples, and this stream has 10"):
        MockGymStream("byte", num_episodes=2).load_state_dict(stream.state_dict())
    for wrong in (
        {"num_episodes": 0},
        {"steps_per_episode": 0},
        {"success_rate": 1.1},
        {"difficulty_range": (0.7, 0.2)},
    ):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            MockGymStream("byte", **wrong)
