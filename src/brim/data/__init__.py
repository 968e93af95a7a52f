"""Samples: the sources they are read from, their tokens, and their lengths."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
