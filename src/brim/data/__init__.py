"""Samples, where they come from, and how long they are."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
