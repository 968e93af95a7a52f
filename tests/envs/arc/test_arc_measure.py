"""Times and memory of batches. Clocks and lacks of memory are made up, so that no result depends on the machine."""

import inspect
import math
import statistics
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, OptionError
from brim.envs.arc import (
    BatchPerformanceMonitor,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    analyze_memory_usage,
    batch_reset,
    batch_step,
    create_mock_task,
    find_optimal_batch_size,
    inspect_batch_states,
    measure,
    split_key,
    take_states,
    warm_up_batch_functions,
)

TASK = create_mock_task()
ON_NUMPY, ON_JAX = {"arrays": "numpy"}, {"arrays": "jax"}
ARRAYS = [pytest.param(ON_NUMPY, id="numpy"), pytest.param(ON_JAX, id="jax", marks=pytest.mark.jax)]
KEYS = ("per_env_time", "throughput", "total_time")


def config_of(selection_format="point", engine="auto"):
    return JaxArcConfig(
        environment=EnvironmentConfig(engine=engine), action=UnifiedActionConfig(selection_format=selection_format)
    )


def fill(batch):
    return PointAction(*(np.full(batch, part, np.int32) for part in (0, 5, 5)))


@contextmanager
def device(seconds_of):
    """A clock that stands still, except while something waits for the result of a reset or a step. That takes the
    seconds that the function gives for the number of environments."""
    now = [0.0]

    def wait(result):
        if getattr(result[1], "dtype", None) == np.uint8:  # observations, so it is such a result
            now[0] += seconds_of(len(result[1]))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "perf_counter", lambda: now[0])
        patch.setattr(measure, "_wait", wait)
        yield


@pytest.fixture
def briefly(monkeypatch):
    """Time every batch size as briefly as possible."""
    monkeypatch.setattr(measure, "ENOUGH_SECONDS", 0.0)


# The best batch size.


@given(st.integers(1, 200))
@settings(max_examples=10)
def test_powers_of_two_are_timed_up_to_the_largest_size(most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "ENOUGH_SECONDS", 0.0)
        best, found = find_optimal_batch_size(config_of(), TASK, most, **ON_NUMPY)
    assert list(found) == [2**power for power in range(8) if 2**power <= most]
    assert best in found
    for size, times in found.items():
        assert tuple(times) == KEYS
        assert {type(value) for value in times.values()} == {float}
        assert math.isclose(times["per_env_time"] * size, times["total_time"])
        assert math.isclose(times["throughput"] * times["total_time"], size)


def test_the_best_size_is_the_smallest_with_95_percent_of_the_best_throughput():
    """Up to eight environments take as long as one; from there on, time grows with their number."""
    with device(lambda size: {16: 1.96, 32: 3.9, 64: 8.0}.get(size, 1.0)):
        best, found = find_optimal_batch_size(config_of(), TASK, 64, **ON_NUMPY)
    assert max(found, key=lambda size: found[size]["throughput"]) == 32
    assert best == 8
    assert found[16] == pytest.approx({"per_env_time": 1.96 / 16, "throughput": 16 / 1.96, "total_time": 1.96})


@pytest.mark.jax
@pytest.mark.usefixtures("briefly")
def test_the_best_size_is_found_under_jax():
    best, found = find_optimal_batch_size(config_of(), TASK, 4, **ON_JAX)
    assert list(found) == [1, 2, 4]
    assert best in found


@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes\nmore")],
)
@pytest.mark.usefixtures("briefly")
def test_a_size_that_runs_out_of_memory_ends_the_search_with_what_fitted(error, monkeypatch):
    def limited(states, actions, config):
        if states.batch_size > 4:
            raise error
        return batch_step(states, actions, config)

    monkeypatch.setattr(measure, "batch_step", limited)
    best, found = find_optimal_batch_size(config_of(), TASK, **ON_NUMPY)
    assert list(found) == [1, 2, 4]
    assert best in found


@pytest.mark.usefixtures("briefly")
def test_a_size_that_would_run_out_of_memory_is_not_tried(monkeypatch):
    """On the host, where the process would be killed for it. One environment takes about 12 KB, two steps of it."""
    tried = []

    def counted(states, actions, config):
        tried.append(states.batch_size)
        return batch_step(states, actions, config)

    monkeypatch.setattr(measure, "batch_step", counted)
    monkeypatch.setattr(measure, "memory_available", lambda: 100_000)
    _, found = find_optimal_batch_size(config_of(), TASK, **ON_NUMPY)
    assert set(tried) == set(found)
    assert 4 <= max(found) <= 16


def test_other_failures_are_raised(monkeypatch):
    def broken(states, actions, config):
        raise RuntimeError("a bug")

    monkeypatch.setattr(measure, "batch_step", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        find_optimal_batch_size(config_of(), TASK, **ON_NUMPY)


def test_if_nothing_fits_the_error_says_so(monkeypatch):
    def too_small(states, actions, config):
        raise MemoryError("no room")

    monkeypatch.setattr(measure, "batch_step", too_small)
    with pytest.raises(BrimError, match=r"^not even one environment fits into the memory: no room$"):
        find_optimal_batch_size(config_of(), TASK, **ON_NUMPY)
    with pytest.raises(OptionError, match=r"^max_batch_size must be at least 1, got 0$"):
        find_optimal_batch_size(config_of(), TASK, 0)


# Memory.


@pytest.mark.parametrize("given_arrays", ARRAYS)
def test_memory_is_that_of_all_arrays_with_the_bank_apart(given_arrays):
    found = analyze_memory_usage(config_of(), TASK, **given_arrays)
    assert list(found) == [1, 16, 64, 256]
    states, obs = batch_reset(split_key(0, 4, **given_arrays), config_of(), TASK)
    mb = 2**20
    bank_mb = sum(leaf.nbytes for leaf in states.bank if leaf is not None) / mb
    for batch, used in found.items():
        assert used == {
            "total_mb": used["state_mb"] + used["obs_mb"],
            "per_env_mb": used["total_mb"] / batch,
            "state_mb": sum(leaf.nbytes for leaf in states[1:] if leaf is not None) * batch / 4 / mb,
            "obs_mb": obs.nbytes * batch / 4 / mb,
            "bank_mb": bank_mb,
        }


@pytest.mark.jax
def test_the_engine_in_jax_keeps_seventeen_words_for_a_row_and_thirteen_more():
    """Four planes of the working grid, the clipboard, the input and the target, the selection; and twelve numbers, one
    of them a key."""
    used = analyze_memory_usage(config_of(engine="jax"), TASK, [8])[8]
    assert used["state_mb"] * 2**20 == 8 * 4 * (17 * 30 + 13)
    assert used["bank_mb"] > analyze_memory_usage(config_of(), TASK, [8])[8]["bank_mb"], "it holds planes as well"


def test_a_state_takes_at_most_4_kb():
    assert analyze_memory_usage(config_of(), TASK, [1], **ON_NUMPY)[1]["per_env_mb"] * 1024 <= 4


# Compilation.


@pytest.mark.jax
def test_after_a_warm_up_nothing_is_compiled():
    from brim.envs.arc.engine import compiled

    config = config_of(selection_format="point")
    seconds = warm_up_batch_functions(5, config, TASK)
    assert type(seconds) is float
    before = compiled._reset._cache_size(), compiled._step._cache_size()
    states, _ = batch_reset(split_key(1, 5, **ON_JAX), config, TASK)
    actions = PointAction(*(states.step_count for _ in range(3)))
    batch_step(states, actions, config)
    assert (compiled._reset._cache_size(), compiled._step._cache_size()) == before


@pytest.mark.parametrize(
    ("selection_format", "kind"), [("point", PointAction), ("bbox", BboxAction), ("mask", MaskAction)]
)
def test_every_format_can_be_warmed_up(selection_format, kind, monkeypatch):
    seen = []

    def recorded(states, actions, config):
        seen.append((states.batch_size, type(actions)))
        return batch_step(states, actions, config)

    monkeypatch.setattr(measure, "batch_step", recorded)
    small = JaxArcConfig(
        dataset=UnifiedDatasetConfig(max_grid_height=2, max_grid_width=3),
        action=UnifiedActionConfig(selection_format=selection_format, allowed_operations=(3, 34)),
    )
    assert warm_up_batch_functions(3, small, JaxArcTask("one", [([[1]], [[2]])]), **ON_NUMPY) > 0
    assert seen == [(3, kind)]
    with pytest.raises(OptionError, match=r"^batch_size must be at least 1, got 0$"):
        warm_up_batch_functions(0, small, TASK)


# Inspection.


@pytest.mark.parametrize("given_arrays", ARRAYS)
def test_inspection_shows_some_environments_in_plain_values(given_arrays):
    config = config_of()
    states, _ = batch_reset(split_key(0, 4, **given_arrays), config, TASK)
    for _ in range(2):
        states = batch_step(states, fill(4), config).states
    found = inspect_batch_states(states, [3, 1, 7])
    assert (found["batch_size"], found["grid_shape"]) == (4, (30, 30))
    assert list(found["environments"]) == [3, 1]
    for index, shown in found["environments"].items():
        cells = np.asarray(states.working_grid)[index]
        assert shown == {
            "step_count": 2,
            "similarity": float(states.similarity_score[index]),
            "episode_done": False,
            "unique_colors": sorted(set(cells[cells < 10].tolist())),
        }
        assert [type(value) for value in shown.values()] == [int, float, bool, list]
    assert list(inspect_batch_states(states)["environments"]) == [0, 1, 2]


def test_inspection_takes_a_batch_and_numbers_of_its_environments():
    states, _ = batch_reset(split_key(0, 2, **ON_NUMPY), config_of(), TASK)
    assert list(inspect_batch_states(states)["environments"]) == [0, 1]
    assert inspect_batch_states(states, [])["environments"] == {}
    with pytest.raises(DataError, match=r"^indices must not be negative, got \[0, -1\]$"):
        inspect_batch_states(states, [0, -1])
    for wrong in (take_states(states, 0), (states, None)):
        with pytest.raises(DataError, match=r"^inspect_batch_states takes the states of a batch"):
            inspect_batch_states(wrong)


# The monitor.


def test_without_data_the_means_are_not_numbers_and_the_counts_are_0():
    stats = BatchPerformanceMonitor().get_stats()
    counts = {name: stats.pop(name) for name in ("total_operations", "compile_time_total")}
    assert counts == {"total_operations": 0, "compile_time_total": 0}
    assert list(stats) == ["reset_time_mean", "reset_time_std", "step_time_mean", "step_time_std", "avg_batch_size"]
    assert all(math.isnan(value) for value in stats.values())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=10)
def test_times_are_those_of_waiting_and_statistics_are_over_all_of_them(sizes):
    monitor = BatchPerformanceMonitor()
    with device(lambda size: size):
        for size in sizes:
            states, _ = monitor.time_batch_reset(split_key(0, size, **ON_NUMPY), config_of(), TASK)
            monitor.time_batch_step(states, fill(size), config_of())
    assert monitor.reset_times == monitor.step_times == sizes
    assert monitor.batch_sizes == [size for size in sizes for _ in range(2)]
    assert monitor.compile_times == []
    assert monitor.get_stats() == {
        "reset_time_mean": statistics.fmean(sizes),
        "reset_time_std": statistics.pstdev(sizes),
        "step_time_mean": statistics.fmean(sizes),
        "step_time_std": statistics.pstdev(sizes),
        "avg_batch_size": statistics.fmean(sizes),
        "total_operations": 2 * len(sizes),
        "compile_time_total": 0.0,
    }


@pytest.mark.jax
def test_the_first_call_for_a_shape_or_a_configuration_is_timed_apart():
    monitor = BatchPerformanceMonitor()
    longer = JaxArcConfig(environment=EnvironmentConfig(max_episode_steps=7))
    with device(lambda _: 1.0):
        for config, size, first_calls in (
            (config_of(), 4, 2),
            (config_of(), 4, 2),
            (config_of(), 2, 4),
            (longer, 4, 6),
        ):
            states, _ = monitor.time_batch_reset(split_key(0, size, **ON_JAX), config, TASK)
            monitor.time_batch_step(states, fill(size), config)
            assert len(monitor.compile_times) == first_calls
    assert monitor.reset_times == monitor.step_times == [1.0] * 4
    assert monitor.get_stats()["compile_time_total"] == 6.0


@pytest.mark.parametrize("given_arrays", ARRAYS)
def test_the_results_are_those_of_the_functions_that_are_timed(given_arrays):
    monitor, config, keys = BatchPerformanceMonitor(), config_of(), split_key(3, 4, **given_arrays)
    states, obs = monitor.time_batch_reset(keys, config, TASK)
    result = monitor.time_batch_step(states, fill(4), config)
    expected_states, expected_obs = batch_reset(keys, config, TASK)
    expected = batch_step(expected_states, fill(4), config)
    assert np.array_equal(obs, expected_obs)
    assert np.array_equal(result.obs, expected.obs)
    assert np.array_equal(result.rewards, expected.rewards)
    assert min(monitor.reset_times + monitor.step_times) > 0
    assert {type(value) for value in monitor.get_stats().values()} == {float, int}


@pytest.mark.jax
def test_times_wait_for_the_device(monkeypatch):
    import jax

    waited = []
    wait = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda result: waited.append(type(result).__name__) or wait(result))
    states, _ = batch_reset(split_key(3, 4, **ON_JAX), config_of(), TASK)
    BatchPerformanceMonitor().time_batch_step(states, fill(4), config_of())
    assert waited == ["tuple", "StepResult", "StepResult"]


def test_lists_that_are_defaults_are_never_changed_and_nothing_is_printed(capsys):
    states, _ = batch_reset(split_key(0, 2, **ON_NUMPY), config_of(), TASK)
    inspect_batch_states(states)
    analyze_memory_usage(config_of(), TASK, **ON_NUMPY)
    find_optimal_batch_size(config_of(), TASK, 1, **ON_NUMPY)
    assert inspect.signature(inspect_batch_states).parameters["indices"].default == [0, 1, 2]
    assert inspect.signature(analyze_memory_usage).parameters["batch_sizes"].default == [1, 16, 64, 256]
    assert capsys.readouterr() == ("", "")
