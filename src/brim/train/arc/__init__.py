"""Training of an agent that solves generated ARC tasks, with PPO in JAX. Nothing here imports torch."""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
