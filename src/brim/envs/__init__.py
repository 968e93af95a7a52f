"""Environments that are stepped in many lanes at once, with their state in plain sight."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
