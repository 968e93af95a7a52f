"""ARC episodes as samples: tokens and back, lengths, what is trained on, the stream and its state."""

import asyncio
import json
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arc import FORMATS, config, random_actions, random_task

from brim.core.errors import DamagedError, DataError, LengthError, MismatchError, OptionError
from brim.core.options import from_dict
from brim.data.lengths import LengthCache
from brim.data.measure import build_lengths
from brim.data.tokenizer.arc import ID, WORDS
from brim.envs.arc import (
    ArcOperation,
    PointAction,
    family_tasks,
    read_episodes,
    replay,
    solution,
    write_episodes,
)
from brim.plan import BatchingConfig, BatchPlan
from brim.stream import OfflineDatasetStream, ReplayBuffer, ReplayBufferConfig
from brim.stream.arc import (
    ArcEpisodeStream,
    ArcSampleConfig,
    ArcSampler,
    decode_action,
    decode_tokens,
    write_rows,
)
from brim.stream.arc.tokens import grid_tokens
from brim.stream.window import RollingBatchPlanWindow, WindowConfig

SHAPE = (6, 7)
FEW = settings(max_examples=40, deadline=None)


def random_episode(seed, form, *, out_of_range=False, steps=12):
    """An episode of random actions, up to the first submission; its operations may also change the pair."""
    random = np.random.default_rng(seed)
    task = random_task(random, seed, SHAPE)
    actions = random_actions(random, form, steps, SHAPE)
    if not out_of_range:
        clipped = [np.clip(part, 0, 29) if part.ndim == 1 else part for part in actions[1:]]
        actions = type(actions)(np.clip(actions.operation, 0, 41), *clipped)
    end = next((at + 1 for at, one in enumerate(actions.operation) if one == ArcOperation.SUBMIT), steps)
    kind = "test" if random.random() < 0.5 else "train"
    setting = config(form, shape=SHAPE, max_episode_steps=steps)
    return replay(task, setting, type(actions)(*(part[:end] for part in actions)), kind=kind)


@cache
def family_episodes(count=6):
    setting = config("bbox", shape=(5, 5))
    return [
        replay(task, setting, solution(task, task.test[0].input), kind="test", env=number)
        for number, task in enumerate(family_tasks(count))
    ]


episodes = st.builds(random_episode, st.integers(0, 10**6), st.sampled_from(FORMATS))
options = st.one_of(
    st.builds(
        ArcSampleConfig,
        demonstrations=st.sampled_from([None, 0, 1]),
        grids=st.sampled_from(["all", "changes", "none"]),
        target=st.booleans(),
        learn_invalid=st.booleans(),
    ),
    st.builds(ArcSampleConfig, per=st.just("step"), target=st.booleans(), learn_invalid=st.booleans()),
)


def same(one, other):
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


@FEW
@given(episodes, options)
def test_tokens_are_decoded_to_the_grids_and_actions_of_the_episode(episode, chosen):
    made, _ = ArcSampler(chosen).samples(episode, 0)
    for sample in made:
        found = decode_tokens(sample.input_ids)
        first = sample.step_index or 0
        taken = slice(None) if sample.step_index is None else slice(first, first + 1)
        assert same(found.actions, [part[taken] for part in episode.actions])
        assert (found.selection_format, found.shape) == (episode.config.action.selection_format, SHAPE)
        assert found.terminated == (chosen.per == "episode" and episode.terminated)
        frames = episode.frames[first : first + len(found.views)]
        assert len(found.views) == (1 if chosen.per == "step" or chosen.grids == "none" else episode.steps + 1)
        for view, frame in zip(found.views, frames, strict=True):
            pair = (episode.task.train if frame.kind == "train" else episode.task.test)[frame.pair]
            assert view.kind == frame.kind
            assert same([view.grid], [frame.grid])
            assert same([view.target], [pair.output]) if chosen.target else view.target is None


@FEW
@given(episodes, options)
def test_lengths_are_those_of_the_tokens(episode, chosen):
    """The lengths are computed from sizes; counting the tokens is the oracle."""
    sampler = ArcSampler(chosen)
    pieces, left_out = sampler.pieces(episode, 3)
    made, same_left_out = sampler.samples(episode, 3)
    assert [(piece.id, piece.length) for piece in pieces] == [(one.sample_id, len(one.input_ids)) for one in made]
    assert left_out == same_left_out
    assert len(made) + left_out.total() == (1 if chosen.per == "episode" else episode.steps)


@FEW
@given(episodes, options)
def test_operations_and_the_selections_that_they_read_are_trained_on_and_nothing_else(episode, chosen):
    """The oracle reads the words from left to right."""
    made, _ = ArcSampler(chosen).samples(episode, 0)
    for sample in made:
        expected, step, reads, inside = [], sample.step_index or 0, False, False
        for word in (WORDS[id] for id in sample.input_ids):
            trains = inside and (chosen.learn_invalid or not episode.frames[step + 1].invalid)
            if word.startswith("op"):
                reads = ArcOperation(int(word[2:])).uses_selection
            expected.append(int(trains and (reads or word == "step" or word.startswith("op"))))
            inside = word == "act" or (inside and word != "step")
            step += word == "step"
        assert sample.loss_mask.tolist() == expected
        assert 1 in expected


@FEW
@given(episodes)
def test_an_answer_that_is_asked_for_is_not_among_the_demonstrations(episode):
    made, _ = ArcSampler().samples(episode, 0)
    worked_on = {frame.pair for frame in episode.frames[:-1] if frame.kind == "train"}
    wanted = [grid for at, pair in enumerate(episode.task.train) if at not in worked_on for grid in pair]
    for sample in made:
        assert same([grid for pair in decode_tokens(sample.input_ids).demonstrations for grid in pair], wanted)


@FEW
@given(episodes, st.data())
def test_a_wrong_token_is_refused_or_means_something_else(episode, data):
    made, _ = ArcSampler(ArcSampleConfig(grids="changes", learn_invalid=True)).samples(episode, 0)
    tokens = made[0].input_ids.tolist()
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = data.draw(st.integers(-1, len(WORDS)).filter(lambda id: id != tokens[at]))
    right = _contents(decode_tokens(tokens))
    for wrong in ([*tokens[:at], other, *tokens[at + 1 :]], tokens[:at]):
        with suppress(DataError):
            found = decode_tokens(wrong)
            # The runs of a mask may touch, so that the same cells are selected in several ways.
            assert _contents(found) != right or found.selection_format == "mask"


def _contents(transcript):
    """Everything in a transcript, as values that can be compared."""
    views = [(one.grid.tolist(), one.kind, one.begins) for one in transcript.views]
    pairs = [(one.input.tolist(), one.output.tolist()) for one in transcript.demonstrations]
    actions = [part.tolist() for part in transcript.actions]
    return transcript.selection_format, transcript.shape, transcript.terminated, views, pairs, actions


def test_changed_cells_are_never_longer_than_whole_grids():
    for seed in range(30):
        episode = random_episode(seed, "bbox")
        lengths = {}
        for name, chosen in {
            "all": ArcSampleConfig(learn_invalid=True),
            "changes": ArcSampleConfig(learn_invalid=True, grids="changes"),
            "none": ArcSampleConfig(learn_invalid=True, grids="none"),
        }.items():
            [[piece], _] = ArcSampler(chosen).pieces(episode, 0)
            lengths[name] = piece.length
        assert lengths["none"] < lengths["changes"] <= lengths["all"]


def test_a_sample_says_where_it_comes_from():
    episode = family_episodes()[0]
    [sample], _ = ArcSampler(ArcSampleConfig(policy_version=7, dataset_id="mine")).samples(episode, 5)
    assert (sample.sample_id, sample.episode_id) == (f"{episode.id}@5", f"{episode.id}@5")
    assert (sample.dataset_id, sample.policy_version, sample.success) == ("mine", 7, True)
    assert (sample.source, sample.episode_status) == ("gym", "success")
    assert sample.reward == pytest.approx(episode.reward)
    steps, _ = ArcSampler(ArcSampleConfig(per="step")).samples(episode, 5)
    assert [one.step_index for one in steps] == list(range(episode.steps))
    assert sum(one.reward for one in steps) == pytest.approx(episode.reward)


def test_everything_that_is_left_out_is_counted_by_its_reason():
    unsolved = random_episode(2, "point")
    assert not (unsolved.solved and unsolved.terminated)
    stream = ArcEpisodeStream([unsolved, *family_episodes()], ArcSampleConfig(only_solved=True))
    assert len(list(stream)) == len(family_episodes())
    assert stream.metrics.filtered == {"not solved": 1}
    mixed = [random_episode(seed, "point") for seed in range(8)]
    lengths = ArcEpisodeStream(mixed).lengths().lengths.tolist()
    limit = sorted(lengths)[4]
    short = ArcEpisodeStream(mixed, ArcSampleConfig(max_length=limit, overflow="skip"))
    assert [one.length for one in short] == [length for length in lengths if length <= limit]
    assert short.metrics.filtered["too long"] == sum(length > limit for length in lengths) > 0
    nowhere = PointAction(np.array([3, 34], np.int32), np.array([99, 0], np.int32), np.zeros(2, np.int32))
    episode = replay(unsolved.task, unsolved.config, nowhere)
    for chosen, reasons in [
        (ArcSampleConfig(), {"action out of range": 1}),
        (ArcSampleConfig(per="step"), {"invalid action": 1}),
        (ArcSampleConfig(per="step", learn_invalid=True), {"action out of range": 1}),
    ]:
        assert ArcSampler(chosen).samples(episode, 0)[1] == reasons


def test_a_sample_that_is_too_long_is_an_error_unless_it_may_be_left_out():
    stream = ArcEpisodeStream(family_episodes(), ArcSampleConfig(max_length=200))
    for attempt in (stream.lengths, lambda: list(stream)):
        with pytest.raises(LengthError, match=r"^sample '.*@0' has \d+ tokens, the limit is 200; raise max_length, "):
            attempt()
    assert stream.state == "error"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per": "game"}, "game"),
        ({"grids": "change"}, "changes"),
        ({"overflow": "truncate"}, "truncate"),
        ({"demonstrations": -1}, "demonstrations must be an integer that is not negative, got -1"),
        ({"max_length": 0}, "max_length"),
        ({"target": 1}, "target must be true or false, got 1"),
        ({"per": "step", "grids": "none"}, 'grids="none" has no effect with per="step"'),
        ({"overflow": "skip"}, 'overflow="skip" has no effect without max_length'),
        ({"only_solvd": True}, "only_solved"),
    ],
)
def test_a_wrong_option_is_one_line(values, message):
    with pytest.raises(OptionError, match=message) as caught:
        from_dict(ArcSampleConfig, values)
    assert "\n" not in str(caught.value)


def test_a_grid_that_has_no_words_is_refused():
    with pytest.raises(DataError, match=r"^a grid of 31x2 cannot be written as tokens, which allow at most 30x30$"):
        grid_tokens(np.zeros((31, 2), np.uint8))
    with pytest.raises(DataError, match=r"^a grid has the colour 10; there are 0 to 9$"):
        grid_tokens(np.full((2, 2), 10, np.uint8))


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "episodes.json"
    write_episodes(path, family_episodes())
    path.write_text(path.read_text().replace("brim.arc-episodes/1", "brim.arc-episodes/2"))
    with pytest.raises(DamagedError, match=r"is of version brim\.arc-episodes/2, this brim reads brim\.arc-episodes/1"):
        ArcEpisodeStream(path)
    with pytest.raises(DataError, match="there are no episodes"):
        ArcEpisodeStream([])
    with pytest.raises(DataError, match="takes ArcEpisode, got str"):
        ArcEpisodeStream(["episode"])


def test_tokens_that_are_no_sample_are_refused_with_the_place():
    [sample], _ = ArcSampler().samples(family_episodes()[0], 0)
    tokens = sample.input_ids.tolist()
    for wrong, message in [
        ([], "token 0 is the end, not bos"),
        (tokens[1:], "token 0 is bbox, not bos"),
        ([*tokens[:2], 500], "token 2 is the id 500, not a row"),
        (tokens[:30], "token 30 is the end, not "),
        ([*tokens, ID["pad"]], f"token {len(tokens)} is pad, not the end"),
    ]:
        with pytest.raises(DataError, match=f"^these are not the tokens of an ARC sample: {message}"):
            decode_tokens(wrong)


def test_an_action_of_a_model_is_read_back():
    step = [ID["op3"], ID["r1"], ID["c2"], ID["step"]]
    assert tuple(int(part) for part in decode_action(step, "point", SHAPE)) == (3, 1, 2)
    with pytest.raises(DataError, match="token 3 is step, not a row"):
        decode_action(step, "bbox", SHAPE)
    with pytest.raises(DataError, match="token 4 is step, not the end"):
        decode_action([*step, ID["step"]], "point", SHAPE)


@pytest.mark.parametrize("per", ["episode", "step"])
def test_a_stream_that_is_resumed_anywhere_gives_the_samples_that_were_left(per):
    chosen = ArcSampleConfig(per=per, only_solved=True)
    given_episodes = [*family_episodes(3), random_episode(2, "point"), family_episodes()[4]]

    def opened():
        return ArcEpisodeStream(given_episodes, chosen, shuffle=True, seed=3, epochs=2)

    whole = list(opened())
    assert [one.sample_id for one in whole[: len(whole) // 2]] != [one.sample_id for one in whole[len(whole) // 2 :]]
    stream = opened()
    for taken in range(len(whole) + 1):
        resumed = opened()
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert list(resumed) == whole[taken:]
        if taken == len(whole):
            break
        next(stream)
    assert list(stream) == []
    assert resumed.metrics == stream.metrics
    assert asyncio.run(_collected(opened())) == whole


async def _collected(stream):
    return [sample async for sample in stream]


def test_a_state_of_another_stream_is_refused():
    state = ArcEpisodeStream(family_episodes()).state_dict()
    for other in (
        ArcEpisodeStream(family_episodes(), ArcSampleConfig(target=True)),
        ArcEpisodeStream(family_episodes()[1:]),
        ArcEpisodeStream(family_episodes(), shuffle=True),
    ):
        with pytest.raises(MismatchError, match=r"^this state belongs to another stream: other "):
            other.load_state_dict(state)


def test_a_file_and_a_list_of_the_same_episodes_are_one_stream(tmp_path):
    path = tmp_path / "episodes.json"
    write_episodes(path, family_episodes())
    from_list, from_file = ArcEpisodeStream(family_episodes()), ArcEpisodeStream(path)
    next(from_list)
    from_file.load_state_dict(from_list.state_dict())
    assert list(from_file) == list(from_list)
    assert list(ArcEpisodeStream(read_episodes(path))) == list(ArcEpisodeStream(path))


def test_rows_hold_the_same_samples_and_lengths(tmp_path):
    stream = ArcEpisodeStream(family_episodes(), ArcSampleConfig(per="step"))
    made = list(stream)
    assert write_rows(tmp_path / "train.jsonl", made) == len(made)
    read = list(OfflineDatasetStream(tmp_path / "train.jsonl", "arc"))
    plain = [{**one.to_dict(), "source": "", "dataset_id": "", "timestamp": 0} for one in made]
    assert [{**one.to_dict(), "source": "", "dataset_id": "", "timestamp": 0} for one in read] == plain
    build_lengths(tmp_path / "train.jsonl", tmp_path / "lengths.brim", "arc")
    measured, computed = LengthCache.load(tmp_path / "lengths.brim"), stream.lengths()
    assert list(measured.ids) == list(computed.ids) == [one.sample_id for one in made]
    assert measured.lengths.tolist() == computed.lengths.tolist()
    with pytest.raises(DataError, match="there are no samples to write"):
        write_rows(tmp_path / "nothing.jsonl", [])
    assert not (tmp_path / "nothing.jsonl").exists()


def test_a_plan_of_the_lengths_a_replay_buffer_and_a_rolling_window_take_every_sample():
    stream = ArcEpisodeStream(family_episodes())
    plan = BatchPlan.build(stream.lengths(), BatchingConfig(token_budget=1000))
    made = {one.sample_id: one for one in stream}
    batches = [[made[id] for id in batch.samples] for batch in plan.iter_epoch(0)]
    assert sorted(one.sample_id for batch in batches for one in batch) == sorted(made)
    assert all(len(batch) * max(one.length for one in batch) <= 1000 for batch in batches)
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=100))
    buffer.add_batch(list(made.values()))
    assert len(buffer) == len(made)
    assert {one.sample_id for one in buffer.sample(len(made)).samples} == set(made)
    rolling = RollingBatchPlanWindow(buffer, WindowConfig(min_samples=1, batching=BatchingConfig(token_budget=1000)))
    rolling.build_next_window()
    drawn = {}
    for batch in rolling.batches():
        for id, tokens, mask, length in zip(batch.ids, batch.input_ids, batch.loss_mask, batch.lengths, strict=True):
            drawn[id] = (tokens[:length].tolist(), mask[:length].tolist())
    assert drawn == {id: (one.input_ids.tolist(), one.loss_mask.tolist()) for id, one in made.items()}


def test_a_stream_without_samples_says_so_before_a_plan_is_made():
    stream = ArcEpisodeStream([random_episode(2, "point")], ArcSampleConfig(only_solved=True))
    with pytest.raises(DataError, match=r"^none of the 1 episodes becomes a sample under these options$"):
        stream.lengths()
    assert list(stream) == []
