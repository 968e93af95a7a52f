"""Run what acts in environments: compiled by JAX where that is possible, and in a loop of Python elsewhere.

What acts is a function of the states and the number of the step. It may close over anything, such as the weights of a
network, and what it closes over may change from call to call. So it is traced anew for every call, and the compiled
program is found again by the text of what was traced.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from brim.core.errors import DataError
from brim.envs.arc.arrays import is_traced, load_jax, numpy_of
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.state import ArcEnvState

Act = Callable[[ArcEnvState, Any], tuple[Any, Any]]
"""Takes states and the number of the step; returns actions and their log-probabilities."""
Play = Callable[[Act, ArcEnvState, JaxArcConfig, int], Any]
"""Lets something act in environments for a number of steps, and returns a named tuple."""

PROGRAMS = 32
"""Most compiled programs that are kept. The one not used for longest is dropped."""


def run(act: Act, states: ArcEnvState, config: JaxArcConfig, steps: int, *, body: Play, loop: Play) -> Any:
    """Run `body` compiled, or as part of the program that is being traced; where neither is possible, run `loop`."""
    if not isinstance(states, ArcEnvState):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"batch_states must be an ArcEnvState, as batch_reset returns it, got {type(states).__name__}")
    if is_traced(states.status):
        return body(act, states, config, steps)
    traced = None if numpy_of(states.status) is np else _trace(act, states)
    if traced is None:
        return loop(act, states, config, steps)
    program, constants = traced
    return _with_bank(states.bank, _compiled(body, program, config, steps)(constants, states))


@dataclass(frozen=True)
class _Program:
    """A policy as a traced program. Two programs are equal if they do the same to their constants and the states."""

    text: str
    outputs: Any
    """The structure of what it returns, as a tree definition of JAX."""
    jaxpr: Any = field(compare=False, repr=False)

    def act(self, constants: Any, states: ArcEnvState, step: Any) -> tuple[Any, Any]:
        jax = load_jax()
        leaves = jax.tree.leaves((states, step))
        return jax.tree.unflatten(self.outputs, jax.core.eval_jaxpr(self.jaxpr, constants, *leaves))


def _trace(act: Act, states: ArcEnvState) -> tuple[_Program, Any] | None:
    """Return the program and the arrays that the policy closes over; None if it cannot be traced.

    Programs are compared by their text, in which these arrays are parameters. It does not say which function of Python
    a program calls back, so such a program could be mistaken for another one: it is not compiled.
    """
    jax = load_jax()
    needs_values = (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    )
    try:
        # JAX remembers what it traced by the function, so each trace is of a new one: what the policy closes over may
        # have changed since.
        found, shapes = jax.make_jaxpr(partial(act), return_shape=True)(states, np.int32(0))
    except needs_values:
        return None
    text = str(found.jaxpr)
    if " at 0x" in text:
        return None
    return _Program(text, jax.tree.structure(shapes), found.jaxpr), found.consts


@lru_cache(maxsize=PROGRAMS)
def _compiled(body: Play, program: _Program, config: JaxArcConfig, steps: int) -> Callable[..., Any]:
    """Return the compiled body. The key of the cache has no policy and no weights, so none is kept alive by it."""

    def run(constants: Any, states: ArcEnvState) -> Any:
        return _with_bank(None, body(partial(program.act, constants), states, config, steps))

    return load_jax().jit(run)


def _with_bank(bank: Any, found: Any) -> Any:
    """Replace the bank of all states in a result: a compiled program would return a copy of it."""
    return type(found)(*(part._replace(bank=bank) if isinstance(part, ArcEnvState) else part for part in found))
