"""Packages whose names are imported when they are first used (PEP 562).

The public names of a package are listed once, in its stub `__init__.pyi`, one line for each name:

    from brim.plan.plan import BatchPlan as BatchPlan

Type checkers and editors read the stub and know the exact types. `attach` reads the same lines at run time, so
importing the package costs the reading of one small file and imports none of the modules behind the names. `from
PACKAGE import NAME as NAME` in the stub of PACKAGE itself lists a subpackage.

`when_imported` is for registries of other packages: it adds something to them without importing them first.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def attach(
    package: str, file: str, *, optional: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the package whose `__name__` and `__file__` are given.

    `__all__` leaves subpackages out, so that a star import does not bind short names such as `plan` and `data`.
    `optional` maps modules of the package to the package of others that each of them needs. Where that one is not
    installed, `__all__` leaves their names out, so that a star import works with the rest.
    """
    folder = os.path.dirname(file)
    homes = _read_stub(folder)
    missing = _missing(optional or {})

    def load(name: str) -> Any:
        if name not in homes:
            raise _unknown(package, folder, name)
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, [name for name, home in homes.items() if home != package and home not in missing]


def when_imported(module: str, use: Callable[[Any], None]) -> None:
    """Call `use` with a module: at once if it is loaded, else when somebody imports it. It is not imported here."""
    if module in sys.modules:
        use(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Watch(module, use))


class _Watch:
    """A finder that finds one module, once, as the other finders do, and calls a function after it was executed."""

    def __init__(self, module: str, use: Callable[[Any], None]) -> None:
        self.module = module
        self.use = use

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec: Any = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_use(module: Any) -> None:
                execute(module)
                self.use(module)

            spec.loader.exec_module = execute_and_use
        return spec


def _read_stub(folder: str) -> dict[str, str]:
    """Map each name listed in the stub of the package in `folder` to the module that holds it."""
    with open(os.path.join(folder, "__init__.pyi"), encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {words[3]: words[1] for words in lines}


def _missing(optional: dict[str, str]) -> set[str]:
    """Return the modules whose package is not installed. Nothing is imported."""
    if not optional:
        return set()
    from importlib.util import find_spec

    installed = {needed: find_spec(needed) is not None for needed in set(optional.values())}
    return {module for module, needed in optional.items() if not installed[needed]}


def _unknown(package: str, folder: str, name: str) -> Exception:
    """Return the error for a name that the package does not have.

    A name that one of its subpackages has is an ImportError that says which one. It cannot be an AttributeError: Python
    replaces the message of an AttributeError raised during `from brim import X` by its own.
    """
    place = None if name.startswith("_") else _place(package, folder, name)
    if place is None:
        return AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
    return ImportError(f"{package}.{name} is in {place}: from {place} import {name}", name=package)


def _place(package: str, folder: str, name: str) -> str | None:
    """Return the subpackage, at any depth, whose stub lists `name`."""
    for short in [entry for entry, home in _read_stub(folder).items() if home == package]:
        inner = f"{package}.{short}"
        inside = os.path.join(folder, short)
        if name in _read_stub(inside):
            return inner
        if deeper := _place(inner, inside, name):
            return deeper
    return None
