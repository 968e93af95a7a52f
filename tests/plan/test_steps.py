"""Steps of a size that is known when planning: whole, balanced, unbiased, and within the budget."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import LONGEST, configs, tables

from brim import BatchingConfig, BatchPlan, LengthCache, OptionError, PackingConfig
from brim.core.errors import DataError
from brim.data.ids import Ids
from brim.plan import CostModel
from brim.plan.cost import ATTENTION_SCALE
from brim.plan.grouping import steps as steps_module
from brim.plan.grouping.steps import Price, Shape, cut_steps
from brim.plan.grouping.windows import Limits, Windows


def share_of_ideal(columns, step, model=CostModel()):  # noqa: B008 - it is immutable
    """The sum of all costs, divided by what all ranks wait for."""
    costs = columns.cost(model).reshape(-1, step)
    return costs.sum() / (step * costs.max(axis=1).sum())


def heavy_tailed(n, seed=0):
    random = np.random.default_rng(seed)
    return np.clip(np.exp(np.log(300) + 0.9 * random.standard_normal(n)), 1, 8192).astype(np.int32)


@pytest.mark.parametrize(
    ("samples", "ranks", "least"), [(20_000, 64, 0.99), (20_000, 256, 0.97), (200_000, 256, 0.995), (20_000, 8, 0.99)]
)
def test_steps_are_whole_and_their_costs_agree(samples, ranks, least):
    table = LengthCache(Ids.rows(samples), heavy_tailed(samples))
    plan = BatchPlan.build(table, BatchingConfig(token_budget=16384, microbatches_per_step=ranks))
    columns = plan.columns(0)
    assert len(columns) % ranks == 0
    assert plan.shard(0, ranks).deal(0).nulls == 0
    assert share_of_ideal(columns, ranks) >= least
    assert columns.slots.max() <= 16384
    free = BatchPlan.build(table, BatchingConfig(token_budget=16384)).get_epoch(0)
    padding = 1 - columns.tokens.sum() / columns.slots.sum()
    assert padding <= free.fill.waste + 0.005
    # The widths of a step are those of the epoch, not those of one end of it.
    steps = columns.width.reshape(-1, ranks).astype(float)
    assert abs(np.corrcoef(steps.mean(axis=1), np.arange(len(steps)))[0, 1]) < 4 / len(steps) ** 0.5


@given(tables(max_size=200), configs(), st.integers(1, 9))
def test_there_are_whole_steps_whenever_there_are_enough_rows(table, config, step):
    config = BatchingConfig.from_dict({**config.to_dict(), "microbatches_per_step": step})
    plan = BatchPlan.build(table, config)
    columns = plan.columns(0)
    rows = len(columns.row_ptr) and int(columns.row_ptr[-1])
    if len(columns) % step:
        assert len(columns) == rows  # every row is a microbatch already
    assert (columns.slots <= config.token_budget).all()
    assert sorted(columns.unit.tolist()) == list(range(len(table)))
    assert plan.deal(0).nulls == 0 or len(columns) == rows


@given(
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=150),
    st.integers(LONGEST, 500),
    st.sampled_from([2, 5, 2**31 - 1]),
    st.integers(1, 12),
    st.sampled_from([None, 16, 200, ATTENTION_SCALE]),
)
def test_the_compiled_cut_is_that_of_its_twin(lengths, budget, rows, step, scale):
    width = np.sort(np.array(lengths, np.int32))[::-1].copy()
    half = len(width) // 2
    bounds = np.array([0, half, len(width)] if half else [0, len(width)])
    windows = Windows(np.arange(len(width), dtype=np.int32), width, bounds)
    price = Price(scale, 7)
    compiled = cut_steps(windows, Limits(budget, rows), price, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_module, "kernel", None)
        plain = cut_steps(windows, Limits(budget, rows), price, step)
    assert np.array_equal(compiled, plain)


def test_a_microbatch_takes_the_target_that_it_misses_least():
    """Rows of 60 fit a target of 120 exactly, and miss one of 100 by 40; those of 50 meet 100."""
    width = np.array([60, 60, 50, 50], np.int32)
    targets, capacity = np.array([16 * 100, 16 * 120]), np.array([1, 1])
    for cut_levels in (steps_module.kernel.cut_levels, None):
        starts = np.empty(2, np.int64)
        limits = Limits(1000, 100)
        if cut_levels is None:
            each = Price(None).each(width)
            count = steps_module._cut_levels_python(width, each, limits, targets, capacity, starts)
        else:
            count = cut_levels(width, 0, 0, *limits, targets, capacity, starts)
        assert (count, starts.tolist()) == (2, [0, 2])


def test_prices_are_exact_to_a_sixteenth_of_a_slot():
    width = np.array([1, 110, 8192, 2**31 - 1], np.int32)
    model = CostModel(per_token=1.0, per_square=1 / 12_288)
    exact = [16 * (w + w * w / 12_288) for w in width.tolist()]
    assert np.all(np.abs(Price.of(model).each(width) - exact) <= 1 + 1e-9 * np.array(exact))
    assert Price.of(model, attention=12_288 * 3).each(width).tolist() == [16 * (w + 3) for w in width.tolist()]
    assert Price.of(CostModel(per_square=0)).each(width).tolist() == [16 * w for w in width.tolist()]


@given(st.sampled_from(steps_module.SHAPES), st.integers(1, steps_module.LEVELS))
def test_targets_fall_from_the_highest_to_the_spread(shape, number):
    levels = shape.levels(number)
    assert levels[0] == 10**6
    assert np.all(np.diff(levels) <= 0)
    assert number == 1 or levels[-1] == 10**6 - 10**4 * shape.spread
    assert Shape(1, 0).levels(number).tolist() == [10**6] * number


def test_another_cost_model_balances_for_another_model():
    table = LengthCache(Ids.rows(20_000), heavy_tailed(20_000))
    narrow = CostModel(per_token=1.0, per_square=1 / 6144)
    plans = {
        cost: BatchPlan.build(table, BatchingConfig(token_budget=16384, microbatches_per_step=64, cost=cost))
        for cost in (None, narrow)
    }
    shares = {cost: share_of_ideal(plan.columns(0), 64, narrow) for cost, plan in plans.items()}
    assert shares[narrow] > 0.98 > 0.9 > shares[None]
    assert plans[None].fingerprint != plans[narrow].fingerprint


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": 500,
}


def test_the_costs_of_a_model_are_its_multiplications(tmp_path):
    """Counted by hand: 4 and 2 heads of 16, a gated MLP, the head; causal attention sees half of the square."""
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 100
    expected = CostModel(per_token=float(3 * layer + 64 * 500), per_square=float(3 * 64))
    (tmp_path / "config.json").write_text('{"n_layer": 1}')
    assert CostModel.of_model(LLAMA) == expected
    assert CostModel.of_model(SimpleNamespace(to_dict=lambda: LLAMA)) == expected
    gpt = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 0x10000, "model_type": "gpt2"}
    assert 12_288 < CostModel.of_model(gpt).attention_scale < 12_288 + 65536 / 24 + 1
    with pytest.raises(DataError, match=r"config\.json is not the config of a causal model: it has no hidden_size"):
        CostModel.of_model(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(DataError, match="it is not JSON"):
        CostModel.of_model(tmp_path / "config.json")
    with pytest.raises(DataError, match="No such file"):
        CostModel.of_model(tmp_path / "absent.json")
    with pytest.raises(DataError, match="hidden_size is -1"):
        CostModel.of_model({**LLAMA, "hidden_size": -1})


def test_two_measurements_tell_tokens_from_squares():
    model = CostModel(per_token=3e-6, per_square=2e-9)
    speeds = [(length, 3e-6 + 2e-9 * length) for length in (256, 2048)]
    found = CostModel.of_speeds(*speeds)
    assert found.attention_scale == model.attention_scale == CostModel.of_speeds(*reversed(speeds)).attention_scale
    with pytest.raises(OptionError, match="both measurements are of samples of 256 tokens"):
        CostModel.of_speeds(speeds[0], speeds[0])
    with pytest.raises(OptionError, match="do not fit a cost model"):
        CostModel.of_speeds((256, 2e-6), (2048, 1e-6))


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"per_token": 0.0}, "the cost of a token must be above 0 and finite, got 0.0"),
        ({"per_token": -1.0}, "got -1.0"),
        ({"per_token": float("nan")}, "got nan"),
        ({"per_square": -0.5}, "the cost of a squared length must be at least 0"),
        ({"per_square": float("inf")}, "got inf"),
        ({"per_square": 0.5}, "must be at most 1/16 of that of a token, got 0.5 and 1.0"),
    ],
)
def test_costs_that_mean_nothing_are_refused(costs, message):
    with pytest.raises(OptionError, match=message):
        CostModel(**costs)


@pytest.mark.parametrize(("samples", "ranks"), [(2_000, 64), (20_000, 256), (2_000, 8), (20_000, 64)])
def test_at_most_a_quarter_more_steps_are_made_than_the_budget_asks_for(samples, ranks):
    table = LengthCache(Ids.rows(samples), heavy_tailed(samples))
    free = BatchPlan.build(table, BatchingConfig(token_budget=16384, window=samples)).num_microbatches(0)
    plan = BatchPlan.build(table, BatchingConfig(token_budget=16384, microbatches_per_step=ranks))
    fewest = -(-free // ranks)
    assert fewest <= plan.num_microbatches(0) // ranks <= fewest + fewest // 4


@pytest.mark.parametrize(("samples", "step"), [(2_000, 8), (5_000, 3), (20_000, 32)])
def test_steps_are_whole_where_most_samples_have_a_microbatch_of_their_own(samples, step):
    """Windows have too few rows to be rounded up to whole steps each."""
    random = np.random.default_rng(0)
    for short in (0.01, 0.05, 0.3):
        alone = random.random(samples) > short
        lengths = np.where(alone, random.integers(513, 1025, samples), random.integers(1, 512, samples))
        table = LengthCache(Ids.rows(samples), lengths.astype(np.int32))
        plan = BatchPlan.build(table, BatchingConfig(token_budget=1024, microbatches_per_step=step))
        fewest = BatchPlan.build(table, BatchingConfig(token_budget=1024, window=samples)).num_microbatches(0)
        assert plan.num_microbatches(0) % step == 0
        assert plan.num_microbatches(0) <= fewest * 1.02 + step


HUGE = ({}, {"window": 5}, {"bucket_edges": (1_000,)}, {"cost": CostModel(per_square=1 / 16), "window": 5})


def huge(longest, options):
    lengths = np.random.default_rng(0).integers(longest // 20, longest, 20, endpoint=True).tolist()
    config = BatchingConfig(token_budget=2**31 - 1, microbatches_per_step=4, **options)
    return BatchPlan.build({str(row): length for row, length in enumerate(lengths)}, config).columns(0)


@pytest.mark.parametrize("options", HUGE)
def test_costs_too_large_to_compute_with_are_refused(options):
    with pytest.raises(OptionError, match=r"steps cannot be balanced by cost where a row has \d+ tokens"):
        huge(2**31 - 1, options)


@pytest.mark.parametrize("options", [*HUGE[:3], {"packing": PackingConfig(max_length=2_000_000, pad_to_max=False)}])
def test_steps_of_very_long_samples_are_whole(options):
    columns = huge(1_000_000, options)
    assert len(columns) % 4 == 0
    assert (columns.slots < 2**31).all()


def test_steps_larger_than_the_data_are_one_step():
    """As many microbatches as there are rows, and empty ones for the other ranks."""
    plan = BatchPlan.build({"a": 3, "b": 2, "c": 2}, BatchingConfig(token_budget=8, microbatches_per_step=5))
    deal = plan.shard(0, 5).deal(0)
    assert (len(plan.columns(0)), deal.steps, deal.nulls) == (3, 1, 2)
