"""Whose arrays environments are made of: NumPy's, for which JAX need not be installed, or JAX's."""

import sys
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np

from brim.core.extras import need
from brim.core.options import check_counts, one_of
from brim.envs.arc.engine.random import threefry

Arrays = Literal["auto", "numpy", "jax"]
"""Whose arrays environments are made of; "auto" is JAX's where JAX is installed."""


def split_key(seed: int, batch: int, *, arrays: Arrays = "auto") -> Any:
    """Return `jax.random.split(jax.random.PRNGKey(seed), batch)`, for which JAX need not be installed.

    [batch, 2], uint32. The seed is from 0 to 2**32 - 1.

    Raises:
        MissingExtraError: `arrays` is "jax", which is not installed.
    """
    check_counts(batch=batch)
    one_of("arrays", arrays, get_args(Arrays))
    keys = np.stack(threefry(np.array([0, seed], np.uint32), (0, np.arange(batch))), axis=-1)
    if arrays == "numpy" or (arrays == "auto" and find_spec("jax") is None):
        return keys
    return load_jax().numpy.asarray(keys)


def numpy_of(*arrays: Any) -> Any:
    """Return `jax.numpy` if one of the arrays is JAX's, else `numpy`."""
    jax = sys.modules.get("jax")
    return np if jax is None or not any(isinstance(array, jax.Array) for array in arrays) else jax.numpy


def is_traced(array: Any) -> bool:
    """Return whether JAX is tracing a function and the array has no values yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def load_jax() -> Any:
    """Import JAX.

    Raises:
        MissingExtraError: It is not installed.
    """
    return need("jax", extra="arc", user="brim.envs.arc")
