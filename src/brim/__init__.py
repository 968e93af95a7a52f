"""brim fills every batch to the brim.

`brim` has the names that most programs need; each room (`brim.data`, `brim.plan`, `brim.batch`, `brim.analyze`,
`brim.llm`, `brim.envs`, `brim.stream`, `brim.train`) has all of its own. Both are listed in the stubs, `__init__.pyi`.
Names are loaded when they are first used, so `import brim` takes a few milliseconds and does not import NumPy.
"""

from brim.core.lazy import attach

__version__ = "0.5.0"

__getattr__, __dir__, __all__ = attach(__name__, __file__)
