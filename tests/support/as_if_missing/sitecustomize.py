"""Makes torch and JAX look as if they were not installed, in every Python process that has this folder on
PYTHONPATH.
"""

import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset({"torch", "torchdata", "accelerate", "lightning", "pytorch_lightning", "peft", "jax", "jaxlib"})


class _OtherModules(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname in HIDDEN else PathFinder.find_spec(fullname, path, target)


if PathFinder in sys.meta_path:
    sys.meta_path[sys.meta_path.index(PathFinder)] = _OtherModules
