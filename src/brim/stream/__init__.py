"""Samples as they come: from files, from games, from memory. Streams can say where they are and go on from there."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
