"""Analysis of batching efficiency: lengths, buckets, strategies, memory capacity, and reports on plans."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
