"""`CheckpointPosition`: the place in a plan from which a run resumes.

A position is a few numbers, the same on every rank and valid for any number of ranks. It counts what was trained on,
not what was prefetched: take `microbatch.after` after the optimizer step, and save it with the model.
"""

import os
from dataclasses import asdict, dataclass

from brim.core.document import Document
from brim.core.errors import DamagedError, OptionError
from brim.core.options import check_counts, from_dict, is_integer

POSITION = Document(format="brim.position/1", what="a position", again="save it again", checksum="none")


@dataclass(frozen=True, kw_only=True)
class CheckpointPosition:
    """The place of a run in its plan: the next microbatch is number `microbatch_idx` of the global order of `epoch`, in
    the plan with this fingerprint.
    """

    epoch: int
    microbatch_idx: int
    global_step: int = 0
    """Optimizer steps taken so far, for the trainer's use."""
    microbatches_per_step: int = 1
    """Microbatches in one optimizer step, over all ranks.

    The global order depends on this number, so it stays the same when the number of ranks changes.
    """
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("epoch", "microbatch_idx", "global_step"):
            value = getattr(self, name)
            if not is_integer(value):
                raise OptionError(f"{name} must be an integer, got {value!r}")
            if value < 0:
                raise OptionError(f"{name} must not be negative, got {value}")
        check_counts(microbatches_per_step=self.microbatches_per_step)

    def at(self, microbatch_idx: int) -> "CheckpointPosition":
        """Return the same position before another microbatch, which exists. Every microbatch has a position, and
        checks would add up.
        """
        position = object.__new__(CheckpointPosition)
        vars(position).update(vars(self), microbatch_idx=microbatch_idx)
        return position

    def at_step(self, global_step: int) -> "CheckpointPosition":
        """Return the same position with another number of optimizer steps taken."""
        position = object.__new__(CheckpointPosition)
        vars(position).update(vars(self), global_step=global_step)
        return position

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small JSON file, whole or not at all."""
        POSITION.write(path, asdict(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CheckpointPosition":
        """Read a file that `save` wrote.

        Raises:
            DataError: There is no such file, or it is not a position.
            DamagedError: It is truncated, altered, or of another version.
        """
        try:
            return from_dict(cls, POSITION.read(path))
        except OptionError as error:
            raise DamagedError(f"{path} is not a position: {error}") from None


class StepCount:
    """Counts optimizer steps; `position` adds them to the position of the last microbatch."""

    def __init__(self, position: CheckpointPosition) -> None:
        self._after, self._steps = position, position.global_step

    @property
    def position(self) -> CheckpointPosition:
        return self._after.at_step(self._steps)

    def pass_on(self, after: CheckpointPosition, steps: int) -> None:
        """Go to the position after a microbatch, with so many more optimizer steps done."""
        self._after = after
        self._steps += steps
