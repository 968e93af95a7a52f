"""Streams of samples from files, games and a replay buffer. A stream has a state that it can be resumed from."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
