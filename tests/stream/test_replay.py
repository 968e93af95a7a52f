"""The replay buffer against a list, its draws against their distribution, and what snapshots promise."""

import math
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replays import Naive, numbered, sample, samples

from brim.core.errors import DataError, OptionError
from brim.core.rng import Words
from brim.envs.episode import DIFFICULTIES
from brim.stream.replay import columns, sum_tree
from brim.stream.replay import draw as replay_draw
from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.replay.columns import Entries
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.slots import IdIndex
from brim.stream.sample import SampleSource


@contextmanager
def uncompiled(really=True):
    """NumPy alone, for the length of a block."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (sum_tree, columns, replay_draw) if really else ():
            patch.setattr(module, "kernel", None)
        yield patch


def ids(found):
    return [one.sample_id for one in found]


@settings(max_examples=60)
@given(st.lists(samples(), max_size=12), st.booleans())
def test_a_sample_comes_back_as_it_went_in(given_samples, batch):
    buffer = ReplayBuffer(max_size=50, duplicates="keep")
    if batch:
        buffer.add_batch(given_samples)
    else:
        for one in given_samples:
            buffer.add(one)
    back = buffer.get_all()
    assert back == given_samples
    assert [one.timestamp for one in back] == [one.timestamp for one in given_samples]
    assert all(not one.input_ids.flags.writeable for one in back)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 8), st.sampled_from([0.0, 0.5, 2.0, 3.0])),
        st.tuples(
            st.just("batch"), st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0.5, 1.0, 2.0])), max_size=9)
        ),
        st.tuples(st.just("update"), st.integers(0, 8), st.sampled_from([0.0, 0.25, 4.0])),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("age"), st.integers(0, 8)),
        st.tuples(st.just("look")),
    ),
    max_size=25,
)


@settings(max_examples=120)
@given(operations, st.sampled_from(["fifo", "priority"]), st.sampled_from(["keep", "replace"]), st.integers(1, 6))
def test_who_stays_is_who_stays_in_a_list(steps, policy, duplicates, max_size):
    buffer = ReplayBuffer(max_size=max_size, eviction_policy=policy, duplicates=duplicates)
    naive = Naive(max_size, policy, duplicates)
    known = []
    for step in steps:
        match step:
            case ("add", id, priority):
                one = sample(id, [id] * (id + 1), policy_version=id)
                known.append(buffer.add(one, priority))
                naive.add(one, priority)
            case ("batch", pairs):
                several = [sample(id, [id], policy_version=id) for id, _ in pairs]
                known.extend(buffer.add_batch(several, [priority for _, priority in pairs]).tolist())
                for one, (_, priority) in zip(several, pairs, strict=True):
                    naive.add(one, priority)
            case ("update", id, priority):
                assert buffer.update_priority(id, priority) == (id in buffer)
                naive.update(id, priority)
            case ("remove", place):
                keys = buffer.snapshot().keys[place : place + 2]
                assert buffer.remove([*keys, *keys]) == len(keys)
                del naive.entries[place : place + 2]
            case ("age", version):
                buffer.evict_older_than(version)
                naive.entries = [entry for entry in naive.entries if entry[0].policy_version >= version]
            case _:
                buffer.snapshot()
        assert buffer.size == len(naive.entries)
    snapshot = buffer.snapshot()
    assert snapshot.samples() == [entry[0] for entry in naive.entries]
    assert snapshot.priorities.tolist() == [entry[1] for entry in naive.entries]
    assert all(earlier < later for earlier, later in pairwise(known))
    assert set(snapshot.keys.tolist()) <= set(known)
    assert [id in buffer for id in range(9)] == [id in ids(snapshot.samples()) for id in range(9)]
    assert buffer.total_added == buffer.size + buffer.total_evicted + buffer.replaced + buffer.removed == naive.added


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(0, 1000)), max_size=40),
    st.sampled_from(["fifo", "priority", "random"]),
    st.sampled_from(["keep", "replace"]),
    st.data(),
)
def test_a_batch_does_what_one_after_the_other_does(names, policy, duplicates, data):
    options = {"max_size": 7, "eviction_policy": policy, "duplicates": duplicates}
    one_by_one, batched = ReplayBuffer(**options), ReplayBuffer(**options)
    several = [sample(name, [name], priority=float(name % 4)) for name in names]
    keys = [one_by_one.add(one) for one in several]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(several)), max_size=5)))
    parts = [several[start:stop] for start, stop in pairwise([0, *cuts, len(several)])]
    assert [key for part in parts for key in batched.add_batch(part).tolist()] == keys
    assert ids(batched.get_all()) == ids(one_by_one.get_all())
    assert batched.snapshot().keys.tolist() == one_by_one.snapshot().keys.tolist()
    if batched.size:
        assert batched.sample(batched.size).keys.tolist() == one_by_one.sample(batched.size).keys.tolist()


def test_random_eviction_spares_nobody_for_being_old_or_new():
    buffer = ReplayBuffer(max_size=100, eviction_policy="random", seed=3)
    buffer.add_batch(numbered(2000))
    age = np.array([2000 - int(id[1:]) for id in ids(buffer.get_all())])
    assert 70 < age.mean() < 130  # a sample lives for 100 additions on average
    assert age.max() > 200
    assert len(set(ids(buffer.get_all()))) == 100


def test_the_same_calls_give_the_same_draws_and_another_seed_others():
    def played(seed):
        buffer = ReplayBuffer(max_size=50, eviction_policy="random", seed=seed)
        buffer.add_batch(numbered(80))
        return [buffer.sample(5).sample_ids for _ in range(5)]

    assert played(1) == played(1) != played(2)


def counted(buffer, draws, n, **options):
    found = np.zeros(buffer.size)
    place = {key: row for row, key in enumerate(buffer.snapshot().keys.tolist())}
    for _ in range(draws):
        for key in buffer.sample(n, **options).keys.tolist():
            found[place[key]] += 1
    return found


def far_from(found, expected):
    """Pearson's chi-square over the degrees of freedom: about 1 if the distribution is right."""
    return float(((found - expected) ** 2 / expected).sum() / (len(expected) - 1))


def test_draws_are_in_proportion_to_priority_to_the_power_alpha():
    priorities = np.array([1.0, 2.0, 3.0, 4.0, 10.0] * 4)
    buffer = ReplayBuffer(priority_alpha=0.7, seed=1)
    buffer.add_batch(numbered(20), priorities)
    share = priorities**0.7 / (priorities**0.7).sum()
    assert far_from(counted(buffer, 100, 200, replace=True), 20_000 * share) < 1.8
    assert far_from(counted(buffer, 4000, 1), 4000 * share) < 1.8
    assert far_from(counted(buffer, 100, 200, replace=True, uniform=True), np.full(20, 1000.0)) < 1.8


@pytest.mark.parametrize("n", [2, 3])
def test_without_replacement_each_is_drawn_in_proportion_to_what_is_left(n):
    """n = 2 of 12 draws and draws again what came twice; n = 3 lets all race, being more than a quarter."""
    priorities = np.array([1.0, 1.0, 2.0, 2.0, 4.0, 8.0, *[1.0] * (6 if n == 2 else 2)])
    buffer = ReplayBuffer(priority_alpha=1.0, seed=2)
    buffer.add_batch(numbered(len(priorities)), priorities)
    share = priorities / priorities.sum()
    second = sum(
        share[first] * np.where(np.arange(len(share)) == first, 0, share / (1 - share[first]))
        for first in range(len(share))
    )
    place = {key: row for row, key in enumerate(buffer.snapshot().keys.tolist())}
    drawn = np.array([[place[key] for key in buffer.sample(n).keys.tolist()] for _ in range(4000)])
    assert far_from(np.bincount(drawn[:, 0], minlength=len(share)), 4000 * share) < 2.2
    assert far_from(np.bincount(drawn[:, 1], minlength=len(share)), 4000 * second) < 2.2


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.0, 1e-12, 1.0, 1e9]), min_size=1, max_size=60), st.data())
def test_without_replacement_all_differ_and_zeros_come_last(priorities, data):
    buffer = ReplayBuffer(max_size=60, priority_alpha=1.0, duplicates="keep")
    buffer.add_batch(numbered(len(priorities)), priorities)
    n = data.draw(st.integers(1, len(priorities)))
    draw = buffer.sample(n)
    drawn = [priorities[int(id[1:])] for id in draw.sample_ids]
    positive = sum(priority > 0 for priority in priorities)
    assert len(set(draw.keys.tolist())) == n
    assert sum(priority > 0 for priority in drawn) == min(n, positive)
    assert sorted(drawn, key=lambda priority: priority == 0) == drawn
    assert np.isfinite(draw.weights).all()
    assert buffer.snapshot().priorities.tolist() == priorities
    assert buffer.state().weights.tolist() == priorities


def test_a_few_that_have_nearly_all_the_weight_do_not_keep_the_others_from_being_drawn():
    buffer = ReplayBuffer(max_size=3000, priority_alpha=1.0)
    buffer.add_batch(numbered(3000), 100.0 ** -np.minimum(np.arange(3000), 60))
    before = buffer.state().weights.tolist()
    for _ in range(2):
        draw = buffer.sample(200)
        assert len(set(draw.keys.tolist())) == 200
        assert {f"s{i}" for i in range(20)} <= set(draw.sample_ids)
        assert buffer.state().weights.tolist() == before  # nothing that was set aside while drawing is lost


def test_a_few_positive_priorities_come_first_and_then_anyone():
    buffer = ReplayBuffer(max_size=100, priority_alpha=1.0)
    buffer.add_batch(numbered(100), [*[1.0] * 3, *[0.0] * 97])
    drawn = [buffer.sample(10).sample_ids for _ in range(200)]
    assert all({"s0", "s1", "s2"} == set(some[:3]) for some in drawn)
    assert {id for some in drawn for id in some} == {f"s{i}" for i in range(100)}
    assert buffer.state().weights.sum() == 3.0


@pytest.mark.parametrize("gone", [0, 1, 4000])
def test_a_draw_of_a_few_does_not_go_through_all(gone):
    """Counted in random words: 5 of 8000 have a weight; then 40 whose priorities lie far apart; then none has any."""
    buffer = ReplayBuffer(max_size=8000, priority_alpha=1.0)
    keys = buffer.add_batch(numbered(8000, length=1), np.arange(8000) >= 7995)
    buffer.remove(keys[100 : 100 + gone])
    calls = [
        lambda: buffer.sample(32),
        lambda: buffer.update_priorities(keys[-40:], 100.0 ** -np.arange(40)) and buffer.sample(32),
        lambda: buffer.sample_uniform(32),
        lambda: buffer.sample_uniform(32, replace=True),
        lambda: buffer.update_priorities(keys[-40:], np.zeros(40)) and buffer.sample(32),
    ]
    for call in calls:
        before = buffer.state().drawn
        assert len(call()) == 32
        assert buffer.state().drawn - before < 1500


@pytest.mark.parametrize("way", ["add", "batch", "update", "binary", "json"])
def test_an_entry_of_priority_0_comes_last_also_where_alpha_is_0(tmp_path, way):
    buffer = ReplayBuffer(priority_alpha=0.0)
    several, priorities = numbered(20), [0.0, *[1.0, 5.0] * 9, 2.0]
    if way == "add":
        for one, priority in zip(several, priorities, strict=True):
            buffer.add(one, priority)
    else:
        keys = buffer.add_batch(several, priorities)
        if way == "update":
            buffer.update_priorities(keys, priorities[::-1])
            buffer.update_priorities(keys, priorities)
    if way in ("binary", "json"):
        buffer.save(tmp_path / f"x.{way}")
        buffer = ReplayBuffer.load(tmp_path / f"x.{way}")
    assert all("s0" not in buffer.sample(n).sample_ids for n in [1, 3, 10, 19] * 20)
    assert buffer.sample(20).sample_ids[-1] == "s0"


def test_when_all_priorities_are_zero_draws_are_uniform():
    buffer = ReplayBuffer(seed=4)
    buffer.add_batch(numbered(10), np.zeros(10))
    found = counted(buffer, 2000, 1)
    assert far_from(found, np.full(10, 200.0)) < 2
    assert buffer.sample(10).weights.tolist() == [1.0] * 10


@pytest.mark.parametrize("n", [3, 30])
@pytest.mark.parametrize("gone", [0, 20, 60])
def test_uniform_draws_are_uniform_also_where_entries_are_gone(n, gone):
    buffer = ReplayBuffer(max_size=100, seed=6)
    keys = buffer.add_batch(numbered(100), np.arange(100.0))
    buffer.remove(keys[np.arange(gone) * 100 // max(gone, 1)])
    expected = np.full(100 - gone, 6000 / (100 - gone))
    assert far_from(counted(buffer, 6000 // n, n, uniform=True), expected) < 1.7
    assert buffer.sample_uniform(500, replace=True).weights.tolist() == [1.0] * 500
    assert far_from(counted(buffer, 6, 1000, uniform=True, replace=True), expected) < 1.7
    assert far_from(counted(buffer, 6000 // n, n, uniform=True, replace=True), expected) < 1.7


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.floats(0, 1), st.floats(0, 1), st.booleans())
@settings(max_examples=40)
def test_importance_weights_are_as_defined(priorities, alpha, beta, replace):
    buffer = ReplayBuffer(priority_alpha=alpha, importance_beta=beta)
    buffer.add_batch(numbered(len(priorities)), priorities)
    for draw in (buffer.sample(2, replace=replace), buffer.sample(2, replace=replace, beta=beta)):
        share = np.array(priorities) ** alpha / (np.array(priorities) ** alpha).sum()
        drawn = share[[int(id[1:]) for id in draw.sample_ids]]
        expected = (len(priorities) * drawn) ** -beta
        assert np.allclose(draw.weights, expected / expected.max(), rtol=1e-5)
        assert draw.weights.max() == 1.0


@pytest.mark.parametrize(
    ("priorities", "beta", "expected"),
    [
        ([1e-200, 1e200], 1.0, [1.0, 0.0]),
        ([5e-324, 5e-324], 1.0, [1.0, 1.0]),
        ([1e-310, 1.0], 1.0, [1.0, 0.0]),
        ([1e-3, 1.0], 400.0, [1.0, 0.0]),
        ([5e-324, 1e280], 1e308, [1.0, 0.0]),
        ([1e-200, 2e-200], 1.0, [1.0, 0.5]),
        ([1e200, 2e200, 0.0], 2.0, [1.0, 0.25, 1.0]),
    ],
)
def test_importance_weights_lie_between_0_and_1_however_far_apart_priorities_are(priorities, beta, expected):
    buffer = ReplayBuffer(priority_alpha=1.0, importance_beta=beta)
    buffer.add_batch(numbered(len(priorities)), priorities)
    with np.errstate(all="raise"):
        draw = buffer.sample(len(priorities))
    assert draw.weights[np.argsort(draw.keys)].tolist() == pytest.approx(expected)
    assert draw.weights.max() == 1.0


def test_beta_of_a_call_goes_before_that_of_the_options():
    buffer = ReplayBuffer(importance_beta=0.0)
    buffer.add_batch(numbered(2), [1.0, 9.0])
    assert buffer.sample(2).weights.tolist() == [1.0, 1.0]
    assert sorted(buffer.sample(2, beta=1.0).weights.tolist())[0] == pytest.approx(9.0**-0.6)
    with pytest.raises(OptionError, match="beta"):
        buffer.sample(2, beta=-1.0)


@settings(max_examples=30)
@given(st.lists(samples(), min_size=1, max_size=10), st.data())
def test_a_draw_gives_objects_and_columns_alike(given_samples, data):
    buffer = ReplayBuffer(duplicates="keep")
    buffer.add_batch(given_samples)
    draw = buffer.sample(data.draw(st.integers(1, buffer.size)))
    buffer.add_batch(given_samples)  # changes nothing of what was drawn
    buffer.clear()
    by_key = {id(one): one for one in given_samples}
    assert len(by_key) >= len(draw) == len(draw.samples)
    for place, one in enumerate(draw.samples):
        start, stop = int(draw.begin[place]), int(draw.begin[place] + draw.lengths[place])
        assert one.input_ids.tolist() == draw.tokens[start:stop].tolist()
        assert one.loss_mask.tolist() == draw.learned[start:stop].tolist()
        assert draw.spans.tokens[draw.spans.begin[place] :][: one.length].tolist() == one.input_ids.tolist()
        assert one.is_replay
        assert one.sample_id == draw.sample_ids[place]
        assert any(one == before.with_replay() for before in given_samples)
    assert draw.tokens.dtype == np.int32


def test_how_often_a_sample_was_drawn_is_kept():
    buffer = ReplayBuffer(duplicates="replace")
    buffer.add_batch(numbered(4, replay_count=5))
    for times in range(1, 4):
        assert [one.replay_count for one in buffer.sample(4).samples] == [5 + times] * 4
    assert buffer.sample(40, replace=True).samples[0].replay_count > 8
    assert sum(one.replay_count - 5 for one in buffer.get_all()) == 12 + 40
    buffer.add(numbered(1)[0])
    assert [one.replay_count for one in buffer.get_all()][-1] == 0  # another sample in the same slot starts again


def test_keys_of_entries_that_are_gone_change_nobody():
    buffer = ReplayBuffer(max_size=3)
    old = buffer.add_batch(numbered(3))
    new = buffer.add_batch([sample("x"), sample("y")])
    assert buffer.update_priorities([*old, *new, 10**15, -1, 0], np.arange(8.0)) == 3
    assert buffer.stale_updates == 5
    assert dict(zip(buffer.snapshot().sample_ids, buffer.snapshot().priorities.tolist(), strict=True)) == {
        "s2": 2.0,
        "x": 3.0,
        "y": 4.0,
    }
    assert buffer.update_priorities([new[0], new[0]], [7.0, 8.0]) == 2
    assert buffer.snapshot().priorities.tolist() == [2.0, 8.0, 4.0]


def test_slots_that_were_freed_are_taken_again_lowest_first():
    """Many at a time, then one by one, which are lined up in another way."""
    buffer = ReplayBuffer(max_size=200)
    keys = buffer.add_batch(numbered(200))
    order = np.random.default_rng(3).permutation(200)
    buffer.remove(keys[order[:100]])
    for place in order[100:150].tolist():
        assert buffer.remove([keys[place]]) == 1
    assert [buffer.add(sample(i)) % 200 for i in range(150)] == sorted(order[:150].tolist())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_the_slots_of_an_id_are_those_that_were_not_discarded(steps):
    index, naive = IdIndex(), {}
    for add, id, slot in steps:
        if add:
            index.add(id, slot)
            naive.setdefault(id, {})[slot] = None
        elif slot in naive.get(id, {}):
            index.discard(id, slot)
            del naive[id][slot]
    assert [index.slots(id) for id in range(4)] == [list(naive.get(id, {})) for id in range(4)]
    assert [id in index for id in range(4)] == [bool(naive.get(id)) for id in range(4)]


def test_the_lowest_goes_also_after_entries_came_and_went_in_batches():
    buffer, naive = ReplayBuffer(max_size=100, eviction_policy="priority"), Naive(100, "priority")
    rng = np.random.default_rng(4)
    for number in range(60):
        several = [sample(f"{number}-{i}") for i in range(rng.integers(1, 12))]
        for one, priority in zip(several, priorities := rng.integers(0, 9, len(several)).astype(float), strict=True):
            naive.add(one, priority)
        buffer.add_batch(several, priorities)
        if number % 4 == 3:  # there is room for some, so that the next batch comes in as a whole
            gone = rng.integers(0, buffer.size, 3)
            buffer.remove(buffer.snapshot().keys[gone])
            naive.entries = [entry for place, entry in enumerate(naive.entries) if place not in gone]
        assert buffer.snapshot().sample_ids == [entry[0].sample_id for entry in naive.entries]


def test_what_a_draw_or_a_snapshot_shares_with_the_buffer_cannot_be_written_to():
    buffer = ReplayBuffer()
    buffer.add(sample("a"))
    draw, snapshot = buffer.sample(1), buffer.snapshot()
    for shared in (draw.spans, snapshot.store(), snapshot.store(np.array([0])), snapshot.store().sample(0)):
        for array in (shared.tokens, shared.learned):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
    draw.tokens[:] = 9  # a copy
    buffer.add(sample("b"))  # the buffer itself goes on
    assert [one.input_ids.tolist() for one in buffer.get_all()] == [[1, 2, 3]] * 2


def test_priorities_follow_rewards_and_difficulty():
    buffer = ReplayBuffer()
    buffer.add_batch(
        [sample("a", reward=1.0, difficulty=0.5), sample("b", reward=-3, difficulty=0.9), sample("c")], [1.0, 2.0, 5.0]
    )
    assert buffer.update_priorities_by_reward(0.5) == 2
    assert buffer.snapshot().priorities.tolist() == [1.5, 1.0, 5.0]
    assert buffer.update_priorities_by_difficulty(0.5, 0.2) == 2
    assert buffer.snapshot().priorities.tolist() == pytest.approx([1.0, math.exp(-2), 5.0])
    with pytest.raises(OptionError, match="alpha"):
        buffer.update_priorities_by_reward(2.0)
    with pytest.raises(OptionError, match="width"):
        buffer.update_priorities_by_difficulty(0.5, 0.0)


def test_a_new_sample_has_the_priority_that_was_given_or_its_own_or_the_default():
    buffer = ReplayBuffer(default_priority=7.0)
    buffer.add(sample("a"), 3.0)
    buffer.add(sample("b", priority=2.0))
    buffer.add(sample("c"))
    buffer.add_batch([sample("d", priority=2.0), sample("e")])
    buffer.add_batch([sample("f", priority=2.0)], [4.0])
    assert buffer.snapshot().priorities.tolist() == [3.0, 2.0, 7.0, 2.0, 7.0, 4.0]
    assert buffer.get_all()[1].priority == 2.0


@pytest.mark.parametrize("keys", [100_000, 1e5, [100_000.9], [[100_000]], [[1], [1, 2]], ["a"], [2**70], None], ids=str)
def test_what_cannot_be_a_key_is_refused_and_changes_nothing(keys):
    buffer = ReplayBuffer()
    buffer.add(sample("a"))
    for call in (
        lambda: buffer.remove(keys),
        lambda: buffer.update_priorities(keys, 1.0),
        lambda: buffer.update_priorities(keys, [1.0]),
    ):
        with pytest.raises(OptionError, match="keys must be"):
            call()
    assert (buffer.remove([]), buffer.update_priorities([], []), buffer.size, buffer.stale_updates) == (0, 0, 1, 0)
    assert buffer.update_priorities(np.array([100_000, 2**64 - 1], np.uint64), [2.0, 2.0]) == 1
    for priorities in (1.0, ["much"], [[1.0]], [1.0, [1.0]]):
        with pytest.raises(OptionError, match="priorities"):
            buffer.update_priorities([100_000], priorities)


@pytest.mark.parametrize("priority", [-1.0, math.nan, math.inf, 1e300])
def test_what_cannot_be_a_priority_is_refused_and_changes_nothing(priority):
    buffer = ReplayBuffer()
    keys = buffer.add_batch(numbered(3))
    before = buffer.snapshot().fingerprint
    calls = [
        lambda: buffer.add(sample("x"), priority),
        lambda: buffer.add_batch([sample("x"), sample("y")], [1.0, priority]),
        lambda: buffer.update_priorities(keys[:2], [5.0, priority]),
        lambda: buffer.update_priority("s0", priority),
        lambda: buffer.update_priority("nobody", priority),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="priority is"):
            call()
    with pytest.raises(OptionError, match="shape"):
        buffer.update_priorities(keys, [1.0])
    assert (buffer.snapshot().fingerprint, buffer.size, buffer.total_added) == (before, 3, 3)


def test_duplicates_replace_are_kept_or_are_an_error():
    twice = [sample("a", [1]), sample("b", [2]), sample("a", [3])]
    replacing = ReplayBuffer()
    replacing.add_batch(twice)
    assert ([one.input_ids[0] for one in replacing.get_all()], replacing.replaced, replacing.total_evicted) == (
        [2, 3],
        1,
        0,
    )
    keeping = ReplayBuffer(duplicates="keep")
    keeping.add_batch(twice)
    assert keeping.update_priority("a", 9.0)
    assert keeping.snapshot().priorities.tolist() == [9.0, 1.0, 9.0]
    strict = ReplayBuffer(duplicates="error")
    strict.add(twice[0])
    for call in (
        lambda: strict.add(twice[2]),
        lambda: strict.add_batch(twice[1:]),
        lambda: strict.add_batch([twice[1], twice[1]]),
    ):
        with pytest.raises(DataError, match="in the buffer already"):
            call()
    assert strict.size == strict.total_added == 1


def test_too_few_samples_are_said_to_be_too_few():
    buffer = ReplayBuffer(min_samples_before_sampling=3)
    buffer.add_batch(numbered(2))
    assert not buffer.can_sample()
    with pytest.raises(OptionError, match="min_samples_before_sampling is 3"):
        buffer.sample(1, replace=True)
    buffer.add_batch(numbered(4))
    assert buffer.can_sample(4)
    assert not buffer.can_sample(5)
    with pytest.raises(OptionError, match="cannot draw 5 of 4 samples without replacement"):
        buffer.sample(5)
    assert len(buffer.sample(5, replace=True)) == 5
    with pytest.raises(OptionError, match="n must be at least 1"):
        buffer.sample(0)
    with pytest.raises(OptionError, match="holds 0 samples"):
        ReplayBuffer().sample(1, replace=True)


@pytest.mark.parametrize(
    "options",
    [
        {"max_size": 0},
        {"seed": 1.5},
        {"seed": "x"},
        {"seed": True},
        {"priority_alpha": "x"},
        {"default_priority": 1e300},
        {"default_priority": 1e200, "priority_alpha": 2.0},
        {"eviction_policy": "lifo"},
        {"priority_alpha": -1.0},
        {"importance_beta": math.nan},
        {"default_priority": math.inf},
        {"duplicates": "drop"},
        {"min_samples_before_sampling": 11, "max_size": 10},
        {"min_samples_before_sampling": 0},
        {"max_sizes": 10},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        ReplayBuffer(**options)


def test_options_come_alone_or_on_top_of_a_config():
    config = ReplayBufferConfig(max_size=5, seed=9)
    assert ReplayBuffer(config).config is not None
    assert ReplayBuffer(config, max_size=7).config == ReplayBufferConfig(max_size=7, seed=9)
    assert ReplayBufferConfig.from_dict(config.to_dict()) == config
    of_numpy = ReplayBufferConfig(
        max_size=np.int64(5), seed=np.int32(9), priority_alpha=np.float32(0.5), default_priority=1
    )
    assert [type(value) for value in of_numpy.to_dict().values() if not isinstance(value, str)] == [
        int,
        float,
        float,
        int,
        int,
        int,
    ]


@pytest.mark.slow
@settings(max_examples=30)
@given(
    st.lists(st.lists(samples(), max_size=8), min_size=1, max_size=6),
    st.sampled_from(["fifo", "priority", "random"]),
    st.booleans(),
)
def test_a_snapshot_never_changes(batches, policy, bare):
    with uncompiled(bare):
        buffer = ReplayBuffer(max_size=5, eviction_policy=policy)
        kept = []
        for batch in batches:
            buffer.add_batch(batch)
            snapshot = buffer.snapshot()
            kept.append(
                (
                    snapshot,
                    snapshot.samples(),
                    snapshot.content_hash(),
                    snapshot.priorities.copy(),
                    snapshot.store().lengths.copy(),
                )
            )
            if buffer.size:
                buffer.update_priorities(buffer.sample(1).keys, [3.5])
        buffer.clear()
        buffer.add_batch(batches[0])
        for snapshot, before, hash, priorities, lengths in kept:
            assert snapshot.samples() == before
            assert snapshot.content_hash() == hash
            assert snapshot.priorities.tolist() == priorities.tolist()
            store = snapshot.store()
            assert store.lengths.tolist() == lengths.tolist()
            assert [store.sample(row).tokens.tolist() for row in range(len(store))] == [
                one.input_ids.tolist() for one in before
            ]


def test_tokens_survive_many_times_their_number_passing_through():
    """Moves to new arrays happen many times here, also to wider ones."""
    for policy in ("fifo", "random"):
        buffer = ReplayBuffer(max_size=20, eviction_policy=policy)
        for start in range(0, 3000, 7):
            buffer.add_batch([sample(i, [i * 40 + j for j in range(i % 5)]) for i in range(start, start + 7)])
        for one in buffer.get_all():
            assert one.input_ids.tolist() == [one.sample_id * 40 + j for j in range(one.sample_id % 5)]
        assert len(buffer.snapshot().store().tokens) < 3000  # what is gone does not stay


@settings(max_examples=30)
@given(st.lists(samples(), max_size=8), st.sampled_from(["id", "token", "mask", "order", "priority", "segments"]))
def test_a_fingerprint_tells_contents_apart_and_not_times(given_samples, change):
    def printed(several, priorities=None):
        buffer = ReplayBuffer(duplicates="keep")
        buffer.add_batch(several, priorities)
        return buffer.snapshot().fingerprint

    one = sample("x", [1, 2], segment_ids=[0, 1], timestamp=1.0)
    later = sample("x", [1, 2], segment_ids=[0, 1], timestamp=2.0)
    before = printed([*given_samples, one])
    assert before == printed([*given_samples, later])
    other = {
        "id": [*given_samples, sample("y", [1, 2], segment_ids=[0, 1])],
        "token": [*given_samples, sample("x", [1, 3], segment_ids=[0, 1])],
        "segments": [*given_samples, sample("x", [1, 2])],
        "order": [one, *given_samples, sample("z")],
    }
    if change == "priority":
        assert before != printed([*given_samples, one], np.full(len(given_samples) + 1, 3.25))
    elif change == "mask":
        masked = type(one)(sample_id="x", input_ids=[1, 2], loss_mask=[0, 1], segment_ids=[0, 1])
        assert before != printed([*given_samples, masked])
    else:
        assert before != printed(other[change])


def test_every_entry_has_a_length_also_where_ids_repeat():
    buffer = ReplayBuffer(duplicates="keep")
    keys = buffer.add_batch([sample("a", [1]), sample("b", [1, 2]), sample("a", [1, 2, 3])])
    lengths = buffer.snapshot().get_lengths(tokenizer_hash="t")
    assert lengths.lengths.tolist() == [1, 2, 3]
    assert list(lengths.ids) == keys.tolist()
    assert lengths.dataset_hash == buffer.snapshot().store().dataset_hash
    buffer.remove(keys[:1])
    assert buffer.snapshot().get_lengths().get_all() == {"b": 2, "a": 3}
    assert buffer.snapshot().get_lengths(np.array([1])).get_all() == {"a": 3}
    assert buffer.snapshot().store(np.array([1])).sample(0).tokens.tolist() == [1, 2, 3]


def test_filters_and_statistics_say_what_is_there():
    buffer = ReplayBuffer()
    assert (buffer.mean_reward, buffer.mean_difficulty, buffer.success_rate) == (None, None, None)
    assert buffer.statistics()["by_difficulty"] == {}
    several = [
        sample("a", [1, 2], reward=1.0, difficulty=DIFFICULTIES["easy"], success=True, source="gym"),
        sample("b", [1], reward=0.0, difficulty=DIFFICULTIES["easy"], success=False, source="gym", policy_version=3),
        sample("c", [1, 2, 3], difficulty=1.0, source="synthetic", policy_version=5),
        sample("d", [1]),
    ]
    buffer.add_batch(several, [1.0, 2.0, 3.0, 4.0])
    assert ids(buffer.filter_by_difficulty(0.3, 0.9)) == ["a", "b"]
    assert ids(buffer.filter_by_success(True)) == ["a"]
    assert ids(buffer.filter_by_success(False)) == ["b"]
    assert ids(buffer.filter_by_source(SampleSource.GYM, "synthetic")) == ["a", "b", "c"]
    assert ids(buffer.filter(lambda one: one.length == 1)) == ["b", "d"]
    with pytest.raises(OptionError, match="source must be one of"):
        buffer.filter_by_source("gymn")
    assert (buffer.mean_reward, buffer.success_rate) == (0.5, 0.5)
    assert buffer.mean_difficulty == pytest.approx(1.6 / 3)
    statistics = buffer.statistics()
    assert statistics["by_difficulty"] == {
        "easy": {"count": 2, "success_rate": 0.5},
        "expert": {"count": 1, "success_rate": None},
        "unknown": {"count": 1, "success_rate": None},
    }
    assert statistics["by_source"]["gym"] == {"count": 2, "success_rate": 0.5}
    assert statistics["by_success"] == {"success": 1, "failure": 1, "unknown": 2}
    assert (statistics["size"], statistics["tokens"], statistics["loss_tokens"], statistics["mean_priority"]) == (
        4,
        7,
        7,
        2.5,
    )
    assert statistics["bytes"] > 0
    assert buffer.snapshot().policy_version.tolist() == [-1, 3, 5, -1]
    assert buffer.evict_older_than(5) == 1
    assert ids(buffer.get_all()) == ["a", "c", "d"]
    assert (buffer.is_full, "b" in buffer, "a" in buffer) == (False, False, True)


def test_a_number_that_no_column_holds_is_refused_at_once():
    buffer = ReplayBuffer()
    for call in (buffer.add, lambda one: buffer.add_batch([one])):
        with pytest.raises(DataError, match="64 bits"):
            call(sample("a", step_index=2**63))
    assert buffer.total_added == 0


def test_columns_are_taken_in_as_samples_are():
    tokens, lengths = np.arange(6), np.array([1, 3, 2])
    entries = Entries.of_columns(
        ["a", "b", 3], tokens, lengths, reward=np.array([0.5, np.nan, 1.0]), success=np.array([1, -1, 0])
    )
    buffer = ReplayBuffer()
    buffer.add_entries(entries, [1.0, 2.0, 3.0])
    assert buffer.get_all() == [
        sample("a", [0], reward=0.5, success=True),
        sample("b", [1, 2, 3]),
        sample(3, [4, 5], reward=1.0, success=False),
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lengths": np.array([1, 3, 3])}, "lengths add up to 7"),
        ({"lengths": np.array([7, 3, -4])}, "lengths of row 2 is -4"),
        (
            {"lengths": np.array([1, 2**32 + 3, 2])},
            "lengths of row 1 is 4294967299; it must be an integer from 0 to 2147483647",
        ),
        ({"lengths": np.array([1, 2.5, 2])}, "lengths of row 1 is 2.5"),
        ({"lengths": np.array([[1, 3, 2]])}, "lengths has shape"),
        ({"tokens": -np.arange(6)}, "tokens of row 1 is -1"),
        ({"tokens": np.array([0, 0, 0, 0, 2**32, 0])}, "tokens of row 2 is 4294967296"),
        ({"tokens": np.arange(6) + 0.5}, "tokens must be integers"),
        ({"tokens": np.array(7)}, "tokens of shape"),
        ({"sample_ids": ["a", "b", 3.0]}, "sample_ids of row 2 is 3.0"),
        ({"sample_ids": ["a", True, 3]}, "sample_ids of row 1 is True"),
        ({"sample_ids": ["a", "b"]}, "lengths has shape"),
        ({"reward": np.array([0, np.nan, np.inf])}, "reward of row 2 is inf"),
        ({"reward": np.array(["1", "2", "3"])}, "reward must be numbers"),
        ({"difficulty": np.array([0.5, 0.5, 2.0])}, "difficulty of row 2 is 2.0; it must be between 0 and 1"),
        ({"success": np.array([1, 2, 0])}, "success of row 1 is 2; it must be an integer from -1 to 1"),
        ({"success": np.array([257, 1, 0])}, "success of row 0 is 257"),
        ({"success": np.array([1, 1, np.nan])}, "success of row 2 is nan"),
        ({"learned": np.array([0, 1, 1, 1, 256, 1])}, "learned of row 2 is 256; it must be an integer from 0 to 1"),
        ({"learned": np.array([0.5, 1, 1, 1, 1, 1])}, "learned of row 0 is 0.5"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_samples_are_refused_before_they_are_cast(changed, message):
    given = {"sample_ids": ["a", "b", 3], "tokens": np.arange(6), "lengths": np.array([1, 3, 2])}
    with pytest.raises(DataError, match=message):
        Entries.of_columns(**given | changed)


def test_columns_may_be_empty_or_of_any_type_that_holds_the_values():
    assert len(Entries.of_columns([], [], [])) == 0
    entries = Entries.of_columns(
        ["a", "b"],
        np.array([1, 2, 3], np.uint64),
        np.array([1.0, 2.0]),
        learned=np.array([True, False, True]),
        reward=np.array([1, -1]),
    )
    assert (entries.columns["length"].tolist(), entries.learned.tolist(), entries.columns["reward"].tolist()) == (
        [1, 2],
        [1, 0, 1],
        [1, -1],
    )


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30),
    st.sampled_from([np.uint16, np.int32, np.uint8]),
)
def test_stretches_are_gathered_by_the_kernel_as_by_its_twin(pairs, kind):
    source = np.arange(40).astype(kind)
    begin, lengths = np.array([start for start, _ in pairs], np.int64), np.array([size for _, size in pairs], np.int32)
    expected = [value for start, size in pairs for value in range(start, start + size)]
    assert columns.gather(source, begin, lengths).tolist() == expected
    with uncompiled() as patch:
        patch.setattr(columns, "CHUNK", 4)
        assert columns.gather(source, begin, lengths).tolist() == expected
        if kind is np.uint16:
            assert columns.gather(source, begin, lengths, np.empty(len(expected), np.int32)).tolist() == expected


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1)), max_size=60))
def test_the_kernel_finds_what_differs_as_its_twin_does(numbers):
    numbers = np.array(numbers, np.int64)
    fast = replay_draw.distinct(numbers).tolist()
    with uncompiled():
        assert replay_draw.distinct(numbers).tolist() == fast == list(dict.fromkeys(numbers.tolist()))
    with pytest.raises(ValueError, match="do not fit"):
        replay_draw.kernel.distinct(np.zeros(3, np.int64), np.zeros(2, np.int64))


@pytest.mark.slow
def test_a_buffer_without_the_kernel_draws_the_same():
    def played():
        buffer = ReplayBuffer(max_size=3000, eviction_policy="priority")
        rng = np.random.default_rng(1)
        drawn = []
        for _ in range(8):
            buffer.add_batch([sample(f"{len(drawn)}-{i}", [i]) for i in range(600)], rng.random(600))
            draw = buffer.sample(300)
            buffer.update_priorities(draw.keys, rng.random(300))
            drawn.append((draw.keys.tolist(), draw.weights.tolist(), draw.tokens.tolist()))
        return drawn

    fast = played()
    with uncompiled():
        assert played() == fast


def test_words_can_be_entered_anywhere():
    whole = Words(7, "x").take(50)
    for position in range(30):
        assert Words(7, "x", position).take(20).tolist() == whole[position : position + 20].tolist()
    assert Words(7, "y").take(3).tolist() != whole[:3].tolist()
