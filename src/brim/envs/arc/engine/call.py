"""Arguments and results of every engine; for the kernel, the order of its arrays.

A step takes states, actions and a configuration. A reset is a step as well: `blank` states are finished environments,
and a step with `auto_reset="next_step"` begins their first episode. So each engine has one function.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, MismatchError
from brim.envs.arc.actions import BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.config import AutoReset, JaxArcConfig, SelectionFormat
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import TERMINATED, ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank

CHANGED = (
    "episode",
    "task_index",
    "pair_index",
    "cells",
    "held",
    "selection",
    "height",
    "width",
    "step_count",
    "similarity_score",
    "status",
    "demos_solved",
    "tests_solved",
)
"""The fields of a state that a step changes, in the kernel's order."""

_FORMATS: tuple[SelectionFormat, ...] = ("point", "bbox", "mask")
_AUTO_RESETS: tuple[AutoReset, ...] = ("off", "next_step", "same_step")


class Report(NamedTuple):
    """The result of a step besides states and observations, one entry for each environment, in the kernel's order.

    All of it describes the step before an automatic reset.
    """

    reward: Any
    """float32"""
    terminated: Any
    """bool"""
    truncated: Any
    """bool"""
    similarity: Any
    """float32"""
    solved: Any
    """bool"""
    invalid: Any
    """bool"""
    pair: Any
    """int32"""
    final: Any
    """uint8 [batch, height, width]: the working grid. Only with `auto_reset="same_step"`; elsewhere of length 0."""


def make_report(make: Callable[[tuple[int, ...], Any], Any], batch: int, config: JaxArcConfig) -> Report:
    """Return a report whose arrays `make` makes from a shape and a dtype."""
    numbers, flags, indices = np.float32, np.bool_, np.int32
    kept = batch if config.environment.auto_reset == "same_step" else 0
    return Report(
        reward=make((batch,), numbers),
        terminated=make((batch,), flags),
        truncated=make((batch,), flags),
        similarity=make((batch,), numbers),
        solved=make((batch,), flags),
        invalid=make((batch,), flags),
        pair=make((batch,), indices),
        final=make((kept, *config.shape), np.uint8),
    )


class StepResult(NamedTuple):
    """The result of a step, in the order in which it is unpacked."""

    states: ArcEnvState
    obs: Any
    """[batch, height, width], uint8: the working grids, `PADDING` outside of them."""
    rewards: Any
    """[batch], float32"""
    dones: Any
    """[batch], bool: the episode ended with this step, or earlier."""
    infos: dict[str, Any]
    """Arrays of [batch]: `terminated`, `truncated`, `similarity`, `solved`, `invalid`, and `pair_index`, the number of
    the pair in the bank. With same-step resets also `final_obs`, the observations before the reset. All of them
    describe the step before a reset."""


def result_of(states: ArcEnvState, obs: Any, report: Report) -> StepResult:
    """Put a report into the form that users unpack."""
    infos = {
        "terminated": report.terminated,
        "truncated": report.truncated,
        "similarity": report.similarity,
        "solved": report.solved,
        "invalid": report.invalid,
        "pair_index": report.pair,
    }
    if report.final.shape[0]:
        infos["final_obs"] = report.final
    return StepResult(states, obs, report.reward, report.terminated | report.truncated, infos)


def check_states(states: ArcEnvState, config: JaxArcConfig) -> None:
    """Check that states are those of a batch, with grids of the configured size.

    Raises:
        DataError: They are a single state, or a trajectory.
        MismatchError: They were made with another size.
    """
    if states.status.ndim != 1:
        raise DataError(
            f"batch_step takes a batch, got states of shape {tuple(states.status.shape)}; arc_step takes a single one"
        )
    if tuple(states.bank.shape) != config.shape:
        raise MismatchError(
            f"the states hold grids of {'x'.join(map(str, states.bank.shape))}, but the configuration says"
            f" {'x'.join(map(str, config.shape))}; step with the configuration of the reset"
        )


@lru_cache(maxsize=64)
def numbers(config: JaxArcConfig) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the configuration as the kernel reads it: integers, and the terms of the reward."""
    allowed = config.action.allowed
    integers = [
        *config.shape,
        _FORMATS.index(config.action.selection_format),
        config.environment.max_episode_steps,
        int(config.environment.end_when_solved),
        _AUTO_RESETS.index(config.environment.auto_reset),
        int(config.environment.episode_mode == "test"),
    ]
    terms = config.reward
    floats = [
        terms.similarity_weight,
        terms.step_penalty,
        terms.success_bonus,
        terms.unsolved_submission_penalty,
        terms.invalid_penalty,
    ]
    bits = np.array([allowed & 0xFFFFFFFF, allowed >> 32], np.uint32).view(np.int32)
    return np.concatenate([np.array(integers, np.int32), bits]), np.array(floats, np.float32)


def blank(bank: TaskBank, keys: Any, fixed_task: Any, shape: tuple[int, int]) -> ArcEnvState:
    """Return finished environments, as NumPy arrays, whose next episode has number 0."""
    batch = keys.shape[0]
    padding = np.full((batch, *shape), PADDING, np.uint8)
    zeros = np.zeros(batch, np.int32)
    return ArcEnvState(
        bank=bank,
        key=keys,
        episode=zeros - 1,
        fixed_task=fixed_task,
        task_index=zeros,
        pair_index=zeros.copy(),
        cells=padding,
        held=padding.copy(),
        selection=np.zeros((batch, shape[0]), np.uint32),
        height=zeros.copy(),
        width=zeros.copy(),
        step_count=zeros.copy(),
        similarity_score=np.zeros(batch, np.float32),
        status=np.full(batch, TERMINATED, np.int32),
        demos_solved=np.zeros(batch, np.uint32),
        tests_solved=np.zeros(batch, np.uint32),
    )


@lru_cache(maxsize=64)
def resetting(config: JaxArcConfig) -> JaxArcConfig:
    """Return the configuration whose step resets blank states. Its actions are points, which are ignored."""
    return replace(
        config,
        environment=replace(config.environment, auto_reset="next_step"),
        action=replace(config.action, selection_format="point"),
    )


def parts(actions: StructuredAction) -> tuple[Any, ...]:
    """Return the operation and up to four parts of the selection; None for those that a kind of action lacks."""
    if isinstance(actions, MaskAction):
        return actions.operation, actions.selection, None, None, None
    if isinstance(actions, BboxAction):
        return actions.operation, actions.r1, actions.c1, actions.r2, actions.c2
    assert isinstance(actions, PointAction)
    return actions.operation, actions.row, actions.col, None, None
