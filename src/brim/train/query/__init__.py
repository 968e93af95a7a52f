"""Training of a policy that chooses how to rewrite questions."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
