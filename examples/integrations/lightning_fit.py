"""Lightning with brim's loader, stopped in the middle of an epoch and resumed from Lightning's checkpoint.

    python examples/integrations/lightning_fit.py

Lightning saves the state of a loader that has one, and loads it before it fetches. It takes every epoch to be as long
as the first, and every step to have as many batches as any other, so the loader is one of the whole run: to Lightning
the plan is one epoch, whose steps all have `batches_per_step` batches. For 16 bits use precision="bf16-mixed":
"bf16-true" rebuilds batches, and cannot rebuild these.
"""

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny import exactly_once, tiny_data, tiny_model

from brim.batch.torch import TensorBatch, loader


class TinyModule(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_model()
        self.tokens = 0
        self.seen: list[tuple[int, int]] = []

    def training_step(self, batch: TensorBatch) -> torch.Tensor:
        self.tokens += batch.num_loss_tokens
        self.seen += [(batch.epoch, sample) for sample in batch.ids]
        return self.model(**batch.inputs(), labels=batch.labels, num_items_in_batch=1).loss  # the sum over tokens

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        """Divide by the tokens of the step, over all ranks, and undo Lightning's division by batches and ranks."""
        tokens = self.trainer.strategy.reduce(torch.tensor(self.tokens, device=self.device), reduce_op="sum")
        for weight in self.model.parameters():
            weight.grad *= self.trainer.accumulate_grad_batches * self.trainer.world_size / tokens
        self.tokens = 0

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Correct Lightning's count of batches: a step has more or fewer of them on another number of ranks."""
        counted = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        shift = checkpoint["global_step"] * self.trainer.accumulate_grad_batches - counted["ready"]
        counted.update({name: counted[name] + shift for name in ("ready", "started", "processed", "completed")})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def train(
    folder: Path, stop_after: int = -1, resume: Path | None = None, *, rank: int = 0, world_size: int = 1
) -> TinyModule:
    store, plan = tiny_data()
    module, batches = TinyModule(), loader(plan, store, rank=rank, world_size=world_size, whole_run=True)
    trainer = lightning.Trainer(
        max_epochs=1,
        max_steps=stop_after,
        accumulate_grad_batches=batches.batches_per_step,
        use_distributed_sampler=False,  # the loader deals with ranks
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, batches, ckpt_path=resume)
    return module


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        before = train(Path(folder), stop_after=5)
        after = train(Path(folder), resume=Path(folder, "step=5.ckpt"))
    store, plan = tiny_data()
    assert exactly_once(before.seen + after.seen, plan)
    print("stopped after 5 steps, resumed from Lightning's checkpoint:")
    print(f"each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
