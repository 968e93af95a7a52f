"""Which samples share a batch, and in which order: pure, deterministic, and blind to tokens."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
