"""Find out what a test needs (torch, JAX, a real server, a browser, processes) by reading its source.

Marks that are derived cannot be forgotten. A file is read before it is imported, because the quick tier runs where
torch is not installed: a file that imports torch is left out there, not imported and skipped.

Followed are the imports that run when a file is imported, through `brim` and `support`, and from a test on the names it
uses: fixtures, functions and classes of its own file, and those imported from `support`. Not followed are functions of
brim, which import heavy libraries late, and programs in strings. A test that needs torch in one of these ways carries
`pytest.mark.torch` in its source; the quick tier hides torch, so the test fails there until it does.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MARKS = {
    "torch": "imports torch, or a library that does",
    "jax": "imports JAX",
    "server": "starts a real server of puzzles or models",
    "browser": "opens pages in Chromium",
    "process": "starts processes of its own",
    "slow": "takes many seconds",
    "kernel": "calls a compiled kernel directly",
}
NOT_QUICK = ("torch", "jax", "server", "browser", "process", "slow")
LIBRARIES = {
    "torch": "torch",
    "torchdata": "torch",
    "accelerate": "torch",
    "lightning": "torch",
    "peft": "torch",
    "safetensors.torch": "torch",
    "jax": "jax",
    "playwright": "browser",
}
NAMES = {
    "PuzzleServer": "server",
    "LlamaServer": "server",
    "kernel": "kernel",
    "subprocess": "process",
    "Popen": "process",
    "multiprocessing": "process",
    "get_context": "process",
}
MODELS = re.compile(r"Model|For[A-Z]")  # of transformers, these names load torch; tokenizers and configs do not


class Import(NamedTuple):
    """`import module` where `name` is empty, else `from module import name as alias`."""

    module: str
    name: str = ""
    alias: str = ""


@cache
def marks_of_import(path: Path) -> frozenset[str]:
    """The marks of what is loaded when a file is imported."""
    marks: set[str] = set()
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        loaded, files = _loaded_by(here)
        marks |= loaded
        waiting += files
    return frozenset(marks)


@cache
def marks_of_name(path: Path, name: str) -> frozenset[str]:
    """The marks of a function, class or variable of a file, and of all it uses by name."""
    marks: set[str] = set()
    seen: set[tuple[Path, str]] = set()
    waiting = [(path, name)]
    while waiting:
        here, name = waiting.pop()
        if (here, name) in seen:
            continue
        seen.add((here, name))
        for node in _definitions(here).get(name, ()):
            loaded, names = _used_by(here, node)
            marks |= loaded
            waiting += names
    return frozenset(marks)


@cache
def _loaded_by(path: Path) -> tuple[set[str], list[Path]]:
    """What a file imports when it is imported: marks of libraries, and files of ours."""
    imports = list(_imports(_tree(path), late=False))
    marks = {mark for one in imports for mark in _marks_of_library(one)}
    return marks, [file for one in imports for file in _files(one)]


@cache
def _used_by(path: Path, node: ast.stmt) -> tuple[set[str], list[tuple[Path, str]]]:
    """What a definition uses: marks, and names of this file and of `support` that may use more."""
    marks: set[str] = set()
    names: list[tuple[Path, str]] = []
    for one in _imports(node, late=True):
        marks |= _marks_of_library(one)
        for file in _files(one):
            marks |= marks_of_import(file)
            if one.module.startswith("support") and one.name:
                names.append((file, one.name))
    used = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    used |= {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}
    marks |= {NAMES[name] for name in used & NAMES.keys()}
    return marks, names + [(path, name) for name in used & _definitions(path).keys()]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _definitions(path: Path) -> dict[str, list[ast.stmt]]:
    """Every name that a file binds at its top level, with the statements that bind it."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        else:
            names = [
                child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
            ]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _imports(node: ast.AST, *, late: bool) -> Iterator[Import]:
    """The imports below a node; `late` are those inside functions. `need("torch", ...)` is an import too."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "relative imports are not used here"
        yield from (Import(node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need":
        if isinstance(node.args[0], ast.Constant):
            yield Import(node.args[0].value)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not late:
        return
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.orelse:
            yield from _imports(child, late=late)
        return
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, late=late)


def _marks_of_library(one: Import) -> set[str]:
    parts = one.module.split(".")
    if parts[0] == "transformers" and (MODELS.search(one.name) or parts[1:2] in (["models"], ["integrations"])):
        return {"torch"}
    prefixes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)] + [f"{one.module}.{one.name}"]
    return {LIBRARIES[prefix] for prefix in prefixes if prefix in LIBRARIES}


@cache
def _files(one: Import) -> list[Path]:
    """The files of ours that an import loads: the module, or the home of a name that a package loads lazily."""
    top = {"brim": ROOT / "src", "support": ROOT / "tests"}.get(one.module.split(".")[0])
    if top is None:
        return []
    base = top.joinpath(*one.module.split("."))
    if base.with_suffix(".py").exists():
        return [base.with_suffix(".py")]
    if not one.name:
        return [base / "__init__.py"]
    if (base / f"{one.name}.py").exists():
        return [base / f"{one.name}.py"]
    stub = base / "__init__.pyi"
    listed = _imports(_tree(stub), late=False) if stub.exists() else ()
    homes = [home for home in listed if home.alias == one.name and home.module != one.module]
    return [file for home in homes for file in _files(home)] or [base / "__init__.py"]
