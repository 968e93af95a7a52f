import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DamagedError, DataError, LengthError, MismatchError, OptionError
from brim.plan.config import BatchingConfig, PackingConfig
from brim.plan.plan import BatchPlan
from brim.stream.curriculum import Curriculum
from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.replay.snapshot import BufferSnapshot
from brim.stream.sample import StreamSample
from brim.stream.window import RollingBatchPlanWindow, WindowConfig


def made(number, length=None, **more):
    length = 1 + number % 13 if length is None else length
    return StreamSample(sample_id=f"s{number}", input_ids=[number % 97] * length, loss_mask=[1] * length, **more)


def filled(count, first=0, buffer=None, **more):
    buffer = ReplayBuffer(max_size=5000) if buffer is None else buffer
    for number in range(first, first + count):
        buffer.add(made(number, **more))
    return buffer


def rolling(buffer, **options):
    batching = options.pop("batching", BatchingConfig(token_budget=64))
    return RollingBatchPlanWindow(buffer, WindowConfig(**{"min_samples": 1, "batching": batching, **options}))


def ids(window):
    return set(window.plan.table.ids)


sizes = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@settings(max_examples=60)
@given(sizes, st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.integers(1, 12), st.integers(0, 3))
def test_windows_are_as_large_as_they_may_be_and_no_larger(added, overlap, microbatches, seed):
    buffer, before, number = ReplayBuffer(max_size=5000), set(), 0
    plans = rolling(buffer, overlap_fraction=overlap, window_microbatches=microbatches, seed=seed)
    for count in added:
        filled(count, number, buffer)
        number += count
        if not plans.can_build:
            assert overlap < 1
            continue
        window = plans.build_next_window()
        seen = ids(window)
        assert len(seen) == window.num_samples, "no sample comes twice"
        assert window.num_microbatches <= microbatches
        assert len(seen & before) <= overlap * len(seen) + 1e-9
        assert sorted(id for microbatch in plans.iter_current() for id in microbatch.samples) == sorted(seen)
        fresh = {f"s{row}" for row in range(number)} - before
        if len(seen) < number and window.num_microbatches < microbatches - 1:
            assert fresh <= seen, "a window that has room holds all that is new"
        before = seen


def test_a_window_with_room_holds_everything_that_is_new():
    buffer = filled(50)
    plans = rolling(buffer, overlap_fraction=0.2)
    assert len(ids(plans.build_next_window())) == 50
    assert not rolling(buffer, overlap_fraction=0.2, min_samples=51).can_build
    assert not plans.can_build, "nothing new since"
    filled(40, 50, buffer)
    second = plans.build_next_window()
    new = {f"s{number}" for number in range(50, 90)}
    assert new <= ids(second)
    assert len(ids(second) - new) == 10, "a fifth of the window was in the one before"


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 5))
@settings(max_examples=20)
def test_a_window_depends_on_the_snapshot_and_the_seed_alone(seed, extra):
    one, other = filled(80), ReplayBuffer(max_size=5000)
    other.add_batch([made(number) for number in range(80)])
    fingerprints = {
        rolling(buffer, seed=seed, window_microbatches=3 + extra).build_next_window().fingerprint
        for buffer in (one, other)
    }
    assert len(fingerprints) == 1
    assert (
        rolling(one, seed=seed + 1, window_microbatches=3 + extra).build_next_window().fingerprint not in fingerprints
    )


def test_the_plan_is_the_one_that_the_planner_makes_of_these_samples():
    plans = rolling(filled(60))
    window = plans.build_next_window()
    direct = BatchPlan.build(window.plan.table, plans.config.plan_config(0))
    assert list(direct.get_epoch(0)) == list(plans.iter_current())


def test_samples_of_high_priority_are_drawn_first_and_those_of_none_last():
    buffer = filled(400, length=8)
    for number in range(200):
        buffer.update_priority(f"s{number}", 50.0)
    for number in range(390, 400):
        buffer.update_priority(f"s{number}", 0.0)
    drawn = ids(rolling(buffer, window_microbatches=12).build_next_window())
    high = sum(f"s{number}" in drawn for number in range(200))
    assert len(drawn) == 96
    assert high > 75
    assert not drawn & {f"s{number}" for number in range(390, 400)}
    alike = ids(rolling(buffer, window_microbatches=12, prioritized=False).build_next_window())
    assert 35 < sum(f"s{number}" in alike for number in range(200)) < 61


def test_overlap_is_a_limit_and_not_a_share():
    """What is new and matters is drawn at once, however much of the window may be old."""
    for overlap in (0.5, 1.0):
        buffer = filled(200, length=8)
        plans = rolling(buffer, window_microbatches=5, overlap_fraction=overlap)
        before = ids(plans.build_next_window())
        assert len(before) == 40
        for number in range(200, 240):
            buffer.add(made(number, 8), priority=1e9)
        drawn = ids(plans.build_next_window())
        assert drawn == {f"s{number}" for number in range(200, 240)}
        third = ids(plans.build_next_window())
        assert len(third & drawn) == (20 if overlap == 0.5 else 40)


def test_a_sample_that_fills_more_than_a_window_is_refused():
    buffer = filled(2, length=200)
    with pytest.raises(LengthError, match="more than the 2 microbatches of a window"):
        rolling(
            buffer, window_microbatches=2, batching=BatchingConfig(token_budget=64, overflow="split")
        ).build_next_window()
    fitting = rolling(
        buffer, window_microbatches=4, batching=BatchingConfig(token_budget=64, overflow="split")
    ).build_next_window()
    assert (fitting.num_samples, fitting.num_microbatches) == (1, 4)


def test_a_curriculum_draws_what_is_near_its_target():
    buffer = filled(200, length=8, difficulty=0.3)
    filled(200, 200, buffer, length=8, difficulty=0.7)
    plans = RollingBatchPlanWindow(
        buffer,
        min_samples=1,
        window_microbatches=10,
        batching=BatchingConfig(token_budget=64),
        curriculum=Curriculum(start=0.7),
    )
    drawn = ids(plans.build_next_window())
    assert sum(int(id[1:]) >= 200 for id in drawn) > 0.85 * len(drawn)


def test_the_buffer_may_forget_what_the_window_holds():
    buffer = ReplayBuffer(max_size=30)
    filled(30, buffer=buffer)
    plans = rolling(buffer)
    plans.build_next_window()
    filled(300, 1000, buffer)
    for microbatch, samples in plans.iter_current_with_samples():
        for id, sample in zip(microbatch.samples, samples, strict=True):
            assert sample.input_ids.tolist() == made(int(str(id)[1:])).input_ids.tolist()


def test_batches_hold_the_tokens_of_their_samples_and_keys_lead_back_to_the_buffer():
    buffer = filled(40)
    plans = rolling(buffer)
    window = plans.build_next_window()
    for microbatch in list(plans.iter_current()):
        assert buffer.update_priorities(plans.keys_of(microbatch), np.full(len(microbatch.samples), 3.0)) == len(
            microbatch.samples
        )
    assert set(buffer.snapshot().priorities) == {3.0}
    plans.go_to(0)
    for batch, microbatch in zip(plans.batches(), window.plan.get_epoch(0), strict=True):
        for row, id in enumerate(microbatch.samples):
            expected = made(int(str(id)[1:])).input_ids
            assert batch.tokens[row, : len(expected)].tolist() == expected.tolist()


def test_a_loop_that_was_left_goes_on_where_it_was():
    plans = rolling(filled(60))
    window = plans.build_next_window()
    whole = list(window.plan.get_epoch(0))
    loop = plans.iter_current()
    assert [next(loop), next(loop)] == whole[:2]
    assert plans.state is not None
    assert (plans.state.microbatches_consumed, plans.state.remaining) == (2, len(whole) - 2)
    assert list(plans.iter_current()) == whole[2:]
    assert plans.state.is_exhausted
    assert plans.state.progress == 1.0
    assert list(plans.iter_current()) == []


@pytest.mark.parametrize("consumed", [0, 1, 5])
@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=32)])
def test_a_restored_window_has_the_same_microbatches_and_the_same_successor(tmp_path, consumed, packing):
    options = {
        "overlap_fraction": 0.5,
        "window_microbatches": 7,
        "batching": BatchingConfig(token_budget=64, packing=packing),
    }
    buffer = filled(120)
    plans = rolling(buffer, **options)
    plans.build_next_window()
    plans.build_next_window()
    loop = plans.iter_current()
    for _ in range(consumed):
        next(loop)
    plans.save(tmp_path / "window")
    buffer.save(tmp_path / "buffer")
    again = rolling(ReplayBuffer.load(tmp_path / "buffer"), **options)
    again.load(tmp_path / "window")
    assert again.state == plans.state
    assert [b.tokens.tolist() for b in again.batches()] == [b.tokens.tolist() for b in plans.batches()]
    assert again.build_next_window().fingerprint == plans.build_next_window().fingerprint
    assert again.window_id == 2


def test_before_the_first_window_there_is_a_state_to_save_too(tmp_path):
    plans = rolling(filled(20))
    plans.save(tmp_path / "window")
    again = rolling(filled(20))
    again.load(tmp_path / "window")
    assert again.state is None
    assert again.build_next_window().fingerprint == plans.build_next_window().fingerprint
    plans.discard_current()
    assert plans.state is None
    with pytest.raises(OptionError, match="there is no window"):
        next(plans.iter_current())
    assert not plans.can_build or plans.config.overlap_fraction > 0


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=32)])
def test_a_window_of_several_passes_is_one_plan_with_an_epoch_for_each(tmp_path, packing):
    options = {"window_microbatches": 7, "batching": BatchingConfig(token_budget=64, packing=packing), "seed": 3}
    buffer = filled(120)
    once, plans = rolling(buffer, **options), rolling(buffer, **options, passes=3)
    single, window = once.build_next_window(), plans.build_next_window()
    direct = BatchPlan.build(window.plan.table, plans.config.plan_config(0), num_epochs=3)
    assert window.fingerprint == direct.fingerprint
    assert window.keys.tolist() == single.keys.tolist(), "passes do not change what is drawn"
    whole = [microbatch for epoch in range(3) for microbatch in direct.get_epoch(epoch)]
    assert list(plans.iter_current()) == whole
    first_pass = [microbatch.samples for microbatch in whole[: single.num_microbatches]]
    assert first_pass == [microbatch.samples for microbatch in once.iter_current()]
    for consumed in (0, single.num_microbatches, len(whole) - 1):
        plans.go_to(consumed)
        plans.save(tmp_path / "window")
        again = rolling(buffer, **options, passes=3)
        again.load(tmp_path / "window")
        assert again.state == plans.state
        assert list(again.iter_current()) == whole[consumed:]
    with pytest.raises(MismatchError, match="other options"):
        rolling(buffer, **options, passes=2).load(tmp_path / "window")


def test_a_file_that_records_no_passes_is_resumed_with_any_number_of_them(tmp_path):
    """Version 0.5.0 wrote such files, whatever the number of passes over their windows."""
    buffer = filled(40)
    once = rolling(buffer)
    once._algorithm = 1
    window = once.build_next_window()
    once.save(tmp_path / "window")
    plans = rolling(buffer, passes=2)
    plans.load(tmp_path / "window")
    expected = BatchPlan.build(window.plan.table, once.config.plan_config(0), num_epochs=2, algorithm=1)
    assert plans.current is not None
    assert plans.current.fingerprint == expected.fingerprint
    assert len(list(plans.iter_current())) == expected.total_microbatches


@pytest.mark.parametrize("algorithm", [1, 2])
def test_a_loaded_run_draws_and_plans_its_next_windows_by_the_planner_that_it_began_with(tmp_path, algorithm):
    buffer = filled(40)
    began, resumed = rolling(buffer, overlap_fraction=1.0), rolling(buffer, overlap_fraction=1.0)
    began._algorithm = algorithm
    began.build_next_window()
    for number in range(2):  # in a window, and between two
        began.save(tmp_path / "window")
        resumed.load(tmp_path / "window")
        assert resumed.build_next_window().fingerprint == began.build_next_window().fingerprint
        assert list(resumed.iter_current()) == list(began.iter_current())
        assert resumed.current.plan.epochs.algorithm == algorithm
        if number == 0:
            began.discard_current()


def test_asking_for_a_window_costs_no_snapshot_and_building_one_costs_one_hash_of_its_samples(monkeypatch):
    buffer = filled(60)
    plans = rolling(buffer)
    with monkeypatch.context() as patch:
        patch.setattr(ReplayBuffer, "snapshot", None)
        assert plans.can_build
    snapshots, hashed = [], []
    snapshot, content_hash = ReplayBuffer.snapshot, BufferSnapshot.content_hash
    monkeypatch.setattr(ReplayBuffer, "snapshot", lambda self: snapshots.append(snapshot(self)) or snapshots[-1])
    monkeypatch.setattr(
        BufferSnapshot, "content_hash", lambda self, rows=None: hashed.append(rows) or content_hash(self, rows)
    )
    window = plans.build_next_window()
    assert (len(snapshots), len(hashed)) == (1, 1)
    assert window.store.dataset_hash == window.plan.table.dataset_hash == content_hash(snapshots[0], hashed[0])


def test_ids_that_come_twice_in_the_buffer_stay_two_samples():
    buffer = ReplayBuffer(max_size=100, duplicates="keep")
    for length in (3, 5, 7):
        buffer.add(made(1, length))
    window = rolling(buffer).build_next_window()
    assert window.num_samples == 3
    assert sorted(window.store.lengths.tolist()) == [3, 5, 7]
    buffer.add(StreamSample(sample_id=1, input_ids=[1], loss_mask=[1]))
    buffer.add(StreamSample(sample_id="1", input_ids=[1], loss_mask=[1]))
    table = rolling(buffer).build_next_window().plan.table
    assert len(set(table.ids)) == len(table) == 5
    buffer.add(StreamSample(sample_id="\ud800", input_ids=[1], loss_mask=[1]))
    assert len(rolling(buffer).build_next_window().plan.table) == 6


def test_samples_with_segments_of_their_own_are_refused():
    buffer = filled(5)
    buffer.add(StreamSample(sample_id="two", input_ids=[1, 2], loss_mask=[1, 1], segment_ids=[1, 2]))
    with pytest.raises(DataError, match="'two' has segments of its own"):
        rolling(buffer).build_next_window()


def test_too_few_and_too_long_samples_are_refused_and_damage_is_noticed(tmp_path):
    with pytest.raises(DataError, match="needs 100 samples, there are 20 to choose from"):
        rolling(filled(20), min_samples=100).build_next_window()
    with pytest.raises(LengthError, match=r"do not fit|does not fit"):
        rolling(filled(3, length=80)).build_next_window()
    plans = rolling(filled(20))
    plans.build_next_window()
    plans.save(tmp_path / "window")
    with pytest.raises(MismatchError, match="other options"):
        rolling(filled(20), seed=7).load(tmp_path / "window")
    content = bytearray((tmp_path / "window").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "window").write_bytes(content)
    with pytest.raises(DamagedError):
        rolling(filled(20)).load(tmp_path / "window")
    with pytest.raises(OptionError, match="overlap_fraction must lie between"):
        WindowConfig(overlap_fraction=1.5)
