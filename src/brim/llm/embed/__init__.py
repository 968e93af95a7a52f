"""Embeddings computed in this process.

    open           open_embedder: an embedder by its name or directory
    base           Embedder: the interface
    hash           the built-in model `hash`: NumPy only, the same numbers everywhere
    transformers   a directory with a sentence-embedding model, run by torch and transformers
    pooling        how such a directory wants tokens to become one vector
    endpoint       InProcessEndpoint: an embedder in the place of a server

Nothing here downloads anything: a model is built in, or a directory on this machine.
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
