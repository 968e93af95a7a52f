"""The texts that name a reward: `NAME`, `package.module:function` or `path/to/file.py:function`, each with an optional
weight before it, `0.2*NAME`.

A module is imported by the rules of Python, from `sys.path`. A file is run as a module of its own: modules beside it
are not found unless its folder is in PYTHONPATH. Both are code of the user's, and run with all rights.
"""

import hashlib
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from brim.core.errors import OptionError, did_you_mean
from brim.generate.rewards.outcome import one_line

FORMS = "package.module:function, or path/to/file.py:function"


@dataclass(frozen=True)
class Spec:
    """A text that names a reward, taken apart."""

    text: str
    """The text without the weight."""
    weight: float
    place: str
    """A built-in name, a module or a file."""
    function: str | None
    """The part behind the last colon; None without a colon."""


def parse_spec(text: str) -> Spec:
    """Take a text apart.

    Raises:
        OptionError: The weight is not a finite number other than 0, or there is nothing behind it.

    Example:
        >>> parse_spec("0.2*length:200")
        Spec(text='length:200', weight=0.2, place='length', function='200')
    """
    before, star, rest = text.rpartition("*")
    rest = rest.strip()
    weight = 1.0
    if star:
        try:
            weight = float(before)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or weight == 0:
            raise OptionError(
                f"the weight of a reward must be a finite number other than 0, as in 0.2*format, got {before!r} in "
                f"{text!r}"
            )
    if not rest:
        raise OptionError(f"a reward must be a name, {FORMS}, got {text!r}")
    place, colon, function = rest.rpartition(":")
    if not colon:
        return Spec(rest, weight, rest, None)
    return Spec(rest, weight, place, function)


def load_function(spec: Spec, files: dict[str, ModuleType]) -> Any:
    """Return what a text names in a module or a file.

    Args:
        files: The files that were run before, by their paths. A file that is named twice is run once.

    Raises:
        OptionError: The module or file cannot be imported, or has nothing of that name.
    """
    if not spec.place or not spec.function:
        raise OptionError(f"a reward must be a name, {FORMS}, got {spec.text!r}")
    is_file = spec.place.endswith(".py") or os.sep in spec.place
    module = _run_file(spec, files) if is_file else _import(spec)
    found = getattr(module, spec.function, None)
    if found is None:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise OptionError(f"{spec.place} has no function {spec.function!r}.{did_you_mean(spec.function, known)}")
    return found


def _import(spec: Spec) -> ModuleType:
    hint = ""
    if os.path.exists(path := spec.place.replace(".", os.sep) + ".py"):
        hint = f'; for the file of that name write "{path}:{spec.function}"'
    return _imported(spec, lambda: importlib.import_module(spec.place), hint)


def _run_file(spec: Spec, files: dict[str, ModuleType]) -> ModuleType:
    path = os.path.realpath(os.path.expanduser(spec.place))
    if path in files:
        return files[path]
    if not os.path.isfile(path):
        raise OptionError(f"the file of the reward {spec.text!r} does not exist")
    # The name is that of the path, so that files of one name in several folders stay apart.
    name = f"brim_reward_{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise OptionError(f"the file of the reward {spec.text!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    loader = module_spec.loader

    def run() -> ModuleType:
        sys.modules[name] = module  # dataclasses and pickle look for the module of a class there
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    files[path] = _imported(spec, run, "")
    return module


def _imported(spec: Spec, load: Callable[[], ModuleType], hint: str) -> ModuleType:
    try:
        return load()
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(str(error))}"
        raise OptionError(f"the reward module {spec.place!r} cannot be imported ({reason}){hint}") from error
