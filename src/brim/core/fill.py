"""`Fill`: the one number that brim is judged by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fill:
    """Slots used out of slots paid for. Fills add up: batches to epochs, ranks to runs.

    Example:
        >>> Fill(900, 1000) + Fill(100, 1000)
        Fill(used=1000, slots=2000)
        >>> Fill(900, 1000).ratio
        0.9
    """

    used: int = 0
    slots: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.used <= self.slots:
            raise ValueError(f"used must lie between 0 and slots, got {self.used} of {self.slots}")

    def __add__(self, other: "Fill") -> "Fill":
        return Fill(self.used + other.used, self.slots + other.slots)

    @property
    def ratio(self) -> float:
        """1.0 when nothing was paid for: an empty plan wastes nothing."""
        return self.used / self.slots if self.slots else 1.0

    @property
    def waste(self) -> float:
        return 1.0 - self.ratio

    def __str__(self) -> str:
        return f"{self.ratio:.2%}"
