"""Proximal policy optimization (Schulman et al. 2017) for small policies. Options and experience need no torch."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
