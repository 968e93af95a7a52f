"""Offline streams against the two-line definition, resumed at every sample, in both manners of iterating."""

import asyncio
import json
import threading
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, MismatchError, OptionError
from brim.data.rows import jsonl
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.episode import EpisodeStatus
from brim.stream.offline import chunks
from brim.stream.offline.shuffle import ShuffledRows
from brim.stream.offline.stream import AsyncOfflineDatasetStream, OfflineDatasetStream
from brim.stream.protocols import AsyncSampleStream, SampleStream, StreamState
from brim.stream.sample import SampleSource, StreamSample

BYTE = ByteTokenizer()


@pytest.fixture(scope="module", autouse=True)
def _many_small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "BLOCK_BYTES", 150)
        patch.setattr(chunks, "CHUNK_ROWS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("offline")


def write(path, rows, blank=()):
    lines = [orjson.dumps(row) for row in rows]
    path.write_bytes(b"".join(line + b"\n" + b"\n" * (number in blank) for number, line in enumerate(lines)))
    return path


def drain(stream, awaited):
    """All that is left, by `for` or by `async for`."""
    if not awaited:
        return list(stream)

    async def collect():
        return [sample async for sample in stream]

    return asyncio.run(collect())


def take(stream, n, awaited):
    if not awaited:
        return list(islice(stream, n))

    async def collect():
        return [await anext(stream) for _ in range(n)]

    return asyncio.run(collect())


texts = st.text(alphabet="abc é", min_size=1, max_size=30)
shapes = {
    "text": st.fixed_dictionaries({"text": texts}),
    "prompt": st.fixed_dictionaries({"prompt": texts, "response": texts}),
    "messages": st.builds(
        lambda q, a: {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}, texts, texts
    ),
    "tokens": st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1)), min_size=1, max_size=12).map(
        lambda pairs: {"input_ids": [id for id, _ in pairs], "loss_mask": [bit for _, bit in pairs]}
    ),
}
origins = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.floats(-3, 3),
        "difficulty": st.sampled_from(["easy", "hard", 0.25, None]),
        "success": st.booleans(),
        "episode_id": st.sampled_from(["e1", "e2"]),
        "step_index": st.integers(0, 5),
        "priority": st.floats(0, 9),
    },
)


@st.composite
def row_lists(draw):
    shape = shapes[draw(st.sampled_from(sorted(shapes)))]
    rows = draw(st.lists(st.tuples(shape, origins, st.booleans()), min_size=1, max_size=25))
    named = draw(st.booleans())
    ids = [{"id": f"r{number}"} if named else {} for number in range(len(rows))]
    return [
        {**id, **row, **({"meta": origin} if nested else origin)}
        for id, (row, origin, nested) in zip(ids, rows, strict=True)
    ]


options = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "buffer_size": st.sampled_from([1, 4, 7, 40]),
        "seed": st.integers(0, 3),
        "epochs": st.integers(1, 3),
        "min_length": st.sampled_from([1, 6]),
        "max_length": st.sampled_from([None, 20]),
        "filter": st.sampled_from([None, lambda sample: int(sample.input_ids.sum()) % 3 != 0]),
        "map": st.sampled_from([None, lambda sample: sample.with_replay()]),
    }
)


@settings(max_examples=40)
@given(row_lists(), options, st.sets(st.integers(0, 24)))
def test_async_for_gives_what_for_gives(folder, rows, options, blank):
    path = write(folder / "both.jsonl", rows, blank)
    plain, awaited = OfflineDatasetStream(path, "byte", **options), AsyncOfflineDatasetStream(path, "byte", **options)
    assert drain(plain, awaited=False) == drain(awaited, awaited=True)
    assert plain.metrics == awaited.metrics
    assert plain.state_dict() == awaited.state_dict()
    assert plain.state is awaited.state is StreamState.EXHAUSTED


@settings(max_examples=40)
@given(row_lists(), st.sets(st.integers(0, 24)))
def test_a_stream_is_its_rows_through_the_tokenizer_one_after_the_other(folder, rows, blank):
    samples = list(OfflineDatasetStream(write(folder / "plain.jsonl", rows, blank), "byte"))
    expected = [encode_rows([row], BYTE, RowFormat(), str)[0] for row in rows]
    assert [(s.input_ids.tolist(), s.loss_mask.tolist()) for s in samples] == [
        (ids.tolist(), mask.tolist()) for ids, mask in expected
    ]
    assert [s.sample_id for s in samples] == [row.get("id", number) for number, row in enumerate(rows)]
    for sample, row in zip(samples, rows, strict=True):
        said = row.get("meta", row)
        assert sample.reward == said.get("reward")
        assert sample.success == said.get("success")
        assert sample.difficulty == {"easy": 0.3, "hard": 0.7}.get(said.get("difficulty"), said.get("difficulty"))
        status = {True: EpisodeStatus.SUCCESS, False: EpisodeStatus.FAILURE, None: None}[said.get("success")]
        assert (sample.episode_id, sample.episode_status, sample.step_index) == (
            said.get("episode_id"),
            status,
            said.get("step_index"),
        )
        assert (sample.priority, sample.dataset_id, sample.source) == (
            said.get("priority", 1.0),
            "plain",
            SampleSource.OFFLINE,
        )


@pytest.mark.slow
@settings(max_examples=12)
@given(row_lists(), options, st.booleans(), st.booleans())
def test_resumed_at_any_sample_a_stream_goes_on_as_if_nothing_had_been(folder, rows, options, first, second):
    """By `for` or `async for`, before and after; through real JSON; with the counts of the whole at the end."""
    path = write(folder / "resume.jsonl", rows)
    whole = OfflineDatasetStream(path, "byte", **options)
    expected = list(whole)
    for done in range(len(expected) + 1):
        one, other = (OfflineDatasetStream(path, "byte", **options) for _ in range(2))
        taken = take(one, done, first)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert taken + drain(other, second) == expected
        assert other.metrics == whole.metrics


@settings(max_examples=40)
@given(row_lists(), st.integers(1, 40), st.integers(0, 9), st.integers(1, 3))
def test_shuffled_every_row_comes_once_in_each_epoch(folder, rows, buffer_size, seed, epochs):
    path = write(folder / "once.jsonl", [{**row, "id": number} for number, row in enumerate(rows)])
    stream = OfflineDatasetStream(path, "byte", shuffle=True, buffer_size=buffer_size, seed=seed, epochs=epochs)
    ids = [sample.sample_id for sample in stream]
    assert [sorted(ids[epoch * len(rows) :][: len(rows)]) for epoch in range(epochs)] == [
        list(range(len(rows)))
    ] * epochs


@given(st.integers(1, 400), st.integers(1, 200), st.integers(0, 2), st.integers(0, 2))
def test_the_windows_of_a_shuffle_hold_every_row_once(rows, window, seed, epoch):
    order = ShuffledRows(rows, window=window, seed=seed, epoch=epoch)
    found = [order.in_window(number) for number in range(order.windows)]
    assert sorted(np.concatenate(found).tolist()) == list(range(rows))
    assert [len(part) for part in found[:-1]] == [window] * (order.windows - 1)


def test_a_shuffle_brings_rows_together_that_lie_far_apart_and_differs_by_seed_and_epoch():
    orders = {
        (seed, epoch): np.concatenate(
            [ShuffledRows(5000, window=500, seed=seed, epoch=epoch).in_window(k) for k in range(10)]
        )
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len({order.tobytes() for order in orders.values()}) == 4
    for order in orders.values():
        first = order[:500]
        assert first.max() - first.min() > 2500
        runs = np.flatnonzero(np.diff(np.sort(first)) > 1)
        assert len(runs) <= 17  # a window is read in a few stretches
        assert (np.diff(order) == 1).mean() < 0.02
    one_run = {ShuffledRows(100, window=1600, seed=1, epoch=epoch).in_window(0).tobytes() for epoch in (0, 1, 2)}
    assert len(one_run) == 3


def numbered(folder, n, name="numbered.jsonl"):
    return write(folder / name, [{"id": k, "text": f"row {k}"} for k in range(n)])


@pytest.mark.parametrize("awaited", [False, True])
def test_a_shuffled_stream_reads_a_window_at_a_time_and_no_row_twice(folder, monkeypatch, awaited):
    read, given = [], []
    real = jsonl.JsonlSource.row
    stream = OfflineDatasetStream(numbered(folder, 60), "byte", shuffle=True, buffer_size=20)

    def spied(source, number):
        assert stream._reader._window is None  # the one before is gone already
        read.append(number)
        return real(source, number)

    monkeypatch.setattr(jsonl.JsonlSource, "row", spied)
    for _ in range(60):
        given += [sample.sample_id for sample in take(stream, 1, awaited)]
        windows = -(-len(given) // 20)
        assert len(read) <= 20 * min(windows + awaited, 3)  # one window ahead at most, and only if somebody waits
        assert set(given) <= set(read)
    assert sorted(read) == sorted(given) == list(range(60))


def test_in_order_nothing_is_indexed_and_going_on_reads_no_block_before_its_own(folder, monkeypatch):
    path = numbered(folder, 50)
    stream = OfflineDatasetStream(path, "byte")
    take(stream, 31, awaited=False)
    state = stream.state_dict()
    read = []
    real = jsonl.JsonlSource.read
    other = OfflineDatasetStream(path, "byte")
    other.load_state_dict(state)
    monkeypatch.setattr(jsonl.JsonlSource, "read", lambda self, block: read.append(block) or real(self, block))
    assert [sample.sample_id for sample in other] == list(range(31, 50))
    assert read[0].start == state["position"]["block"] > 500
    assert "_starts" not in other._reader.source.__dict__


def test_reset_gives_the_same_samples_again_and_counts_from_zero(folder):
    stream = OfflineDatasetStream(numbered(folder, 30), "byte", shuffle=True, buffer_size=8, epochs=2)
    fresh, first = stream.state_dict(), list(stream)
    assert list(stream) == []  # exhausted is exhausted
    stream.reset()
    assert (stream.state, stream.state_dict()) == (StreamState.IDLE, fresh)
    assert list(stream) == first
    asyncio.run(stream.areset())
    assert take(stream, 3, awaited=True) == first[:3]


def test_after_a_break_both_loops_go_on_where_the_other_stopped(folder):
    stream = OfflineDatasetStream(numbered(folder, 30), "byte", shuffle=True, buffer_size=8)
    expected = list(OfflineDatasetStream(stream.path, "byte", shuffle=True, buffer_size=8))

    async def some(n):
        found = []
        async for sample in stream:
            found.append(sample)
            if len(found) == n:
                return found

    found = asyncio.run(some(5))
    for sample in stream:
        found.append(sample)
        if len(found) == 14:
            break
    assert found + asyncio.run(some(16)) == expected


def test_peeking_changes_nothing(folder):
    stream = OfflineDatasetStream(
        numbered(folder, 20), "byte", shuffle=True, buffer_size=6, filter=lambda sample: sample.sample_id % 2
    )
    expected = list(stream)
    stream.reset()
    for done in range(10):
        before = stream.state_dict()
        assert stream.peek(4) == expected[done : done + 4]
        assert stream.state_dict() == before
        assert next(stream) == expected[done]
    assert stream.peek() == []


def test_samples_are_counted_and_measured_without_moving(folder):
    rows = [{"id": k, "text": "x" * k} for k in range(1, 21)]
    stream = OfflineDatasetStream(
        write(folder / "counted.jsonl", rows), "byte", min_length=4, max_length=15, epochs=None, shuffle=True
    )
    before = stream.state_dict()
    assert stream.count_samples() == 12  # one token more for the end
    histogram = stream.get_length_distribution(num_bins=3)
    assert (histogram.shortest, histogram.longest, [bin.count for bin in histogram.bins]) == (4, 15, [4, 4, 4])
    assert stream.state_dict() == before


def test_what_is_left_out_is_counted_by_reason_after_it_was_mapped(folder):
    rows = [{"id": k, "input_ids": [7] * k, "reward": k, "difficulty": k / 20} for k in range(1, 21)]

    def doubled(s):
        return replace(s, input_ids=[*s.input_ids, *s.input_ids], loss_mask=[*s.loss_mask, *s.loss_mask])

    stream = OfflineDatasetStream(
        write(folder / "reasons.jsonl", rows), min_length=5, max_length=30, map=doubled, filter=lambda s: s.reward != 10
    )
    samples = list(stream)
    assert [sample.length for sample in samples] == [2 * k for k in range(3, 16) if k != 10]
    assert stream.metrics.filtered == {"too short": 2, "filter": 1, "too long": 5}
    assert stream.metrics.filter_rate == 8 / 20
    assert stream.metrics.samples == len(samples) == stream.count_samples()
    assert stream.metrics.tokens == sum(sample.length for sample in samples)
    assert stream.metrics.mean_reward == sum(sample.reward for sample in samples) / 12


def test_for_ever_means_one_epoch_after_the_other_but_not_an_empty_one(folder):
    stream = OfflineDatasetStream(numbered(folder, 7), "byte", epochs=None)
    assert [sample.sample_id for sample in islice(stream, 30)] == [k % 7 for k in range(30)]
    assert stream.epoch == 4
    empty = OfflineDatasetStream(stream.path, "byte", epochs=None, max_length=2)
    with pytest.raises(DataError, match=r"no sample of .*numbered.jsonl is left in epoch 0 \(7 by 'too long'\)"):
        next(empty)
    passing = [True] * 5
    later = OfflineDatasetStream(stream.path, "byte", epochs=None, filter=lambda sample: passing and passing.pop())
    assert len(list(islice(later, 5))) == 5
    with pytest.raises(DataError, match=r"is left in epoch 1 \(9 by 'filter'\)"):
        next(later)


def test_a_longer_stream_takes_the_state_of_a_shorter_one(folder):
    path = numbered(folder, 9)
    once, twice = (OfflineDatasetStream(path, "byte", shuffle=True, epochs=epochs) for epochs in (1, 2))
    first, both = list(once), list(twice)
    longer = OfflineDatasetStream(path, "byte", shuffle=True, epochs=2)
    longer.load_state_dict(once.state_dict())
    assert first + list(longer) == both
    with pytest.raises(MismatchError, match="in epoch 1, and epochs=1 ends before"):
        once.load_state_dict(twice.state_dict())


def test_rows_are_read_alike_from_jsonl_parquet_and_data_sets(folder):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "id": f"r{k}",
            "prompt": f"p{k}",
            "response": "x" * k,
            "meta": {"success": k % 3 == 0 if k % 4 else None, "reward": k / 2},
        }
        for k in range(25)
    ]
    write(folder / "data.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), folder / "data.parquet", row_group_size=7)
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(folder / "data")
    for how in ({}, {"shuffle": True, "buffer_size": 10, "epochs": 2}):
        streams = [
            OfflineDatasetStream(folder / name, "byte", **how) for name in ("data.jsonl", "data.parquet", "data")
        ]
        lists = [drain(stream, awaited) for stream, awaited in zip(streams, (False, True, True), strict=True)]
        assert lists[0] == lists[1] == lists[2]
        assert [stream.metrics for stream in streams[1:]] == [streams[0].metrics] * 2
    for name in ("data.parquet", "data"):
        one, other = (OfflineDatasetStream(folder / name, "byte", shuffle=True, buffer_size=10) for _ in range(2))
        taken = take(one, 13, awaited=False)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert taken + list(other) == lists[0][:25]


def test_what_a_sample_says_of_itself_can_be_written_and_read_again(folder):
    original = StreamSample(
        sample_id="s",
        input_ids=[3, 4, 5],
        loss_mask=[0, 1, 1],
        segment_ids=[1, 1, 2],
        dataset_id="back",
        episode_id="e",
        episode_status=EpisodeStatus.TIMEOUT,
        step_index=2,
        total_steps=3,
        reward=0.5,
        difficulty=0.25,
        success=False,
        policy_version=7,
        priority=2.0,
    )
    assert list(OfflineDatasetStream(write(folder / "back.jsonl", [original.to_dict()]))) == [original]


def test_ids_may_stand_in_meta_and_a_meta_of_somebody_else_is_left_alone(folder):
    inside = write(folder / "inside.jsonl", [{"text": "a", "meta": {"sample_id": f"m{k}"}} for k in range(3)])
    assert [sample.sample_id for sample in OfflineDatasetStream(inside, "byte")] == ["m0", "m1", "m2"]
    foreign = write(folder / "foreign.jsonl", [{"text": "a", "meta": "from the web"}, {"text": "b", "meta": None}])
    assert [sample.sample_id for sample in OfflineDatasetStream(foreign, "byte")] == [0, 1]


def test_difficulties_in_other_words_are_given_as_numbers(folder):
    path = write(
        folder / "words.jsonl",
        [{"text": "a", "difficulty": "interview"}, {"text": "b", "difficulty": "x", "difficulty_score": 1}],
    )
    stream = OfflineDatasetStream(path, "byte", difficulties={"interview": 0.6, "x": 0.2})
    assert [sample.difficulty for sample in stream] == [0.6, 1.0]


BAD = {
    "not JSON": (b'{"text": "a"', "not JSON"),
    "not a row": (b"[1]", "the row is a list"),
    "no text": (b'{"prompt": "a"}', '"text" is missing'),
    "empty": (b'{"text": null}', '"text" is null'),
    "an id": (b'{"text": "a", "id": 3}', 'has an "id" but the first row has none'),
    "an id in meta": (b'{"text": "a", "meta": {"id": 3}}', 'in "meta": this row has an "id"'),
    "reward": (b'{"text": "a", "reward": "high"}', "reward is 'high'; it must be a finite number"),
    "difficulty": (
        b'{"text": "a", "difficulty": "hrad"}',
        '"difficulty" is \'hrad\'; in words it is one of trivial, .*mean "hard"',
    ),
    "other words": (b'{"text": "a", "difficulty": "L5"}', "Pass other words with their numbers as difficulties="),
    "out of range": (
        b'{"text": "a", "meta": {"difficulty_score": 1.5}}',
        "difficulty is 1.5; it must be a number between 0 and 1",
    ),
    "success": (b'{"text": "a", "success": "yes"}', "success is 'yes'; it must be true or false"),
    "two rewards": (
        b'{"text": "a", "reward": 1, "meta": {"reward": 2}}',
        '"reward" is 1 in the row and 2 in its "meta"',
    ),
    "two ends": (
        b'{"text": "a", "success": true, "episode_status": "failure"}',
        '"success" is true, but "episode_status" is \'failure\'',
    ),
    "status": (b'{"text": "a", "episode_status": "won"}', "episode_status must be one of"),
    "step": (b'{"text": "a", "step_index": -1}', "step_index is -1"),
    "priority": (b'{"text": "a", "priority": -1}', "priority is -1; it must be finite and not negative"),
}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_an_error_with_its_line_and_the_stream_stays_where_it_was(tmp_path, what, shuffle, awaited):
    line, message = BAD[what]
    good = b'{"text": "a good row, long enough for blocks to end between such rows"}\n'
    path = tmp_path / "bad.jsonl"
    path.write_bytes(good * 4 + b"\n" + line + b"\n" + good)
    stream = OfflineDatasetStream(path, "byte", shuffle=shuffle, buffer_size=2)
    given = 0
    with pytest.raises(DataError, match=rf"bad\.jsonl:6: .*{message}"):
        while True:
            take(stream, 1, awaited)
            given += 1
    assert stream.state is StreamState.ERROR
    assert stream.metrics.samples == given < 6
    with pytest.raises(DataError, match=r"bad\.jsonl:6"):
        take(stream, 1, awaited)
    assert stream.metrics.samples == given


def test_the_line_of_a_bad_row_is_right_in_the_middle_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 10_000)
    path = write(tmp_path / "late.jsonl", [{"text": "a"}] * 3 + [{"text": 3}])
    stream = OfflineDatasetStream(path, "byte")
    with pytest.raises(DataError, match=r'late.jsonl:4: "text" is an integer'):
        stream._reader.read(chunks.Place(row=2))
    with pytest.raises(MismatchError, match=r"row 9 is not in the block of .* that begins with row 0"):
        stream._reader.read(chunks.Place(row=9))


class Flaky(ByteTokenizer):
    """Fails the third time it is asked."""

    asked = 0

    def encode_batch(self, texts):
        self.asked += 1
        if self.asked == 3:
            raise OSError("the disk is tired")
        return super().encode_batch(texts)


@pytest.mark.parametrize("awaited", [False, True])
def test_what_failed_is_read_again_when_it_is_asked_for_again(folder, awaited):
    expected = list(OfflineDatasetStream(numbered(folder, 40), "byte"))
    stream = OfflineDatasetStream(folder / "numbered.jsonl", Flaky())
    found = []
    with pytest.raises(OSError, match="tired"):
        while True:
            found += take(stream, 1, awaited)
    assert found + drain(stream, awaited) == expected


def test_tokens_and_their_masks_are_checked_and_need_no_tokenizer(tmp_path):
    path = write(
        tmp_path / "tokens.jsonl", [{"input_ids": [1, 2], "loss_mask": [0, 1]}, {"input_ids": [1, 2], "loss_mask": [1]}]
    )
    with pytest.raises(DataError, match=r'tokens.jsonl:2: "loss_mask" has 1 entries for 2 tokens'):
        list(OfflineDatasetStream(path))
    path = write(tmp_path / "segments.jsonl", [{"input_ids": [1, 2], "segment_ids": [1]}])
    with pytest.raises(DataError, match=r"segments.jsonl:1: sample 0: segment_ids has 1 entries"):
        list(OfflineDatasetStream(path))


def test_texts_without_a_tokenizer_are_refused_and_so_are_options_that_cannot_work(folder):
    path = numbered(folder, 3)
    with pytest.raises(
        OptionError, match=r'numbered\.jsonl hold text, not input_ids; pass a tokenizer, such as "byte"'
    ):
        OfflineDatasetStream(path)
    for wrong in ({"min_length": 0}, {"buffer_size": 0}, {"epochs": 0}, {"min_length": 9, "max_length": 8}):
        with pytest.raises(OptionError, match=next(reversed(wrong))):
            OfflineDatasetStream(path, "byte", **wrong)
    with pytest.raises(DataError, match="does not exist"):
        OfflineDatasetStream(folder / "nothing.jsonl", "byte")
    with pytest.raises(OptionError, match="map returned a int for sample 0"):
        next(OfflineDatasetStream(path, "byte", map=lambda sample: 3))


def test_a_mistake_in_a_filter_is_seen_and_costs_no_sample(folder):
    def picky(sample):
        if sample.sample_id == 4 and not calm:
            raise RuntimeError("who knows")
        return True

    calm = []
    stream = OfflineDatasetStream(numbered(folder, 8), "byte", filter=picky)
    assert [sample.sample_id for sample in islice(stream, 4)] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="who knows"):
        next(stream)
    calm.append(True)
    assert [sample.sample_id for sample in stream] == [4, 5, 6, 7]


def test_a_state_of_another_stream_is_refused_with_the_difference(folder):
    base = {"shuffle": True, "seed": 1, "buffer_size": 4}
    path = numbered(folder, 12)
    stream = OfflineDatasetStream(path, "byte", **base)
    take(stream, 5, awaited=False)
    state = stream.state_dict()
    others = {
        "data": OfflineDatasetStream(numbered(folder, 13, "more.jsonl"), "byte", **base, dataset_id="numbered"),
        "seed": OfflineDatasetStream(path, "byte", **{**base, "seed": 2}),
        "buffer_size": OfflineDatasetStream(path, "byte", **{**base, "buffer_size": 5}),
        "shuffle": OfflineDatasetStream(path, "byte"),
        "max_length": OfflineDatasetStream(path, "byte", **base, max_length=9),
        "filter": OfflineDatasetStream(path, "byte", **base, filter=lambda sample: True),
        "dataset_id": OfflineDatasetStream(path, "byte", **base, dataset_id="x"),
        "format and tokenizer": OfflineDatasetStream(
            path, "byte", **base, format=RowFormat(text_field="text", id_field="text")
        ),
    }
    for name, other in others.items():
        before = other.state_dict()
        with pytest.raises(MismatchError, match=rf"another stream: .*other {name} \("):
            other.load_state_dict(state)
        assert other.state_dict() == before
    for wrong, message in (
        ({}, "not the state of a stream"),
        ({**state, "format": "brim.stream/9"}, "not the state of a stream"),
        ({**state, "kind": "mock gym"}, "a stream of another kind: 'mock gym'"),
        ({**state, "position": {"epoch": 0}}, "not a position of a stream"),
        ({**state, "position": {**state["position"], "row": -1}}, "not a position of a stream"),
    ):
        with pytest.raises(MismatchError, match=message):
            stream.load_state_dict(wrong)
    stream.load_state_dict({**state, "position": {**state["position"], "row": 99}})
    with pytest.raises(MismatchError, match="there is no row 99"):
        next(stream)


def test_seed_and_buffer_do_not_matter_to_a_stream_in_order(folder):
    path = numbered(folder, 6)
    one, other = OfflineDatasetStream(path, "byte", seed=1), OfflineDatasetStream(path, "byte", seed=2, buffer_size=3)
    take(one, 2, awaited=False)
    other.load_state_dict(one.state_dict())
    assert [sample.sample_id for sample in other] == [2, 3, 4, 5]


def test_it_is_a_stream_in_both_manners_and_closes(folder):
    path = numbered(folder, 6)
    with OfflineDatasetStream(path, "byte") as stream:
        assert isinstance(stream, SampleStream)
        assert isinstance(stream, AsyncSampleStream)
        assert stream.state is StreamState.IDLE
        take(stream, 2, awaited=False)
        assert stream.state is StreamState.STREAMING
    assert stream.state is StreamState.CLOSED
    for use in (
        lambda: next(stream),
        stream.reset,
        stream.peek,
        stream.count_samples,
        lambda: asyncio.run(anext(stream)),
    ):
        with pytest.raises(BrimError, match="closed"):
            use()
    other = OfflineDatasetStream(path, "byte")
    other.load_state_dict(stream.state_dict())
    assert len(list(other)) == 4


class Gate(ByteTokenizer):
    """Tokenises when it is let; says when it was asked."""

    def __init__(self):
        self.asked, self.open = threading.Event(), threading.Event()

    def encode_batch(self, texts):
        self.asked.set()
        assert self.open.wait(30)
        return super().encode_batch(texts)


@pytest.fixture
def threads():
    """Those that a test has started and that still run."""
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


def test_the_loop_runs_on_while_a_block_is_tokenised(folder, threads):
    """If the loop were stopped by the reading, nobody would open the gate."""
    gate = Gate()
    path = numbered(folder, 8)

    async def main():
        async with AsyncOfflineDatasetStream(path, gate) as stream:
            first = asyncio.ensure_future(anext(stream))
            while not gate.asked.is_set():
                await asyncio.sleep(0.001)
            gate.open.set()
            return [await first] + [sample async for sample in stream]

    assert asyncio.run(main()) == list(OfflineDatasetStream(path, "byte"))
    assert threads() == set()


def test_cancelled_while_waiting_a_stream_loses_nothing_and_leaves_no_task(folder, threads):
    gate = Gate()
    stream = AsyncOfflineDatasetStream(numbered(folder, 8), gate)

    async def interrupted():
        waiting = [asyncio.ensure_future(anext(stream)) for _ in range(3)]
        while not gate.asked.is_set():
            await asyncio.sleep(0.001)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait(waiting[:2])
        assert asyncio.all_tasks() == {asyncio.current_task(), waiting[2]}
        gate.open.set()
        return await waiting[2]

    first = asyncio.run(interrupted())
    assert [first, *drain(stream, awaited=True)] == list(OfflineDatasetStream(stream.path, "byte"))
    asyncio.run(stream.aclose())
    assert threads() == set()


def test_closed_while_a_block_is_read_nothing_is_left(folder, threads):
    gate = Gate()
    stream = AsyncOfflineDatasetStream(numbered(folder, 8), gate)

    async def main():
        waiting = asyncio.ensure_future(anext(stream))
        while not gate.asked.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(stream.aclose())
        await asyncio.sleep(0)
        gate.open.set()
        await closing
        with pytest.raises(BrimError, match="closed"):
            await waiting

    asyncio.run(main())
    assert (stream.state, threads()) == (StreamState.CLOSED, set())


def test_tasks_that_share_a_stream_get_every_sample_once(folder):
    stream = AsyncOfflineDatasetStream(numbered(folder, 40), "byte", shuffle=True, buffer_size=8)

    async def worker(found):
        async for sample in stream:
            found.append(sample.sample_id)
            await asyncio.sleep(0)

    async def main():
        found = []
        await asyncio.gather(*(worker(found) for _ in range(4)))
        return found

    assert sorted(asyncio.run(main())) == list(range(40))


def test_what_was_read_ahead_is_dropped_when_the_stream_is_moved(folder):
    stream = OfflineDatasetStream(numbered(folder, 40), "byte")
    start = stream.state_dict()
    first = take(stream, 9, awaited=True)
    stream.load_state_dict(start)
    assert take(stream, 9, awaited=True) == first
    stream.reset()
    assert take(stream, 9, awaited=False) == first


def test_a_tokenizer_may_be_any_object_of_that_kind(folder):
    chat = SimpleNamespace()
    for name in (
        "name",
        "vocab_size",
        "bos_id",
        "eos_id",
        "pad_id",
        "fingerprint",
        "has_chat_template",
        "encode_batch",
        "encode_ends",
    ):
        setattr(chat, name, getattr(BYTE, name))
    chat.adds_bos = True
    stream = OfflineDatasetStream(numbered(folder, 2), chat)
    assert [int(sample.input_ids[0]) for sample in stream] == [BYTE.bos_id] * 2


def test_a_torn_last_line_is_an_error_with_its_place_that_advises_no_option_of_a_command(folder):
    path = write(folder / "torn.jsonl", [{"text": "a"}, {"text": "b"}], blank=(0,))
    path.write_bytes(path.read_bytes() + b'{"text": "c')
    with pytest.raises(DataError, match=r"torn\.jsonl:4: the last line is torn: .* remove the line$") as error:
        OfflineDatasetStream(path, "byte")
    assert "--" not in str(error.value)
    path.write_bytes(path.read_bytes() + b'"}')
    assert [sample.length for sample in OfflineDatasetStream(path, "byte")] == [2, 2, 2]
