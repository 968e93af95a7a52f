"""Print a constraints file with the versions of brim's direct dependencies that are installed.

Usage: python tests/tested_versions.py > constraints-tested.txt

torch is left out: constraints.txt pins it, for the benchmarks too.
"""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """\
# The versions that `make test`, `make matrix` and `make lint` install. Without them, a release of a dependency could
# fail tests in which nothing changed: warnings are errors there. `make newest` renews them.\
"""


def main() -> None:
    print(HEAD)
    for name in sorted(direct_dependencies()):
        print(f"{name}=={version(name)}")


def direct_dependencies() -> set[str]:
    """The packages that pyproject.toml names, but brim itself and torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    names = {re.split(r"[<>=\[ ]", line)[0] for line in [*project["dependencies"], *extras]}
    return names - {"brim", "torch"}


if __name__ == "__main__":
    main()
