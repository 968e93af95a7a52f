"""Resets and steps of JAX arrays, compiled: which engine does the work, and in what form JAX is given it.

Everything goes through `jax.jit` with the configuration as a static argument and the bank as an argument of its own, so
that donating states never donates the bank.

This module imports jax.
"""

import warnings
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from brim.core.errors import MismatchError, OptionError
from brim.core.extras import need
from brim.envs.arc.actions import PointAction, StructuredAction, check_actions
from brim.envs.arc.arrays import is_traced
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import on_xla
from brim.envs.arc.engine.call import StepResult, blank, check_states, resetting, result_of
from brim.envs.arc.engine.planes import step as on_planes
from brim.envs.arc.engine.planes.bits import pack_bank
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank
from brim.envs.arc.tasks.task import register_with_jax

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

register_with_jax()

KEPT = ArcEnvState._fields.index("episode")
"""The first fields of a state never change: the bank, the keys and the fixed tasks."""


def reset(bank: TaskBank, keys: Any, fixed_task: Any, config: JaxArcConfig) -> tuple[ArcEnvState, Any]:
    """Begin episode 0 of every environment."""
    engine = choose_engine(config)
    bank = on_device(bank, planes=engine == "jax")
    changed, obs = _reset(bank, keys, jnp.asarray(fixed_task), config, engine)
    return ArcEnvState(bank, *changed), obs


def step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig, *, donate: bool) -> StepResult:
    """Step every environment."""
    wanted = config.environment.engine
    engine = "jax" if states.has_bits else "cpu"
    if wanted not in ("auto", engine):
        raise MismatchError(f'the states were made by engine "{engine}", but the configuration says "{wanted}"')
    if engine == "cpu" and (reason := on_xla.unavailable()) is not None:
        raise MismatchError(f'the states were made by engine "cpu", which cannot be used here: {reason}')
    given: Any = actions
    kind = type(states.status)
    if not isinstance(given, tuple) or not all(type(part) is kind for part in cast(Any, given)):
        # Arrays of NumPy are checked before JAX cuts their numbers to 32 bits; those of JAX when the step is compiled.
        check_states(states, config)
        actions = check_actions(given, config, tuple(states.status.shape))
    run = _step_in_place if donate else _step
    copies = not is_traced(states.status)  # in a surrounding program, XLA may do without the copy
    kept, changed = states[:KEPT], states[KEPT:]
    after, rest = run(changed, kept, actions, config, engine, copies)
    return StepResult(ArcEnvState(*kept, *after), *rest)


def choose_engine(config: JaxArcConfig) -> str:
    """Return "cpu" or "jax".

    Raises:
        OptionError: The configuration asks for the kernel, which cannot be used here.
    """
    wanted = config.environment.engine
    if wanted == "jax":
        return "jax"
    reason = "the default device is not a CPU" if jax.default_backend() != "cpu" else on_xla.unavailable()
    if reason is None:
        return "cpu"
    if wanted == "cpu":
        raise OptionError(f'engine "cpu" cannot be used: {reason}; use "auto" or "jax"')
    if jax.default_backend() == "cpu":
        _say_once(reason)
    return "jax"


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"ARC environments run in pure JAX: {reason}", RuntimeWarning, stacklevel=5)


def on_device(bank: TaskBank, *, planes: bool) -> TaskBank:
    """Return the bank as JAX arrays, with or without its grids as bits. A bank of NumPy is converted once; again if
    it was donated together with states."""
    if isinstance(bank.inputs, np.ndarray):
        kept = _kept(_Same(bank), planes)
        if not kept or any(leaf is not None and leaf.is_deleted() for leaf in kept[0]):
            kept[:] = [_converted(bank, planes)]
        return kept[0]
    if planes and bank.planes is None:
        return bank._replace(planes=pack_bank(bank.inputs, bank.targets))
    return bank


class _Same:
    """A bank as a key of a cache: equal only to itself. The cache keeps it alive, so its address is not reused."""

    def __init__(self, bank: TaskBank) -> None:
        self.bank = bank

    def __hash__(self) -> int:
        return id(self.bank.inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and all(one is two for one, two in zip(self.bank, other.bank, strict=True))


@lru_cache(maxsize=4)
def _kept(key: _Same, planes: bool) -> list[TaskBank]:
    """Return the place where the bank is kept, which is empty at first."""
    return []


def _converted(bank: TaskBank, planes: bool) -> TaskBank:
    with jax.ensure_compile_time_eval():  # the bank is kept beyond the trace that may surround this call
        held = TaskBank(*(jnp.asarray(leaf) for leaf in bank[:5]))
        return held._replace(planes=pack_bank(held.inputs, held.targets)) if planes else held


@partial(jax.jit, static_argnums=(3, 4))
def _reset(bank: TaskBank, keys: Any, fixed_task: Any, config: JaxArcConfig, engine: str) -> tuple[Any, Any]:
    states = jax.tree.map(jnp.asarray, blank(bank, keys, fixed_task, config.shape))
    if engine == "jax":
        states = on_planes.as_bits(states)
        after, obs = on_planes.reset(states, config)
        return after[1:], obs
    zeros = jnp.zeros(keys.shape[0], jnp.int32)
    after, obs, _ = on_xla.step(states, PointAction(zeros, zeros, zeros), resetting(config), copies=False)
    return after[1:], obs


def _stepped(
    changed: tuple[Any, ...],
    kept: tuple[Any, ...],
    actions: StructuredAction,
    config: JaxArcConfig,
    engine: str,
    copies: bool,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the changed fields, and the rest of the result. Shapes are checked here, once a compilation."""
    states = ArcEnvState(*kept, *changed)
    check_states(states, config)
    actions = check_actions(actions, config, tuple(states.status.shape))
    if engine == "cpu":
        result = result_of(*on_xla.step(states, actions, config, copies=copies))
    else:
        result = result_of(*on_planes.step(states, actions, config))
    return result.states[KEPT:], result[1:]


_step = jax.jit(_stepped, static_argnums=(3, 4, 5))
_step_in_place = jax.jit(_stepped, static_argnums=(3, 4, 5), donate_argnums=0)
