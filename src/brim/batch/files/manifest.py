"""The manifest of a directory of batches: which plan, data and tokenizer its files were made from.

It is written before the first batch and never changes, so that a writer that was killed can resume in its directory,
and a writer of another plan refuses it. Every batch carries the manifest's checksum.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from brim.core.document import Document
from brim.core.errors import DataError
from brim.core.fingerprint import DIGEST_BYTES

BATCHES = Document(
    format="brim.batches/1", what="a manifest of batches", again="remove the directory and write the batches again"
)
MANIFEST, PLAN = "manifest.json", "plan"
TOKENS = ".tokens.brim"
"""Name of the file in which a writer may keep the tokens of the data set until it is done."""

DIFFERENCES = {
    "dataset_hash": "other data",
    "tokenizer_hash": "another tokenizer or row format",
    "fingerprint": "another plan",
    "rank": "another rank",
    "world_size": "another number of ranks",
    "microbatches_per_step": "other optimizer steps",
    "pad_id": "another pad id",
    "collate": "another collate function",
    "batches": "other numbers of batches",
}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The inputs that the files were made from. `batches` is the number of files of each epoch on this rank, empty
    batches included.
    """

    fingerprint: str
    """Fingerprint of the plan that the batches follow."""
    dataset_hash: str
    tokenizer_hash: str
    pad_id: int
    collate: str
    """The name of the function that laid out the arrays."""
    rank: int
    world_size: int
    microbatches_per_step: int
    batches: tuple[int, ...]

    @property
    def num_epochs(self) -> int:
        return len(self.batches)

    @property
    def total_batches(self) -> int:
        return sum(self.batches)

    @cached_property
    def checksum(self) -> str:
        return BATCHES.digest(self._named)

    @property
    def _named(self) -> dict[str, object]:
        return {**asdict(self), "num_epochs": self.num_epochs, "total_batches": self.total_batches}

    def difference(self, other: "Manifest") -> str | None:
        """Return the first difference to another manifest, in words; None if they are equal."""
        for name, what in DIFFERENCES.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{what} ({_short(mine)}, not {_short(theirs)})"
        return None

    def save(self, directory: Path) -> None:
        """Write the manifest into the directory of the batches."""
        BATCHES.write(directory / MANIFEST, self._named)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory of batches.

        Raises:
            DataError: The directory holds no batches.
            DamagedError: The manifest is truncated, altered or of another version.
        """
        path = directory / MANIFEST
        if not path.exists():
            raise DataError(
                f"{directory} {_missing(directory)}; write them with: brim batch write -p PLAN -d DATA -o {directory}"
            )
        named = BATCHES.read(path)
        fields: dict[str, Any] = {name: named[name] for name in cls.__dataclass_fields__}
        fields["batches"] = tuple(fields["batches"])
        return cls(**fields)


def _missing(directory: Path) -> str:
    if not directory.exists():
        return "does not exist"
    return f"holds no batches (no {MANIFEST} in it)" if directory.is_dir() else "is a file"


def _short(value: object) -> str:
    """Return a value as text for messages; a hash is shortened to its first six digits."""
    return f"{value[:6]}.." if isinstance(value, str) and len(value) == 2 * DIGEST_BYTES else str(value)


def batch_file(directory: Path, epoch: int, number: int) -> Path:
    return directory / f"epoch_{epoch}" / _name(number)


def _name(number: int) -> str:
    return f"batch_{number:06d}.npz"


class Files(NamedTuple):
    """The numbers of the missing batches of an epoch, and the names of files that do not belong there."""

    missing: list[int]
    strangers: list[str]


def epoch_files(manifest: Manifest, directory: Path, epoch: int) -> Files:
    """Compare the files of an epoch with those that the manifest expects.

    Names with a leading dot are ignored: a writer that was killed leaves one, and the next writer removes it.
    """
    folder = directory / f"epoch_{epoch}"
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set[str]()
    expected = {_name(number): number for number in range(manifest.batches[epoch])}
    return Files([number for name, number in expected.items() if name not in found], sorted(found - expected.keys()))
