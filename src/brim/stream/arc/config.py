"""`ArcSampleConfig`: the options of samples of ARC episodes. Without NumPy, because a command lists them."""

from dataclasses import dataclass
from typing import Literal, get_args

from brim.core.errors import OptionError
from brim.core.options import check_counts, one_of

Per = Literal["episode", "step"]
Grids = Literal["all", "changes", "none"]
Overflow = Literal["error", "skip"]


@dataclass(frozen=True, kw_only=True)
class ArcSampleConfig:
    """What a sample holds, and which episodes become samples.

    Raises:
        OptionError: An option is out of range, or has no effect.
    """

    per: Per = "episode"
    """One sample for each episode, or one for each step, which begins with the grid before the step."""
    demonstrations: int | None = None
    """Upper limit of the demonstrations that are shown, the first ones of the task; None is all, 0 is none."""
    grids: Grids = "all"
    """The working grid after each action: always written whole ("all"), written as changed cells where these are fewer
    tokens ("changes"), or left out, so that the actions follow each other ("none"). For samples of episodes: those of
    steps have one grid and one action."""
    target: bool = False
    """Whether the output of the pair to work on is shown. It tells the answer."""
    only_solved: bool = False
    """Leave out episodes that did not terminate solved."""
    learn_invalid: bool = False
    """Whether invalid actions are trained on. Otherwise they are context in samples of episodes, and left out as
    samples of steps."""
    max_length: int | None = None
    """Upper limit of the tokens of a sample; None is no limit."""
    overflow: Overflow = "error"
    """What happens to a longer sample: an error, or it is left out and counted ("skip"). Nothing is truncated."""
    policy_version: int | None = None
    """Optimizer steps that the acting policy had been trained for, if that is known."""
    dataset_id: str = "arc"

    def __post_init__(self) -> None:
        one_of("per", self.per, get_args(Per))
        one_of("grids", self.grids, get_args(Grids))
        one_of("overflow", self.overflow, get_args(Overflow))
        check_counts(max_length=self.max_length)
        for name in ("target", "only_solved", "learn_invalid"):
            if type(getattr(self, name)) is not bool:
                raise OptionError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("demonstrations", "policy_version"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise OptionError(f"{name} must be an integer that is not negative, got {value!r}")
        if not isinstance(self.dataset_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"dataset_id must be a string, got {self.dataset_id!r}")
        if self.per == "step" and self.grids != "all":
            raise OptionError(
                f'grids="{self.grids}" has no effect with per="step", where a sample has one grid and one action'
            )
        if self.overflow == "skip" and self.max_length is None:
            raise OptionError('overflow="skip" has no effect without max_length')
