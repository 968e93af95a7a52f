"""Runs of a causal language model whose batches follow plans: supervised fine-tuning, and runs that play."""

from typing import NoReturn, TypeVar

from brim.batch.torch import PlanBatchSampler, PlanLoader, TokenDataset
from brim.core.errors import BrimError
from brim.data.token_store import TokenStore
from brim.plan.plan import BatchPlan
from brim.train import checkpoint as files
from brim.train.causal import CausalRun
from brim.train.checkpoint import Saved
from brim.train.config import CausalConfig
from brim.train.failed_step import SCRIPT, save_repro
from brim.train.loss import SftLoss, choose_attention
from brim.train.run import NAMED
from brim.train.step import NotFiniteError

Config = TypeVar("Config", bound=CausalConfig)


class PlannedRun(CausalRun[Config]):
    """One run that follows plans, on one rank."""

    def wrap(self, saved: Saved | None, *, packed: bool, longest: int) -> None:
        """Make the module that takes steps and its optimizer, in the state of the checkpoint."""
        self.model.to(self.ranks.device)
        segments = choose_attention(self.model, self.config.attention, packed=packed, longest=longest)
        self.attach_restored(SftLoss(self.model, segments), saved)

    def make_loader(self, plan: BatchPlan, store: TokenStore) -> PlanLoader:
        """Make the loader of this rank. The caller has checked that the plan and the tokens belong together."""
        sampler = PlanBatchSampler(plan, rank=self.ranks.rank, world_size=self.ranks.world_size)
        dataset = TokenDataset(store, pad_id=self.tokenizer.pad_id, flat=plan.config.packing is not None)
        pin_memory = self.ranks.device.type == "cuda"
        return PlanLoader(dataset, sampler, num_workers=self.config.num_workers, pin_memory=pin_memory)

    def not_finite(self, error: NotFiniteError) -> NoReturn:
        """Keep the weights and batches of a step that was not taken, and say how to look at them."""
        step, weights = self.step + 1, self.whole_weights()
        what = f"the {error.what} of step {step} is not finite"
        if not error.batches:
            raise BrimError(f"{what}, on another rank; its error names the samples") from None
        directory = self.output / f"not-finite-{step:08d}-rank{self.ranks.rank}"
        save_repro(directory, self.config, self.model, weights, self.tokenizer, list(error.batches))
        ids = [repr(id) for batch in error.batches for id in batch.ids]
        named = ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
        numbers = ", ".join(str(batch.index) for batch in error.batches)
        found = files.checkpoints(self.output)
        raise BrimError(
            f"{what}: microbatch {numbers} of epoch {error.batches[0].epoch}, samples {named}. The step was not "
            f"taken; run `python {directory / SCRIPT}` to see it again. The last checkpoint is "
            f"{found[-1] if found else 'none yet'}"
        ) from None
