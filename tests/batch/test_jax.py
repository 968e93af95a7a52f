"""Batches for JAX have few shapes, known beforehand, and hold what the plan says and nothing else."""

import os
import threading
from collections import Counter
from importlib import import_module

import numpy as np
import pytest
from support.runs import PACKED, VOCABULARY, make_plan, make_store

from brim import BatchingConfig, MismatchError, OptionError, PackingConfig
from brim.batch.collate import collate

fork_hook = os.register_at_fork


def import_jax():
    """JAX warns whoever forks later in this process, as other tests do. Their children do not use it."""
    os.register_at_fork = lambda **hooks: (
        None if hooks.get("before", print).__module__.startswith("jax") else fork_hook(**hooks)
    )
    try:
        jax = pytest.importorskip("jax")
        jax.numpy.zeros(1).block_until_ready()
        return jax, import_module("brim.batch.jax")
    finally:
        os.register_at_fork = fork_hook


jax, ours = import_jax()
jnp, loader, shapes = jax.numpy, ours.loader, ours.shapes

STORE = make_store(80)
BUCKETS = BatchingConfig.predictable(token_budget=128, num_buckets=4)
EDGES = BatchingConfig.predictable(token_budget=128, bucket_edges=(8, 20, 32), max_sequences=3)
TABLE = np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)


def loss_of(tokens, labels, table, xp):
    """Summed cross entropy of a model that knows the token before: logits are a row of a table."""
    logits = table[tokens[:, :-1]]
    logits = logits - xp.max(logits, axis=-1, keepdims=True)
    scores = logits - xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))
    targets = labels[:, 1:]
    learned = targets >= 0
    return -xp.sum(
        xp.where(learned, xp.take_along_axis(scores, xp.where(learned, targets, 0)[..., None], -1)[..., 0], 0)
    )


@pytest.mark.parametrize("config", [BUCKETS, PACKED, EDGES], ids=["buckets", "packed", "edges"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_one_compilation_for_each_shape_and_the_loss_of_the_batches_as_planned(config, world_size):
    plan = make_plan(STORE, config, num_epochs=2)
    compiled = []

    @jax.jit
    def loss(arrays):
        compiled.append(arrays.tokens.shape)  # runs when it is traced
        return loss_of(arrays.tokens, arrays.labels, jnp.asarray(TABLE), jnp)

    total, seen, met = 0.0, Counter(), set()
    for rank in range(world_size):
        loading = loader(plan, STORE, rank=rank, world_size=world_size)
        for _ in range(2):
            for batch in loading:
                total += float(loss(batch.arrays))
                seen.update((batch.epoch, id) for id in batch.ids)
                met.add(batch.shape)
                assert int((batch.arrays.labels >= 0).sum()) == batch.num_loss_tokens
                assert int((batch.arrays.segment_ids > 0).sum()) == batch.num_tokens
    assert sorted(compiled) == sorted(met)
    assert met <= set(shapes(plan))
    assert len(shapes(plan)) <= (plan.buckets.num_buckets if plan.buckets else 1)
    expected = 0.0
    for epoch in range(2):
        for microbatch in plan.get_epoch(epoch):
            batch = collate(microbatch, STORE)
            expected += loss_of(batch.tokens, batch.labels, TABLE.astype(np.float64), np)
    assert total == pytest.approx(expected, rel=1e-5)
    assert seen == Counter((epoch, i) for epoch in range(2) for i in range(80))


def test_a_batch_is_the_planned_one_with_rows_of_padding_below():
    plan = make_plan(STORE, BUCKETS)
    for batch, microbatch in zip(loader(plan, STORE, pad_id=7), plan.get_epoch(0), strict=True):
        planned = collate(microbatch, STORE, pad_id=7)
        rows = planned.batch_size
        for array, expected, padding in zip(
            batch.arrays,
            (planned.tokens, planned.labels, planned.positions, planned.segment_ids),
            (7, -100, 0, 0),
            strict=True,
        ):
            assert (array.shape, array.dtype) == (batch.shape, jnp.int32)
            assert np.array_equal(array[:rows], expected)
            assert (np.asarray(array[rows:]) == padding).all()
        assert (batch.ids, batch.index, batch.num_tokens) == (planned.ids, planned.index, planned.fill.used)
        assert batch.slots <= plan.config.token_budget


def test_an_empty_microbatch_has_the_smallest_shape():
    plan = make_plan(STORE, BUCKETS, microbatches_per_step=128)  # more than there are rows
    nulls = [batch for batch in loader(plan, STORE, rank=63, world_size=64) if batch.is_null]
    smallest = min(shapes(plan), key=lambda shape: shape[0] * shape[1])
    assert nulls
    for batch in nulls:
        assert batch.shape == smallest
        assert not batch.arrays.segment_ids.any()
        assert (batch.num_tokens, batch.num_loss_tokens, batch.slots) == (0, 0, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BatchingConfig(token_budget=128),
            r"as wide as their longest row.*BatchingConfig.predictable\(...\) or packing",
        ),
        (BatchingConfig(token_budget=128, bucket_edges=(16,)), "as wide as their longest row"),
        (
            BatchingConfig(token_budget=128, packing=PackingConfig(max_length=64, pad_to_max=False)),
            "pack with pad_to_max",
        ),
    ],
)
def test_plans_without_fixed_shapes_are_refused_with_the_way_out(config, message):
    with pytest.raises(OptionError, match=message):
        loader(make_plan(STORE, config), STORE)


def test_a_run_continues_on_another_number_of_ranks():
    plan = make_plan(STORE, BUCKETS, microbatches_per_step=4)
    seen, states = [], []
    for rank in range(2):
        loading = loader(plan, STORE, rank=rank, world_size=2)
        for number, step in enumerate(loading.steps(), 1):
            seen += [id for batch in step for id in batch.ids]
            if number == 2:
                break
        states.append(loading.state_dict())
    assert states[0] == states[1]
    assert states[0]["global_step"] == 2
    for rank in range(3):
        loading = loader(plan, STORE, rank=rank, world_size=3)
        loading.load_state_dict(states[0])
        seen += [id for batch in loading for id in batch.ids]
    assert sorted(seen) == list(range(80))
    assert not [thread for thread in threading.enumerate() if thread.name == "brim-fetch"]


def test_the_plan_must_belong_to_the_data():
    with pytest.raises(MismatchError, match="other lengths"):
        loader(make_plan(make_store(80, seed=1), BUCKETS), STORE)
