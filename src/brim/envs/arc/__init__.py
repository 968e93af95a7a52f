"""ARC environments: thousands of them stepped together, on NumPy arrays or under JAX.

Importing this package registers `brim/ARC-v0` with Gymnasium. Gymnasium need not be installed for that, and is not
imported: if it is not loaded yet, the environment is registered when it is.
"""

from typing import Any

from brim.core.lazy import attach, when_imported

_NEEDS = {
    "brim.envs.arc.adapters.env": "gymnasium",
    "brim.envs.arc.adapters.vector": "gymnasium",
    "brim.envs.arc.adapters.wrappers": "gymnasium",
    "brim.envs.arc.adapters.vector_wrappers": "gymnasium",
    "brim.envs.arc.adapters.gymnax": "jax",
}

__getattr__, __dir__, __all__ = attach(__name__, __file__, optional=_NEEDS)


def _register(registration: Any) -> None:
    if "brim/ARC-v0" not in registration.registry:
        registration.register(
            id="brim/ARC-v0",
            entry_point="brim.envs.arc.adapters.env:ArcEnv",
            vector_entry_point="brim.envs.arc.adapters.vector:ArcVectorEnv",
        )


when_imported("gymnasium.envs.registration", _register)
