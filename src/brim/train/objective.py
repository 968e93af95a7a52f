"""The objective of a run: a module that turns a microbatch into a summed loss.

The loss is a sum, not a mean: a step divides by the sum of `num_loss_tokens` over all of its microbatches and ranks, so
how the step was cut into microbatches does not change the mathematics.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from brim.core.extras import need

if TYPE_CHECKING:
    from torch import Tensor, nn
else:
    nn = need("torch", extra="train", user="brim.train").nn


class StepBatch(Protocol):
    """A microbatch, as far as a step looks at it. `brim.batch.torch.TensorBatch` is one."""

    @property
    def ids(self) -> Sequence[str | int]:
        """The samples in it, for records and errors."""
        ...

    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int:
        """Its number in the epoch. With the epoch and the seed, it determines the randomness of the forward pass."""
        ...

    @property
    def num_loss_tokens(self) -> float:
        """Its share of the divisor of the loss: tokens that are trained on, or 1 for a loss that is a mean already."""
        ...

    @property
    def num_tokens(self) -> int: ...
    @property
    def slots(self) -> int:
        """Number of tokens, padding included."""
        ...

    @property
    def is_null(self) -> bool:
        """Whether the microbatch is empty: it is there so that all ranks take equally many forward passes."""
        ...

    def to(self, device: Any, *, non_blocking: bool = False) -> Self: ...


class Objective(nn.Module, ABC):
    """A loss over a model.

    It holds everything that several ranks train together, and is what they wrap. The model is in `self.model`, so that
    weights have the names in checkpoints that they have in the model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Any) -> "Tensor":
        """Return the summed loss of a microbatch."""

    def metrics(self) -> dict[str, float]:
        """Return further numbers about the step that was just taken, such as a KL divergence, for reports and curves.

        Every rank returns the same names; a run reports the mean over ranks.
        """
        return {}
