"""The manifest of a directory of batches: which plan, data and tokenizer its files are of.

It is written before the first batch and never changes, so that a writer that was killed knows its directory again, and another plan's
writer knows that it is not its own. Every batch carries the manifest's checksum.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import DIGEST_BYTES, canonical_json, digest_bytes

FORMAT = "brim.batches/1"
MANIFEST, PLAN = "manifest.json", "plan"
TOKENS = ".tokens.brim"
"""Where a writer may keep the tokens of the data set until it is done."""
LEFTOVERS = {f".{MANIFEST}.tmp", TOKENS, f".{TOKENS}.tmp"}
"""What a writer that was killed before its first batch may leave behind."""

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
    """What the files were made from. `batches` is how many each epoch has, on this rank, empty ones included."""

    fingerprint: str
    """Of the plan."""
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
        return digest_bytes(canonical_json(self._named))

    @property
    def _named(self) -> dict[str, object]:
        return {"format": FORMAT, **asdict(self), "num_epochs": self.num_epochs, "total_batches": self.total_batches}

    def difference(self, other: "Manifest") -> str | None:
        """What these batches are of that the others are not, in words; None if the two say the same."""
        for name, what in DIFFERENCES.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{what} ({_short(mine)}, not {_short(theirs)})"
        return None

    def save(self, directory: Path) -> None:
        with atomic_file(directory / MANIFEST) as file:
            file.write(json.dumps({**self._named, "checksum": self.checksum}, indent=2).encode() + b"\n")

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """
        Raises:
            DataError: There are no batches there.
            DamagedError: The manifest is truncated, altered or of another version.
        """
        path = directory / MANIFEST
        try:
            named = json.loads(path.read_bytes())
            format, checksum = named.get("format"), named.pop("checksum", None)
        except (FileNotFoundError, NotADirectoryError):
            what = (
                "does not exist"
                if not directory.exists()
                else f"holds no batches (no {MANIFEST} in it)"
                if directory.is_dir()
                else "is a file"
            )
            raise DataError(f"{directory} {what}; write them with: brim batch write -p PLAN -d DATA -o {directory}") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        except (ValueError, AttributeError):
            raise DamagedError(f"{path} is truncated or damaged; remove the directory and write the batches again") from None
        if not str(format).startswith("brim.batches/"):
            raise DataError(f"{path} is not a manifest of batches; write them with: brim batch write -p PLAN -d DATA -o DIR")
        if format != FORMAT:
            raise DamagedError(f"{directory} is of version {format}, this brim reads {FORMAT}; write the batches again")
        if digest_bytes(canonical_json(named)) != checksum:
            raise DamagedError(f"{path} was altered (its checksum differs); remove the directory and write the batches again")
        fields: dict[str, Any] = {name: named[name] for name in cls.__dataclass_fields__}
        fields["batches"] = tuple(fields["batches"])
        return cls(**fields)


def _short(value: object) -> str:
    """Hashes by their beginning."""
    return f"{value[:6]}.." if isinstance(value, str) and len(value) == 2 * DIGEST_BYTES else str(value)


def batch_file(directory: Path, epoch: int, number: int) -> Path:
    return directory / f"epoch_{epoch}" / _name(number)


def _name(number: int) -> str:
    return f"batch_{number:06d}.npz"


class Files(NamedTuple):
    """The numbers of the batches of an epoch that are not there, and the names of files that should not be."""

    missing: list[int]
    strangers: list[str]


def epoch_files(manifest: Manifest, directory: Path, epoch: int) -> Files:
    """Look what is there. Names with a leading dot do not count: a writer that was killed leaves one, and the next one removes it."""
    folder = directory / f"epoch_{epoch}"
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set[str]()
    expected = {_name(number): number for number in range(manifest.batches[epoch])}
    return Files([number for name, number in expected.items() if name not in found], sorted(found - expected.keys()))
