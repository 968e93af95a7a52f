"""One optimizer step: its microbatches forward and backward, and the weights moved once."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brim.core.errors import BrimError
from brim.core.extras import need
from brim.core.rng import raw_bits
from brim.train.config import RunConfig
from brim.train.objective import StepBatch
from brim.train.optimizer import make_optimizer, named_weights, whole
from brim.train.process_group import without_sync
from brim.train.ranks import Ranks

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")


class NotFiniteError(BrimError):
    """The loss or its gradient is not finite.

    The weights are unchanged; `batches` are those of this rank that caused it.
    """

    def __init__(self, what: str, batches: Sequence[Any]) -> None:
        super().__init__(f"the {what} is not finite")
        self.what = what
        self.batches = batches


class Moved(NamedTuple):
    """The outcome of a step, over all ranks."""

    loss: float
    """The mean over the trained-on tokens; NaN if there are none."""
    grad_norm: float


class Stepper:
    """The module, its optimizer, and how gradients of several microbatches and ranks become one."""

    def __init__(self, module: Any, config: RunConfig, ranks: Ranks) -> None:
        self.module = module
        self._config = config
        self._ranks = ranks
        self.weights = named_weights(module)
        self.optimizer = make_optimizer(self.weights, config.weight_decay, fused=not config.fsdp)

    def take(self, batches: Sequence[StepBatch], learned: float, rate: float) -> Moved:
        """Move the weights by the gradient of the mean loss over `learned` tokens, which is how many the step has on
        all ranks.

        Raises:
            NotFiniteError: On all ranks, if the loss or the gradient of any is not finite. The weights stay what they
                were.
        """
        losses = [self._backward(batch, learned, last=batch is batches[-1]) for batch in batches]
        total = self._ranks.total([float(torch.stack(losses).sum(dtype=torch.float64))])[0]
        norm = self._clip()
        if not math.isfinite(total):
            raise NotFiniteError(
                "loss", [batch for batch, loss in zip(batches, losses, strict=True) if not math.isfinite(float(loss))]
            )
        if not math.isfinite(norm):  # no microbatch is to blame alone
            raise NotFiniteError("gradient", [batch for batch in batches if not batch.is_null])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Moved(total / learned if learned else math.nan, norm)

    def _backward(self, batch: StepBatch, learned: float, *, last: bool) -> "Tensor":
        ranks = self._ranks
        with without_sync(self.module, ranks, fsdp=self._config.fsdp, last=last):
            loss = self._forward(batch.to(ranks.device, non_blocking=True))
            # Ranks average their gradients, so the share of each counts world_size times.
            (loss * (ranks.world_size / max(learned, 1))).backward()
        return loss.detach()

    def _forward(self, batch: StepBatch) -> "Tensor":
        """Run the forward pass with randomness that depends on the seed and the microbatch alone, not on the rank or on
        earlier steps.
        """
        device = self._ranks.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            key = raw_bits(1, seed=self._config.seed, purpose=f"dropout {batch.index}", epoch=batch.epoch)[0]
            torch.manual_seed(int(key) >> 1)
            return self.loss(batch)

    def loss(self, batch: StepBatch) -> "Tensor":
        """Return the loss of a microbatch, summed over what is trained on."""
        with torch.autocast(self._ranks.device.type, torch.bfloat16, enabled=self._config.bf16):
            return self.module(batch)

    def _clip(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self._config.clip_norm or math.inf)
        return float(whole(norm))
