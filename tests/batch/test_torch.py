"""The loader gives exactly the planned batches, whatever makes them, and its state is exact whatever was fetched
ahead.
"""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs import CUT, PACKED, PADDED, make_plan, make_store

from brim import BatchPlan, MismatchError, OptionError, Sample
from brim.batch.batch import Batch
from brim.batch.collate import collate
from brim.batch.torch import PlanBatchSampler, PlannedRows, TensorBatch, TokenDataset, as_inputs, as_is, loader
from brim.core.columns import write_columns
from brim.data.rows.open import open_source
from brim.data.samples import Samples
from brim.data.synthetic import write_sample_data
from brim.data.token_store import FORMAT, TokenStore
from brim.data.tokenizer.base import load_tokenizer
from brim.plan.store import save_shards

STORE = make_store()

# Of Python 3.12 about threads of the parent, and of torch on a machine with one core.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
]


def same(tensors: TensorBatch, batch: Batch) -> bool:
    arrays = {
        "input_ids": batch.tokens,
        "labels": batch.labels,
        "position_ids": batch.positions,
        "segment_ids": batch.segment_ids,
        "cu_seqlens": batch.cu_seqlens,
    }
    values = {
        name: getattr(batch, name)
        for name in ("ids", "epoch", "index", "packed", "longest", "num_loss_tokens", "is_null")
    }
    return (
        all(np.array_equal(getattr(tensors, name).numpy(), array) for name, array in arrays.items())
        and all(getattr(tensors, name) == value for name, value in values.items())
        and (tensors.num_tokens, tensors.slots) == (batch.fill.used, batch.fill.slots)
        and tensors.after == batch.after
    )


def expected(plan, source, *, flat, epoch=0):
    return [collate(microbatch, source, dtype=np.int64, flat=flat) for microbatch in plan.get_epoch(epoch)]


def stored(store, path):
    """The same store, mapped from a file."""
    meta = {"pad_id": store.pad_id, "dataset_hash": "", "tokenizer_hash": ""}
    write_columns(
        path,
        FORMAT,
        meta,
        {"tokens": store.tokens.astype(np.uint16), "learned": store.learned, "length": store.lengths},
    )
    return TokenStore.load(path)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    write_sample_data(path, 20)
    return Samples(open_source(path), load_tokenizer("byte"))


# Batches


@pytest.mark.parametrize("config", [PACKED, PADDED, CUT], ids=["packed", "padded", "cut"])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_batch_is_the_collated_microbatch_of_the_plan(config, flat, world_size):
    plan = make_plan(STORE, config, microbatches_per_step=4, num_epochs=2)
    for rank, epoch in itertools.product(range(world_size), range(2)):
        loading = loader(plan, STORE, rank=rank, world_size=world_size, flat=flat)
        loading.set_epoch(epoch)
        batches = list(loading)
        share = plan.shard(rank, world_size)
        assert all(map(same, batches, expected(share, STORE, flat=flat, epoch=epoch)))
        assert len(batches) == share.num_microbatches(epoch)


def test_packed_plans_are_flat_by_default_and_others_are_not():
    assert {batch.is_flat for batch in loader(make_plan(STORE, PACKED), STORE)} == {True}
    assert False in {batch.is_flat for batch in loader(make_plan(STORE, PADDED), STORE)}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["memory", "mapped", "samples"])
def test_workers_give_the_same_batches_in_the_same_order(workers, kind, samples, tmp_path):
    source = {"memory": STORE, "mapped": stored(STORE, tmp_path / "tokens.brim"), "samples": samples}[kind]
    plan = BatchPlan.build(
        {i: len(source.sample(i).tokens) for i in range(len(source))}, replace(PADDED, token_budget=4096), num_epochs=2
    )
    loading = loader(plan, source, num_workers=workers, multiprocessing_context="fork" if workers else None)
    for epoch in range(2):  # workers stay for the second
        assert all(map(same, loading, expected(plan, source, flat=False, epoch=epoch)))
    assert loading.epoch == 2


def test_spawned_workers_give_the_same_batches(samples, tmp_path):
    """In a process of its own, because a spawned worker imports the main module."""
    plan = BatchPlan.build({i: sample.length for i, sample in enumerate(samples)}, replace(PADDED, token_budget=4096))
    plan.save(tmp_path / "plan")
    stored(make_store(20), tmp_path / "tokens.brim")
    script = f"""
import sys
from brim import BatchPlan
from brim.batch.torch import loader
from brim.data.samples import Samples
from brim.data.rows.open import open_source
from brim.data.tokenizer.base import load_tokenizer
if __name__ == "__main__":
    plan = BatchPlan.load({str(tmp_path / "plan")!r})
    samples = Samples(open_source({str(samples.source.path)!r}), load_tokenizer("byte"))
    for batch in loader(plan, samples, num_workers=1, multiprocessing_context="spawn"):
        print(batch.index, *batch.ids, int(batch.input_ids.sum()), int(batch.labels.sum()))
"""
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / "main.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Python's resource tracker may talk at the end, about workers that are gone.
    assert done.returncode == 0, done.stderr
    batches = [TensorBatch.of(batch) for batch in expected(plan, samples, flat=False)]
    assert done.stdout.splitlines() == [
        " ".join(str(value) for value in (batch.index, *batch.ids, int(batch.input_ids.sum()), int(batch.labels.sum())))
        for batch in batches
    ]


def test_what_a_spawned_worker_gets_is_small(tmp_path):
    """A mapped store and a stored plan are pickled as their paths."""
    source = stored(make_store(2000), tmp_path / "tokens.brim")
    plan = make_plan(source)
    plan.save(tmp_path / "plan")
    loaded = BatchPlan.load(tmp_path / "plan")
    list(loaded.get_epoch(0))  # opened, mapped and all
    for value in (TokenDataset(source), loaded, loaded.shard(1, 2)):
        assert len(pickle.dumps(value)) < 8_000
    again = pickle.loads(pickle.dumps(loaded.shard(1, 2)))
    assert list(again.get_epoch(0)) == list(plan.shard(1, 2).get_epoch(0))


def test_the_lists_of_a_sampler_are_those_of_any_batch_sampler():
    plan = make_plan(STORE)
    assert [list(rows) for rows in PlanBatchSampler(plan)] == [
        microbatch.indices.tolist() for microbatch in plan.get_epoch(0)
    ]
    rows = next(iter(PlanBatchSampler(plan)))
    again = pickle.loads(pickle.dumps(rows))
    assert (again, again.microbatch, again.ends_step) == (rows, rows.microbatch, rows.ends_step)
    ids = [torch.utils.data.DataLoader(range(60), batch_sampler=PlanBatchSampler(plan), collate_fn=list)]
    assert sorted(itertools.chain(*itertools.chain(*ids))) == list(range(60))


def test_a_pickled_batch_has_its_own_rows_and_nothing_else_of_the_epoch():
    sizes = []
    for count in (60, 6000):
        source = make_store(count)
        spec = max(make_plan(source).get_epoch(0), key=lambda spec: len(spec.samples))
        batch = TensorBatch.of(collate(spec, source, dtype=np.int64))
        again = pickle.loads(pickle.dumps(batch))
        assert again.spec == batch.spec == spec
        assert [again.spec.indices.dtype, again.spec.lengths.dtype] == [spec.indices.dtype, spec.lengths.dtype]
        assert (again.ids, again.after, again.ends_step) == (batch.ids, batch.after, batch.ends_step)
        sizes.append(len(pickle.dumps(spec)) / len(spec.samples))
    assert sizes[1] < 1.5 * sizes[0]


def test_a_data_set_gives_single_samples_and_refuses_lists_that_no_plan_made():
    dataset = TokenDataset(TokenStore.from_samples([Sample("a", [5, 6, 7], [0, 1, 0])]))
    assert {name: tensor.tolist() for name, tensor in dataset[0].items()} == {
        "input_ids": [5, 6, 7],
        "labels": [-100, 6, -100],
    }
    assert len(dataset) == 1
    with pytest.raises(OptionError, match="pass one as batch_sampler"):
        dataset.__getitems__([0])


@pytest.mark.parametrize("flat", [True, False])
def test_inputs_are_what_a_model_takes(flat):
    batch = TensorBatch.of(expected(make_plan(STORE, PACKED), STORE, flat=flat)[0])
    if flat:
        inputs = batch.inputs()
        assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, batch.num_tokens)
        assert inputs["cu_seq_lens_q"] is inputs["cu_seq_lens_k"] is batch.cu_seqlens
        assert inputs["max_length_q"] == inputs["max_length_k"] == max(np.diff(batch.cu_seqlens.numpy()))
        assert as_inputs(batch).keys() == {*inputs, "labels"}
    else:
        with pytest.raises(OptionError, match="packed rows must be flat"):
            batch.inputs()
    padded = TensorBatch.of(expected(make_plan(STORE, PADDED), STORE, flat=False)[0])
    assert padded.inputs() == {"input_ids": padded.input_ids, "use_cache": False}


def test_a_null_microbatch_is_one_token_of_padding_that_counts_for_nothing():
    plan = make_plan(STORE, PACKED, microbatches_per_step=64)
    for flat in (True, False):
        nulls = [batch for batch in loader(plan, STORE, rank=63, world_size=64, flat=flat, pad_id=7) if batch.is_null]
        assert nulls
        for batch in nulls:
            assert (batch.input_ids.tolist(), batch.labels.tolist(), batch.segment_ids.tolist()) == (
                [[7]],
                [[-100]],
                [[0]],
            )
            assert (batch.num_tokens, batch.num_loss_tokens, batch.slots, batch.ids) == (0, 0, 0, ())
            assert batch.inputs()["cu_seq_lens_q"].tolist() == [0, 1]


def test_to_moves_every_tensor_and_nothing_else():
    batch = next(iter(loader(make_plan(STORE), STORE)))
    moved = batch.to("meta")
    assert {
        getattr(moved, name).device.type
        for name in ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")
    } == {"meta"}
    assert (moved.ids, moved.after) == (batch.ids, batch.after)


@pytest.mark.parametrize("workers", [0, 1])
def test_asked_to_pin_memory_without_an_accelerator_it_does_not_warn(workers):
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert list(loader(make_plan(STORE), STORE, num_workers=workers, pin_memory=True))


# Length


@settings(max_examples=40)
@given(st.integers(0, 3), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.data())
def test_len_is_exact_wherever_the_next_iteration_begins(seed, step, world_size, whole_run, data):
    plan = make_plan(make_store(30, seed=seed), microbatches_per_step=step, num_epochs=2, seed=seed)
    rank = data.draw(st.integers(0, world_size - 1))
    sampler = PlanBatchSampler(plan, rank=rank, world_size=world_size, whole_run=whole_run)
    total = len(sampler)
    rows = list(sampler)
    assert len(rows) == total
    if whole_run:
        assert len(sampler) == total
        return
    assert len(sampler) == len(list(sampler))
    assert len(sampler) == 0
    sampler.load_state_dict(asdict(data.draw(st.sampled_from(rows)).microbatch.after))
    assert len(sampler) == len(list(sampler))


def test_len_does_not_change_while_an_iteration_is_under_way_and_is_the_next_epochs_after_it():
    plan = make_plan(make_store(300), num_epochs=2)
    counts = [plan.num_microbatches(0), plan.num_microbatches(1)]
    loading = loader(plan, make_store(300))
    assert {len(loading) for _ in itertools.islice(loading, counts[0] - 1)} == {counts[0]}
    assert sum(1 for _ in loading) == counts[0]
    assert len(loading) == counts[1]


# Positions


def run_stopped(plan, source, history, **options):
    """Train in steps on some number of ranks, stop after some batches of a later step, go on from the state on other
    ranks.

    The samples of the steps that are done, by epoch. A step counts when all of its batches were handed out on all
    ranks.
    """
    seen, state = [], None
    for world_size, stop in [*history, (2, None)]:
        ranks = [loader(plan, source, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
        for loading in ranks:
            if state is not None:
                loading.load_state_dict(json.loads(json.dumps(state)))
        given = 0
        while ranks[0].epoch < plan.num_epochs and (stop is None or given < stop):
            pending = []
            iterators = [iter(loading) for loading in ranks]
            for batches in zip(*iterators, strict=True):
                given += 1
                pending += [(batch.epoch, id) for batch in batches for id in batch.ids]
                assert len({batch.ends_step for batch in batches}) == 1
                if batches[0].ends_step:
                    seen += pending
                    pending = []
                if given == stop:
                    break
            for iterator in iterators:
                iterator.close()
        states = [loading.state_dict() for loading in ranks]
        assert all(each == states[0] for each in states)
        state = states[0]
    assert state["epoch"] == plan.num_epochs
    return seen, state


@settings(max_examples=60)
@given(
    st.integers(0, 5),
    st.integers(1, 5),
    st.sampled_from([PACKED, PADDED, CUT]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=3),
    st.sampled_from([0, 2]),
    st.booleans(),
)
def test_stopped_anywhere_and_continued_on_any_number_of_ranks_nothing_is_repeated_or_skipped(
    seed, step, config, history, prefetch, whole_run
):
    source = make_store(25, seed=seed)
    plan = make_plan(source, config, microbatches_per_step=step, num_epochs=2)
    seen, state = run_stopped(plan, source, history, prefetch=prefetch, whole_run=whole_run)
    assert Counter(seen) == Counter(
        (epoch, id) for epoch in range(2) for microbatch in plan.get_epoch(epoch) for id in microbatch.samples
    )
    assert state["global_step"] == sum(plan.deal(epoch).steps for epoch in range(2))


def test_a_plan_that_does_not_fix_its_steps_keeps_those_of_the_run_that_began():
    plan = make_plan(STORE, num_epochs=2)
    seen, state = run_stopped(plan, STORE, [(4, 2), (3, 1), (1, 5)])
    assert Counter(seen) == Counter((epoch, i) for epoch in range(2) for i in range(60))
    assert state["microbatches_per_step"] == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_after_every_batch_is_the_next_undone_step(workers):
    """However far a thread or the workers are ahead."""
    plan = make_plan(STORE, microbatches_per_step=3)
    whole = [batch.index for batch in loader(plan, STORE)]
    loading = loader(plan, STORE, num_workers=workers, prefetch=4)
    for done, batch in enumerate(loading, 1):
        position = loading.position
        steps = done // 3 if done < len(whole) else -(-done // 3)
        assert position.global_step == steps
        assert (position.epoch, position.microbatch_idx) == ((0, steps * 3) if done < len(whole) else (1, 0))
        again = loader(plan, STORE)
        again.load_state_dict(loading.state_dict())
        if not position.epoch:
            assert [other.index for other in again] == whole[steps * 3 :]
        assert batch.index == whole[done - 1]


def test_steps_are_lists_of_the_batches_of_one_optimizer_step():
    plan = make_plan(STORE, microbatches_per_step=4)
    for rank in range(3):
        loading = loader(plan, STORE, rank=rank, world_size=3)
        steps = list(loading.steps())
        assert len(steps) == plan.deal(0).steps
        assert (
            [len(step) for step in steps[:-1]]
            == [loading.batches_per_step] * (len(steps) - 1)
            == [2] * (len(steps) - 1)
        )
        assert [[batch.ends_step for batch in step] for step in steps] == [
            [False] * (len(step) - 1) + [True] for step in steps
        ]


def test_an_iteration_that_is_left_early_is_begun_again_unless_its_state_is_loaded():
    plan = make_plan(STORE)
    loading = loader(plan, STORE)
    peeked = next(iter(loading))
    assert next(iter(loading)).index == peeked.index
    assert loading.position.global_step == 1
    loading.load_state_dict(loading.state_dict())
    assert sorted([*peeked.ids, *(id for batch in loading for id in batch.ids)]) == list(range(60))


def test_the_last_batch_ends_the_epoch_also_for_those_who_count_and_do_not_ask_for_more():
    plan = make_plan(STORE, num_epochs=2)
    loading = loader(plan, STORE)
    for epoch in range(2):
        assert loading.epoch == epoch
        batches = list(itertools.islice(loading, len(loading)))
        assert {batch.epoch for batch in batches} == {epoch}
    with pytest.raises(
        OptionError, match="all 2 epochs of the plan are done; plan more of them, or go back with set_epoch"
    ):
        next(iter(loading))
    loading.set_epoch(1)
    assert {batch.epoch for batch in loading} == {1}


def test_set_epoch_goes_to_the_start_of_another_epoch_and_leaves_the_one_under_way_alone():
    plan = make_plan(STORE, num_epochs=3)
    loading = loader(plan, STORE)
    for _ in itertools.islice(loading, 3):
        loading.set_epoch(0)
    state = loading.state_dict()
    assert state["microbatch_idx"] == 3
    loading.load_state_dict(state)
    loading.set_epoch(0)
    assert len(list(loading)) == plan.num_microbatches(0) - 3
    loading.set_epoch(2)
    assert {batch.epoch for batch in loading} == {2}
    with pytest.raises(OptionError, match="epoch 7 does not exist: the plan has epochs 0 to 2"):
        loading.set_epoch(7)


def test_states_that_do_not_belong_are_refused():
    plan = make_plan(STORE)
    loading = loader(plan, STORE)
    other = loader(make_plan(STORE, seed=1), STORE)
    with pytest.raises(MismatchError, match="this position belongs to another plan"):
        loading.load_state_dict(other.state_dict())
    with pytest.raises(MismatchError, match="it holds epic, epoch; pass what state_dict"):
        loading.load_state_dict({"epic": 1, "epoch": 2})
    with pytest.raises(OptionError, match="microbatch 1000 does not exist"):
        loading.load_state_dict({**loading.state_dict(), "microbatch_idx": 1000})
    with pytest.raises(MismatchError, match="the plan has steps of 2 microbatches, not 3"):
        fixed = loader(make_plan(STORE, microbatches_per_step=2), STORE)
        fixed.load_state_dict({**fixed.state_dict(), "microbatches_per_step": 3})


def test_the_plan_must_belong_to_the_data():
    with pytest.raises(MismatchError, match="built for other lengths"):
        loader(make_plan(make_store(60, seed=1)), STORE)
    with pytest.raises(MismatchError, match="it has 59 samples, the data 60"):
        loader(make_plan(make_store(59)), STORE)


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_share_of_a_rank_can_be_followed_and_continued_by_that_rank(on_disk, tmp_path):
    plan = make_plan(STORE, microbatches_per_step=4, num_epochs=2)
    save_shards(plan, tmp_path / "shards", 2)
    for rank in range(2):
        share = BatchPlan.load(tmp_path / "shards" / f"rank_{rank}") if on_disk else plan.shard(rank, 2)
        loading = loader(share, STORE)
        assert all(map(same, loading, expected(plan.shard(rank, 2), STORE, flat=False)))
        whole = [batch.index for batch in loader(plan, STORE, rank=rank, world_size=2)]
        loading = loader(share, STORE)
        for _ in itertools.islice(loading.steps(), 2):
            pass
        again = loader(share, STORE)
        again.load_state_dict(loading.state_dict())
        assert [batch.index for batch in again] == whole[4:]
        with pytest.raises(
            OptionError, match=f"this plan is the share of rank {rank} of 2, not of rank 0 of 3; pass the whole plan"
        ):
            loader(share, STORE, rank=0, world_size=3)
        if on_disk:
            with pytest.raises(OptionError, match="continue from the whole plan instead"):
                again.load_state_dict({**again.state_dict(), "microbatch_idx": 1})


def test_ranks_are_those_of_the_launcher_unless_given(monkeypatch):
    plan = make_plan(STORE)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert (loader(plan, STORE).plan.rank, loader(plan, STORE).plan.world_size) == (1, 2)
    assert loader(plan, STORE, rank=0, world_size=1).plan.world_size == 1
    with pytest.raises(OptionError, match="give rank and world_size, or neither; got rank 1 and world_size None"):
        loader(plan, STORE, rank=1)


def test_an_epoch_of_which_everything_is_dropped_is_passed_over():
    plan = make_plan(STORE, microbatches_per_step=1000, remainder="drop", num_epochs=2)
    loading = loader(plan, STORE)
    for epoch in (0, 1):
        assert (loading.epoch, len(loading), list(loading)) == (epoch, 0, [])
    assert loading.state_dict()["epoch"] == 2


# The whole run as one iteration


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("remainder", ["null", "repeat", "drop"])
def test_a_whole_run_is_all_epochs_in_steps_of_equally_many_batches(world_size, remainder):
    plan = make_plan(STORE, microbatches_per_step=4, remainder=remainder, num_epochs=3)
    steps = sum(plan.deal(epoch).steps for epoch in range(3))
    ranks = [loader(plan, STORE, rank=rank, world_size=world_size, whole_run=True) for rank in range(world_size)]
    size = -(-4 // world_size)
    seen = []
    for loading in ranks:
        batches = list(loading)
        assert len(batches) == len(loading) == steps * size
        assert [batch.ends_step for batch in batches] == ([False] * (size - 1) + [True]) * steps
        assert loading.batches_per_step == size
        assert loading.position.global_step == steps
        seen += [(batch.epoch, batch.index) for batch in batches if not batch.is_null]
    assert sorted(seen) == sorted(
        (epoch, microbatch.index)
        for epoch in range(3)
        for microbatch in plan.shard(0, 1).get_epoch(epoch)
        if not microbatch.is_null
    )


def test_a_whole_run_is_one_epoch_to_a_trainer():
    sampler = PlanBatchSampler(make_plan(STORE, num_epochs=2), whole_run=True)
    sampler.set_epoch(0)
    list(sampler)
    with pytest.raises(OptionError, match="so there is no epoch 1: let the trainer run for 1 epoch"):
        sampler.set_epoch(1)
    with pytest.raises(OptionError, match="all 2 epochs of the plan are done; let the trainer run for 1 epoch"):
        list(sampler)


# Threads and workers that end


def fetchers():
    return [thread for thread in threading.enumerate() if thread.name == "brim-fetch"]


def test_the_thread_ends_when_the_loop_is_left():
    for stop in (1, 3):
        for number, _ in enumerate(loader(make_plan(STORE), STORE), 1):
            assert len(fetchers()) == 1
            if number == stop:
                break
        assert fetchers() == []
    iterator = iter(loader(make_plan(STORE), STORE))
    next(iterator)
    del iterator
    assert fetchers() == []
    assert list(loader(make_plan(STORE), STORE))
    assert fetchers() == []


def test_the_thread_ends_when_the_body_of_the_loop_raises():
    with pytest.raises(ZeroDivisionError):
        for _ in loader(make_plan(STORE), STORE, prefetch=1):
            1 / 0  # noqa: B018
    assert fetchers() == []


class Breaking:
    """A source that cannot read one of its rows."""

    def __init__(self, store, row):
        self.store, self.row = store, row
        self.pad_id, self.dataset_hash, self.tokenizer_hash = 0, "", ""

    def __len__(self):
        return len(self.store)

    def sample(self, row):
        return self.store.sample(row)

    def spans(self, rows, starts, lengths):
        if self.row in rows:
            raise OSError("row is gone")
        return self.store.spans(rows, starts, lengths)


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (0, 3), (1, 2)])
def test_an_error_comes_where_its_batch_would_have_come(workers, prefetch):
    plan = make_plan(STORE)
    order = list(plan.get_epoch(0))
    number = len(order) // 2
    loading = loader(plan, Breaking(STORE, int(order[number].indices[0])), num_workers=workers, prefetch=prefetch)
    iterator = iter(loading)
    assert [next(iterator).index for _ in range(number)] == list(range(number))
    with pytest.raises(OSError, match="row is gone"):
        next(iterator)
    assert loading.position.microbatch_idx == number
    assert fetchers() == []


class Dying(Breaking):
    """A source whose reading kills the process."""

    def spans(self, rows, starts, lengths):
        if self.row in rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.store.spans(rows, starts, lengths)


# torch looks at all workers whenever one ends, and so finds the dead one again while it stops the others.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function _MultiProcessingDataLoaderIter.__del__"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_a_worker_that_is_killed_is_an_error_and_not_a_hang():
    plan = make_plan(STORE)
    row = int(plan.get_epoch(0)[3].indices[0])
    loading = loader(plan, Dying(STORE, row), num_workers=2, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (is killed by signal: Killed|exited unexpectedly)"):
        for _ in loading:
            pass


def test_workers_end_with_the_loader_that_started_them():
    """At once: it is in no cycle, which a collector would break in whichever process it happens to run."""
    loading = loader(make_plan(STORE), STORE, num_workers=1)
    next(iter(loading))
    gone = weakref.ref(loading)
    del loading
    assert gone() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers must not be negative, got -1"),
        ({"prefetch": -1}, "-1"),
        ({"multiprocessing_context": "fork"}, "give num_workers too"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        loader(make_plan(STORE), STORE, **options)


def test_planned_rows_go_through_a_plain_data_loader():
    plan = make_plan(STORE, num_epochs=2)
    plain = torch.utils.data.DataLoader(TokenDataset(STORE), batch_sampler=PlanBatchSampler(plan), collate_fn=as_is)
    assert isinstance(next(iter(plain.batch_sampler)), PlannedRows)
    for epoch in range(2):
        assert len(plain) == plan.num_microbatches(epoch)
        assert all(map(same, plain, expected(plan, STORE, flat=False, epoch=epoch)))
