"""The puzzle gym: a client for the server of chuk-puzzles-gym, and policies that play on it."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
