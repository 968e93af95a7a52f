"""Turn planned samples into arrays: collation, loaders that follow a plan, and batches as files."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
