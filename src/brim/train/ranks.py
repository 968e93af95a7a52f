"""This process among those that train one model: who it is, how they add numbers up, how they fail together.

Nothing here imports torch, so a trainer on any framework can stand on it. `Ranks` is one process alone, which needs no
communication and pays for none; `brim.train.process_group` has the ranks of a torch process group.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from brim.core.errors import BrimError
from brim.plan.distributed import DistributedConfig

Result = TypeVar("Result")


class Ranks:
    """One process that trains alone. A group of several overrides `total`, `share` and `gather`."""

    def __init__(self, me: DistributedConfig, device: Any = None) -> None:
        self.rank = me.rank
        self.world_size = me.world_size
        self.local_rank = me.local_rank
        self.device = device
        """The device of this rank, in the words of its framework."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.world_size > 1

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, in float64."""
        return [float(value) for value in values]

    def share(self, value: Result | None) -> Result:
        """Return the main rank's value, on every rank."""
        return value  # pyright: ignore[reportReturnType]

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all ranks, in their order, on every rank."""
        return [value]

    def together(self, work: Callable[[], Result]) -> Result:
        """Do something on every rank that may fail on some.

        If one fails, all raise, instead of waiting for it later.
        """
        error, result = None, None
        try:
            result = work()
        except (BrimError, OSError) as raised:
            error = raised
        failed = self.total([error is not None])[0]
        if error is not None:
            raise error
        if failed:
            raise BrimError("another rank failed; its error says why")
        return result  # pyright: ignore[reportReturnType]
