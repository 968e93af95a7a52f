"""Step environments whose arrays are JAX's with the compiled kernel, inside `jit` and `scan`.

The kernel is called through XLA's foreign function interface and changes the state in place: where XLA still needs the
old state, it copies it first. It runs on the CPU only, and has no rule for `vmap`: a batch is already a batch.

This module imports jax.
"""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.extras import need
from brim.envs.arc.actions import OUT_OF_RANGE, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import CHANGED, Report, make_report, numbers, parts
from brim.envs.arc.state import ArcEnvState

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

try:
    from brim.envs.arc.engine import _kernel as kernel
except ImportError:
    kernel = None

NAME = "brim_arc_step"
MAJOR = 0
"""The version of XLA's interface whose layout the kernel knows. Minor versions only add to it."""


@cache
def unavailable() -> str | None:
    """Return why the kernel cannot be called from XLA; None if it can. The first call registers it."""
    if kernel is None:
        return "the kernel is not compiled here"
    ffi: Any = getattr(jax, "ffi", None)
    if ffi is None or not hasattr(ffi, "ffi_call"):
        return f"jax {jax.__version__} has no jax.ffi"
    header = Path(ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        found = re.search(r"#define XLA_FFI_API_MAJOR (\d+)", header.read_text())
    except OSError:
        found = None
    if found is None or int(found[1]) != MAJOR:
        return f"jax {jax.__version__} has another version of XLA's foreign function interface"
    ffi.register_ffi_target(NAME, kernel.ffi_handler(), platform="cpu")
    return None


def step(
    states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig, *, copies: bool
) -> tuple[ArcEnvState, Any, Report]:
    """Step every environment, and return states, observations and the report. The arrays may be traced.

    Observations are the grids of the states. With `copies` the kernel copies them, which is faster than the copy that
    XLA makes of an array that is returned twice.
    """
    batch = states.status.shape[0]
    integers, terms = numbers(config)
    bank = states.bank
    read = (
        *(integers, terms, bank.inputs, bank.targets, bank.sizes, bank.first, bank.count),
        *(states.key, states.fixed_task),
        *(_small(part) for part in parts(actions)),
    )
    changed = tuple(getattr(states, name) for name in CHANGED)
    report = make_report(jax.ShapeDtypeStruct, batch, config)
    copied = jax.ShapeDtypeStruct((batch if copies else 0, *config.shape), jnp.uint8)
    call = jax.ffi.ffi_call(
        NAME,
        [*(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in changed), *report, copied],
        input_output_aliases={len(read) + place: place for place in range(len(changed))},
    )
    results = call(*read, *changed)
    after = states._replace(**dict(zip(CHANGED, results, strict=False)))
    return after, results[-1] if copies else after.cells, Report(*results[len(changed) : -1])


def _small(part: Any) -> Any:
    """Return a part of the actions as the kernel reads it. Numbers beyond 32 bits stay out of range."""
    if part is None:
        return np.zeros(0, np.int32)
    if part.dtype == np.bool_:
        return part
    return narrow(part)


def narrow(part: Any) -> Any:
    """Return integers as int32, with what does not fit turned into a value that is out of range everywhere."""
    if part.dtype == jnp.int32:
        return part
    return jnp.clip(part, -1 if np.dtype(part.dtype).kind == "i" else 0, OUT_OF_RANGE).astype(jnp.int32)
