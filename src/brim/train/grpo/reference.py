"""The reference of the KL divergence: the model below the LoRA adapters, or a frozen copy."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.errors import MismatchError
from brim.core.extras import need
from brim.data.tokenizer.base import Tokenizer
from brim.generate.config import Law
from brim.generate.model import CausalModel
from brim.generate.score.scorer import ScoreLimits, Scorer
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.experience import GrpoBatch, plan_for_ranks
from brim.train.model import base_fingerprint, check_model, load_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train.grpo")


class Reference:
    """Scores tokens with weights that do not change."""

    def __init__(self, model: Any, config: GrpoConfig, *, adapter: bool, fingerprint: str) -> None:
        self.model = model
        self.fingerprint = fingerprint
        self._adapter = adapter
        self._config = config
        self._scorer = Scorer(CausalModel(model))

    @classmethod
    def of(cls, model: Any, config: GrpoConfig, tokenizer: Tokenizer, *, given: bool, device: Any) -> "Reference":
        """Find the reference of a run.

        Args:
            model: The model that is trained.
            given: Whether it is an object that has the weights which the run begins with.

        Raises:
            MismatchError: The reference knows other tokens than the model.
        """
        if config.reference is None and config.lora_rank:
            return cls(model, config, adapter=False, fingerprint=base_fingerprint(model))
        if config.reference is None and given:
            frozen = copy.deepcopy(model)
        else:
            named = replace(config, model=config.reference or config.model, lora_rank=0, lora_alpha=None)
            check_model(named.model)
            frozen = load_model(named, tokenizer)
        frozen.requires_grad_(False)
        frozen.eval().to(device)
        ours, theirs = (CausalModel(one).vocabulary for one in (model, frozen))
        if ours != theirs:
            raise MismatchError(
                f"the reference {config.reference} knows {theirs} tokens, the model {config.model} {ours}; their "
                "log-probabilities cannot be compared: choose a reference with the same tokenizer"
            )
        return cls(frozen, config, adapter=True, fingerprint=base_fingerprint(frozen))

    def logprobs(self, batch: GrpoBatch, limits: ScoreLimits) -> "Tensor":
        """Return the log-probability of each drawn token of a microbatch."""
        return drawn_logprobs(self._scorer, batch, self._config, limits, adapter=self._adapter)


@torch.no_grad()
def drawn_logprobs(
    scorer: Scorer, batch: GrpoBatch, config: GrpoConfig, limits: ScoreLimits, *, adapter: bool = True
) -> "Tensor":
    """Return the log-probability of each drawn token of a microbatch, without gradients, on the CPU.

    The forward passes are planned anew, for the model that scores, and computed as those of training are.
    """
    law = Law(temperature=config.temperature)
    experience, responses = batch.experience, batch.part.responses if batch.part is not None else ()
    planned = plan_for_ranks(experience.rollouts, np.sort(np.array(responses, np.int64)), scorer, limits, 1)
    found: dict[int, Tensor] = {}
    for part in planned.parts:
        with torch.autocast(scorer.device.type, torch.bfloat16, enabled=config.bf16):
            scored = scorer.score_part(
                part, experience.rollouts, law, grad=False, own=planned.own, kept=experience.drawn, adapter=adapter
            )
        found.update(zip(scored.responses, scored.split(scored.logprobs.cpu()), strict=True))
    return torch.cat([found[number] for number in responses]) if responses else torch.empty(0)
