"""A directory of several files that all say the same, so that a mixture of two versions is noticed.

Imports nothing heavy.
"""

from pathlib import Path

from brim.core.atomic import atomic_directory

PARTS = 3


def ours(path: Path) -> bool:
    return (path / "part0").exists()


def write(target: Path, text: str) -> None:
    with atomic_directory(target, replaces=ours) as place:
        for part in range(PARTS):
            (place / f"part{part}").write_text(text)


def read(target: Path) -> str:
    """The contents of a directory that is one version, whole."""
    names = sorted(path.name for path in target.iterdir())
    assert names == [f"part{part}" for part in range(PARTS)]
    (text,) = {(target / name).read_text() for name in names}
    return text
