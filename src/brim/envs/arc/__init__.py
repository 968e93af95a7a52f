"""ARC environments: thousands of them stepped together, on NumPy arrays or under JAX."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
