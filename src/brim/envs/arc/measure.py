"""Time and memory of batches: which size to choose, what a batch takes, and what a running program spends.

All times wait for the device: JAX returns arrays before they are computed. Compilation is timed apart: a function that
JAX compiles for a new shape is called once before it is timed. Seconds are those of the clock, so other work on the
machine counts.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median, pstdev
from time import perf_counter
from typing import Any

import numpy as np

from brim.analyze.capacity.attempts import SHARE
from brim.analyze.capacity.memory import is_out_of_memory, memory_available
from brim.analyze.capacity.search import Capacity, Trial, bytes_text
from brim.core.errors import BrimError, DataError
from brim.core.options import check_counts
from brim.envs.arc.actions import StructuredAction
from brim.envs.arc.arrays import Arrays, load_jax, numpy_of, split_key
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import StepResult
from brim.envs.arc.operations import OPERATIONS, PADDING
from brim.envs.arc.rollout import select_cells
from brim.envs.arc.state import ArcEnvState, take_states
from brim.envs.arc.tasks.bank import Tasks, as_bank

MB = 1024 * 1024
SEED = 42
TIMED = 10
"""Steps of a size that are timed at least."""
ENOUGH_SECONDS = 0.05
"""Seconds after which no further step of a size is timed."""


def find_optimal_batch_size(
    config: JaxArcConfig, task: Tasks, max_batch_size: int = 1024, *, arrays: Arrays = "auto"
) -> tuple[int, dict[int, dict[str, float]]]:
    """Time a step of batches of 1, 2, 4, ... environments, and return the best size and the times of all sizes.

    The best size is the smallest that reaches 95% of the best throughput (`Capacity.knee`). The times of a size are
    "total_time", the median seconds of one `batch_step`, "per_env_time", the same divided by the environments, and
    "throughput", environments stepped per second. The environments take all allowed operations in turn.

    A size that runs out of memory ends the search, and so does one that would: the memory of a larger batch is
    estimated from the smaller ones before it is tried.

    Raises:
        BrimError: Not even one environment fits into the memory.
        MissingExtraError: `arrays` is "jax", which is not installed.
        OptionError: `max_batch_size` is below 1.
    """
    check_counts(max_batch_size=max_batch_size)
    trials: list[Trial] = []
    size = 1
    while size <= max_batch_size and all(trial.fits for trial in trials):
        trials.append(_tried(size, config, task, arrays, trials))
        size *= 2
    if not trials[0].fits:
        raise BrimError(f"not even one environment fits into the memory: {trials[0].detail}")
    capacity = Capacity(unit="environments", trials=tuple(trials))
    return capacity.knee.size, {trial.size: _times(trial) for trial in capacity.fitting}


def analyze_memory_usage(
    config: JaxArcConfig,
    task: Tasks,
    batch_sizes: Sequence[int] = [1, 16, 64, 256],
    *,
    arrays: Arrays = "auto",
) -> dict[int, dict[str, float]]:
    """Return the memory of batches, in MB of 2**20 bytes, by their size.

    "state_mb" are all arrays of the states but the bank, "obs_mb" the observations, "total_mb" both, and "per_env_mb"
    both for one environment. "bank_mb" are the tasks, which are held once, however many environments use them. With JAX
    nothing is computed: the sizes of the arrays are known without it.

    Raises:
        MissingExtraError: `arrays` is "jax", which is not installed.
        OptionError: A batch size is below 1.
    """
    found: dict[int, dict[str, float]] = {}
    for batch in batch_sizes:
        keys = split_key(SEED, batch, arrays=arrays)
        if numpy_of(keys) is np:
            states, obs = batch_reset(keys, config, task)
        else:
            states, obs = load_jax().eval_shape(partial(batch_reset, config=config, task_data=task), keys)
        state_mb, obs_mb, bank_mb = (_bytes(*some) / MB for some in (states[1:], [obs], states.bank))
        total_mb = state_mb + obs_mb
        found[batch] = {
            "total_mb": total_mb,
            "per_env_mb": total_mb / batch,
            "state_mb": state_mb,
            "obs_mb": obs_mb,
            "bank_mb": bank_mb,
        }
    return found


def warm_up_batch_functions(batch_size: int, config: JaxArcConfig, task: Tasks, *, arrays: Arrays = "auto") -> float:
    """Reset and step a batch once, so that JAX compiles both for this size, and return the seconds that it took.

    Raises:
        MissingExtraError: `arrays` is "jax", which is not installed.
        OptionError: `batch_size` is below 1.
    """
    began = perf_counter()
    _wait(_prepared(batch_size, config, task, arrays)())
    return perf_counter() - began


def inspect_batch_states(batch_states: ArcEnvState, indices: Sequence[int] = [0, 1, 2]) -> dict[str, Any]:
    """Return "batch_size", "grid_shape" and "environments": for each index "step_count", "similarity", "episode_done"
    and "unique_colors", the sorted colours of the working grid. All are plain Python values.

    Indices beyond the batch are left out.

    Raises:
        DataError: The states are not those of a batch, or an index is negative.
    """
    if not isinstance(batch_states, ArcEnvState) or batch_states.status.ndim != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError("inspect_batch_states takes the states of a batch, as batch_reset returns them")
    if any(index < 0 for index in indices):
        raise DataError(f"indices must not be negative, got {list(indices)}")
    batch = batch_states.batch_size
    chosen = [int(index) for index in indices if index < batch]
    some = take_states(batch_states, np.array(chosen, np.int32))
    grids, steps, scores, dones = (
        np.asarray(array) for array in (some.working_grid, some.step_count, some.similarity_score, some.episode_done)
    )
    environments = {
        index: {
            "step_count": int(steps[place]),
            "similarity": float(scores[place]),
            "episode_done": bool(dones[place]),
            "unique_colors": [int(colour) for colour in np.unique(grids[place]) if colour != PADDING],
        }
        for place, index in enumerate(chosen)
    }
    return {"batch_size": batch, "grid_shape": tuple(grids.shape[1:]), "environments": environments}


class BatchPerformanceMonitor:
    """Times resets and steps, in seconds.

    The first call for a shape and a configuration compiles; it is recorded in `compile_times`, and the call is made
    once more to be timed. NumPy environments compile nothing.
    """

    def __init__(self) -> None:
        self.reset_times: list[float] = []
        self.step_times: list[float] = []
        self.batch_sizes: list[int] = []
        """Number of environments of every reset and step, in their order."""
        self.compile_times: list[float] = []
        """Seconds of the first calls, compilation included."""
        self._compiled: set[object] = set()

    def time_batch_reset(self, keys: Any, config: JaxArcConfig, task: Tasks) -> tuple[ArcEnvState, Any]:
        """Do what `batch_reset` does."""
        given = (keys, as_bank(task, config))
        return self._timed(lambda: batch_reset(keys, config, task), given, config, self.reset_times)

    def time_batch_step(self, states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> StepResult:
        """Do what `batch_step` does."""
        return self._timed(lambda: batch_step(states, actions, config), (states, actions), config, self.step_times)

    def get_stats(self) -> dict[str, float]:
        """Return means, standard deviations and counts of what was timed. What was not timed is NaN.

        The keys are "reset_time_mean", "reset_time_std", "step_time_mean", "step_time_std", "avg_batch_size",
        "total_operations" and "compile_time_total".
        """
        return {
            "reset_time_mean": _mean(self.reset_times),
            "reset_time_std": _deviation(self.reset_times),
            "step_time_mean": _mean(self.step_times),
            "step_time_std": _deviation(self.step_times),
            "avg_batch_size": _mean(self.batch_sizes),
            "total_operations": len(self.reset_times) + len(self.step_times),
            "compile_time_total": math.fsum(self.compile_times),
        }

    def _timed(self, call: Callable[[], Any], given: Any, config: JaxArcConfig, times: list[float]) -> Any:
        _wait(given)
        if numpy_of(*_leaves(given)) is not np:
            shapes = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in _leaves(given))
            if (config, shapes) not in self._compiled:
                seconds, _ = _seconds(call)
                self.compile_times.append(seconds)
                self._compiled.add((config, shapes))
        seconds, result = _seconds(call)
        times.append(seconds)
        self.batch_sizes.append(len(result[1]))
        return result


def _tried(size: int, config: JaxArcConfig, task: Tasks, arrays: Arrays, before: list[Trial]) -> Trial:
    """Time a step of a batch, or find that it does not fit into the memory."""
    if before and _on_host(arrays):
        estimate = Capacity(unit="environments", trials=tuple(before)).bytes(size)
        if estimate > SHARE * memory_available():
            return Trial(size=size, why="out of memory", detail=f"about {bytes_text(estimate)} are needed")
    try:
        step = _prepared(size, config, task, arrays)
        taken = _bytes(*_leaves(_wait(step())))
        times: list[float] = []
        while len(times) < TIMED or sum(times) < ENOUGH_SECONDS:
            seconds, _ = _seconds(step)
            times.append(seconds)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Trial(size=size, why="out of memory", detail=str(error).strip().split("\n")[0][:200])
    # The states before and after a step are in memory at the same time.
    return Trial(size=size, seconds=median(times), peak=2 * taken)


def _on_host(arrays: Arrays) -> bool:
    """Return whether environments are in the memory of the host, where running out of it ends the process."""
    keys = split_key(SEED, 1, arrays=arrays)
    return numpy_of(keys) is np or load_jax().default_backend() == "cpu"


def _prepared(size: int, config: JaxArcConfig, task: Tasks, arrays: Arrays) -> Callable[[], StepResult]:
    """Reset a batch, and return a function that takes one step of it, always the same."""
    check_counts(batch_size=size)
    states, _ = _wait(batch_reset(split_key(SEED, size, arrays=arrays), config, task))
    operations = range(OPERATIONS) if config.action.allowed_operations is None else config.action.allowed_operations
    zeros = np.zeros(size, np.int32)
    chosen = select_cells(config, np.resize(np.array(operations, np.int32), size), zeros, zeros)
    actions = type(chosen)(*map(numpy_of(states.status).asarray, chosen))
    return lambda: batch_step(states, actions, config)


def _times(trial: Trial) -> dict[str, float]:
    seconds = trial.seconds or math.nan
    return {"per_env_time": seconds / trial.size, "throughput": trial.rate, "total_time": seconds}


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = _wait(call())
    return perf_counter() - began, result


def _wait(result: Any) -> Any:
    """Return a result when all of its arrays are computed. Those of NumPy always are."""
    jax = sys.modules.get("jax")
    return result if jax is None else jax.block_until_ready(result)


def _leaves(tree: Any) -> list[Any]:
    """Return the arrays of nested tuples and dictionaries."""
    if isinstance(tree, dict):
        return _leaves(tuple(tree.values()))
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [] if tree is None else [tree]


def _bytes(*arrays: Any) -> int:
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays if array is not None)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    return pstdev(values) if values else math.nan
