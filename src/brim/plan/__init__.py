"""Plan which samples share a batch, and in which order. Pure and deterministic; reads lengths, never tokens."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
