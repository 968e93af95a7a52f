"""Batches of any length: single states and actions are padded to a few fixed sizes, stepped, and cut to their number.

JAX compiles a step for every batch size, so lists of changing length would compile again and again. Here every list is
padded to a size from a small set. The padding consists of finished environments, on which a step does no work, and no
environment depends on another: the results are those of stepping each environment alone.

Lists are put together and results are cut in the memory of the host, because on the device JAX would compile a program
for every length. Arrays of JAX come back as arrays of JAX. Traced arrays stay on the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts
from brim.envs.arc.actions import KINDS, StructuredAction
from brim.envs.arc.arrays import is_traced, numpy_of
from brim.envs.arc.batch import batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import StepResult
from brim.envs.arc.state import TERMINATED, ArcEnvState, axis_of, check_alike


def process_dynamic_batch(
    states_list: Sequence[ArcEnvState],
    actions_list: Sequence[StructuredAction],
    config: JaxArcConfig,
    max_batch_size: int = 64,
    *,
    sizes: Sequence[int] | None = None,
) -> StepResult:
    """Step any number of single states, each with its own action, and return one batch in their order.

    A list longer than `max_batch_size` is stepped in chunks. Every chunk is padded: to `max_batch_size`, or to the
    smallest of `sizes` that holds it. With `sizes`, the largest of them is the length of a chunk.

    Raises:
        DataError: The lists are empty or differ in length, an entry is not single, or actions differ in kind.
        MismatchError: The states use different banks or engines, or another configuration.
        OptionError: `max_batch_size` is below 1, or a size is not between 1 and `max_batch_size`.
    """
    shapes = _checked_sizes(sizes, max_batch_size)
    if len(states_list) != len(actions_list):
        raise DataError(f"every state needs an action: got {len(states_list)} states and {len(actions_list)} actions")
    check_alike(states_list)
    _kind(actions_list)
    results: list[StepResult] = []
    for start in range(0, len(states_list), shapes[-1]):
        states = states_list[start : start + shapes[-1]]
        actions = actions_list[start : start + shapes[-1]]
        size = next(size for size in shapes if size >= len(states))
        stepped = batch_step(pad_states(states, size), pad_actions(actions, size), config)
        results.append(unpad_results(stepped, len(states)))
    return combine_batch_results(results)


def stack_actions(actions_list: Sequence[StructuredAction]) -> StructuredAction:
    """Put single actions together into a batch, in their order.

    Raises:
        DataError: The list is empty, an entry is not a single action, or the entries differ in kind or shape.
    """
    kind = _kind(actions_list)
    columns = zip(*actions_list, strict=True)
    return kind(*(_stack(kind, name, parts) for name, parts in zip(kind._fields, columns, strict=True)))


def pad_states(states_list: Sequence[ArcEnvState], size: int) -> ArcEnvState:
    """Put single states together into a batch of `size`. The places that are left hold finished environments.

    Raises:
        DataError: The list is empty or longer than `size`, or an entry is not a single state.
        MismatchError: The states use different banks or engines.
    """
    first = check_alike(states_list)
    _check_room(len(states_list), size, "states")
    finished = first._replace(status=np.int32(TERMINATED))
    padded = [*states_list, *[finished] * (size - len(states_list))]
    leaves = {
        name: _on_host(_stacked, [getattr(state, name) for state in padded], axis_of(first, name))
        for name in ArcEnvState._fields[1:]
        if getattr(first, name) is not None
    }
    return ArcEnvState(bank=first.bank, **leaves)


def pad_actions(actions_list: Sequence[StructuredAction], size: int) -> StructuredAction:
    """Put single actions together into a batch of `size`. The places that are left repeat the first action, which is
    ignored where `pad_states` puts finished environments.

    Raises:
        DataError: The list is empty or longer than `size`, an entry is not a single action, or they differ in kind.
    """
    _kind(actions_list)
    _check_room(len(actions_list), size, "actions")
    return stack_actions([*actions_list, *[actions_list[0]] * (size - len(actions_list))])


def unpad_results(results: StepResult, n: int) -> StepResult:
    """Return the results of the first `n` environments of a step.

    Raises:
        DataError: `n` is below 1 or above the number of environments.
    """
    batch = len(results[2])
    if not 1 <= n <= batch:
        raise DataError(f"n must be between 1 and {batch}, the number of environments, got {n}")

    def first_of(_: Any, arrays: Sequence[Any], axis: int) -> Any:
        return arrays[0][:n] if axis == 0 else arrays[0][..., :n]

    return _joined([results], first_of)


def combine_batch_results(results: Sequence[StepResult]) -> StepResult:
    """Put the results of several steps together into one batch, in their order. The bank is carried once.

    Raises:
        DataError: There are no results.
    """
    if not results:
        raise DataError("there are no results to put together: the list is empty")
    return results[0] if len(results) == 1 else _joined(results, _concatenated)


Join = Callable[[Any, Sequence[Any], int], Any]
"""Makes one array of several, along an axis, with the functions of `numpy` or of `jax.numpy`."""


def _stacked(numpy: Any, arrays: Sequence[Any], axis: int) -> Any:
    return numpy.stack(arrays, axis)


def _concatenated(numpy: Any, arrays: Sequence[Any], axis: int) -> Any:
    return numpy.concatenate(arrays, axis)


def _joined(results: Sequence[StepResult], join: Join) -> StepResult:
    states, *arrays, infos = zip(*results, strict=True)
    first = states[0]
    leaves = {
        name: _on_host(join, [getattr(one, name) for one in states], axis_of(first, name))
        for name in ArcEnvState._fields[1:]
        if getattr(first, name) is not None
    }
    obs, rewards, dones = (_on_host(join, parts, 0) for parts in arrays)
    joined_infos = {name: _on_host(join, [one[name] for one in infos], 0) for name in infos[0]}
    return StepResult(ArcEnvState(bank=first.bank, **leaves), obs, rewards, dones, joined_infos)


def _on_host(join: Join, arrays: Sequence[Any], axis: int) -> Any:
    """Join arrays with NumPy. Those of JAX are copied to the host, and the result back; traced ones are not copied."""
    numpy = numpy_of(*arrays)
    if any(is_traced(array) for array in arrays):
        return join(numpy, arrays, axis)
    return numpy.asarray(join(np, [np.asarray(array) for array in arrays], axis))


def _checked_sizes(sizes: Sequence[int] | None, max_batch_size: int) -> list[int]:
    """Return the sizes that chunks are padded to, ascending."""
    check_counts(max_batch_size=max_batch_size)
    if sizes is None:
        return [max_batch_size]
    for size in sizes:
        if type(size) is not int or not 1 <= size <= max_batch_size:
            raise OptionError(f"sizes must be integers from 1 to max_batch_size ({max_batch_size}), got {size!r}")
    if not sizes:
        raise OptionError("sizes is empty; leave it out to pad to max_batch_size")
    return sorted(sizes)


def _check_room(count: int, size: int, what: str) -> None:
    if count > size:
        raise DataError(f"{count} {what} do not fit into a batch of {size}")


def _kind(actions_list: Sequence[Any]) -> type[StructuredAction]:
    """Check that all actions are of one kind, and return it."""
    if not actions_list:
        raise DataError("there are no actions to put together: the list is empty")
    kind = type(actions_list[0])
    for place, action in enumerate(actions_list):
        if type(action) not in KINDS.values():
            names = ", ".join(known.__name__ for known in KINDS.values())
            raise DataError(f"action {place} must be one of {names}, got {type(action).__name__}")
        if type(action) is not kind:
            raise DataError(
                f"action {place} is a {type(action).__name__}, but action 0 is a {kind.__name__}; a batch has one kind"
            )
    return kind


def _stack(kind: type[StructuredAction], name: str, parts: Sequence[Any]) -> Any:
    """Stack one part of single actions: numbers, or masks of one shape."""
    shape = np.shape(parts[0])
    dimensions = 2 if name == "selection" else 0
    for place, part in enumerate(parts):
        if np.ndim(part) != dimensions:
            wanted = "a mask of rows and columns" if dimensions else "a single number"
            raise DataError(f"action {place}: {kind.__name__}.{name} must be {wanted}, got shape {np.shape(part)}")
        if np.shape(part) != shape:
            raise DataError(
                f"action {place}: {kind.__name__}.{name} has shape {np.shape(part)}, but that of action 0 has {shape}"
            )
    return _on_host(_stacked, parts, 0)
