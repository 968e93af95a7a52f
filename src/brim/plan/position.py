"""`CheckpointPosition`: where a run is in its plan.

A few numbers, the same on every rank, good for any number of ranks. They are about what was trained, not about what was fetched: take
`microbatch.after` when the optimizer has taken its step, and save it with the model.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError, OptionError

FORMAT = "brim.position/1"


@dataclass(frozen=True, kw_only=True)
class CheckpointPosition:
    """The next microbatch is number `microbatch_idx` of the global order of `epoch`, in the plan with this fingerprint."""

    epoch: int
    microbatch_idx: int
    global_step: int = 0
    """Optimizer steps taken so far, for the trainer's use."""
    microbatches_per_step: int = 1
    """The global order depends on it, so it stays what it was when the number of ranks changes."""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("epoch", "microbatch_idx", "global_step"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.microbatches_per_step < 1:
            raise OptionError(f"microbatches_per_step must be at least 1, got {self.microbatches_per_step}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small JSON file, whole or not at all."""
        with atomic_file(path) as file:
            file.write(json.dumps({"format": FORMAT, **asdict(self)}, indent=2).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CheckpointPosition":
        """
        Raises:
            DataError: There is no such file.
            DamagedError: It is not a position, or of another version.
        """
        try:
            values = json.loads(Path(path).read_bytes())
            format = values.pop("format", "")
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        except (ValueError, AttributeError, TypeError):
            raise DamagedError(f"{path} is not a position: it is truncated or damaged") from None
        if format != FORMAT:
            raise DamagedError(f"{path} is of version {format or 'unknown'}, this brim reads {FORMAT}")
        try:
            return cls(**values)
        except TypeError:
            raise DamagedError(f"{path} is not a position: it holds {', '.join(sorted(values))}") from None
