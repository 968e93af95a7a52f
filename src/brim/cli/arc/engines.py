"""The engines that the commands can use here, by the names that `--engine` takes.

"numpy" keeps the arrays in NumPy and needs no JAX; "cpu" and "jax" are the engines of `EnvironmentConfig`, on arrays of
JAX. All of them give the same results.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.envs.arc.config import EnvironmentConfig, JaxArcConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGINES = {
    "numpy": "The compiled kernel on NumPy arrays, without JAX",
    "cpu": "The compiled kernel on JAX arrays, inside jit and scan, on a CPU",
    "jax": "Pure JAX, on every device that JAX supports",
}


class EngineArrays(NamedTuple):
    """How a command hands arrays to an engine, and how it waits for results."""

    put: "Callable[[NDArray[Any]], Any]"
    """Turn a NumPy array into an array of the engine."""
    wait: Callable[[Any], Any]
    """Return when the arrays of a result are computed."""


def use_engine(engine: str, *, user: str) -> EngineArrays:
    """Return the arrays of an engine. `user` is the command that asks, for the message if JAX is missing.

    Raises:
        MissingExtraError: The engine needs JAX, which is not installed.
        OptionError: The kernel cannot be called by XLA here.
    """
    if engine == "numpy":
        return EngineArrays(put=_unchanged, wait=_unchanged)
    jax: Any = need("jax", extra="arc", user=f"{user} with engine {engine}")
    if (problem := unusable(engine)) is not None:
        raise OptionError(problem)
    return EngineArrays(put=jax.numpy.asarray, wait=jax.block_until_ready)


def _unchanged(value: Any) -> Any:
    return value


def unusable(engine: str) -> str | None:
    """Return why an engine cannot be used here; None if it can."""
    if engine == "numpy":
        return None
    if find_spec("jax") is None:
        return "JAX is not installed; run: pip install 'brim[arc]'"
    if engine == "jax":
        return None
    from brim.envs.arc.engine.compiled import choose_engine

    try:
        choose_engine(JaxArcConfig(environment=EnvironmentConfig(engine="cpu")))
    except OptionError as error:
        return str(error)
    return None


def is_slow() -> bool:
    """Return whether NumPy environments run one at a time, because the kernel is not compiled here."""
    from brim.envs.arc.engine import on_numpy

    return on_numpy.kernel is None


def best_engine() -> str:
    """Return what "auto" means for a loop in Python: the kernel if it is compiled, else JAX if it is installed."""
    return "jax" if is_slow() and unusable("jax") is None else "numpy"
