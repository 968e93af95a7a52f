"""Hugging Face's Trainer with brim's sampler, stopped in the middle of an epoch and continued from its own checkpoint.

    python examples/integrations/hf_trainer.py

The Trainer counts: it takes every epoch to be as long as the first, every step to have as many batches as any other, and a run to go on
after as many batches as it has counted. A sampler of the whole run is made for that. To the Trainer the plan is one epoch, whose steps
all have `batches_per_step` batches. It skips batches without reading them, and on another number of processes the steps stay the same.
"""

import tempfile

from tiny import exactly_once, tiny_data, tiny_model
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from brim import BatchPlan, TokenStore
from brim.batch.torch import PlanBatchSampler, TensorBatch, TokenDataset, as_inputs


class PlanTrainer(Trainer):
    """Trains on the batches of a plan. The rest is the Trainer's: it adds up the tokens of a step and divides the loss by them."""

    def __init__(self, plan: BatchPlan, store: TokenStore, args: TrainingArguments, **options) -> None:
        self.seen: list[tuple[int, int]] = []
        self.sampler = PlanBatchSampler(plan, rank=args.process_index, world_size=args.world_size, whole_run=True)
        args.num_train_epochs, args.gradient_accumulation_steps = 1, self.sampler.batches_per_step
        super().__init__(args=args, train_dataset=TokenDataset(store, flat=plan.config.packing is not None), **options)

    def get_train_dataloader(self) -> DataLoader:
        """Not through `accelerator.prepare`, which would deal out the batches a second time."""
        return DataLoader(self.train_dataset, batch_sampler=self.sampler, collate_fn=self.collate)

    def collate(self, batch: TensorBatch) -> dict:
        self.seen += [(batch.epoch, sample) for sample in batch.ids]  # for the example; `collate_fn=as_inputs` is all that is needed
        return as_inputs(batch)


class StopAfter(TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **_) -> None:
        control.should_training_stop = state.global_step == self.steps


def train(folder: str, stop_after: int | None = None, resume: bool = False) -> PlanTrainer:
    store, plan = tiny_data()
    args = TrainingArguments(
        folder, save_strategy="steps", save_steps=5, logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = PlanTrainer(plan, store, args, model=tiny_model(), callbacks=[StopAfter(stop_after)] if stop_after else [])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        before = train(folder, stop_after=5)
        after = train(folder, resume=True)
    store, plan = tiny_data()
    assert exactly_once(before.seen + after.seen, plan)
    print("stopped after 5 steps, continued from the Trainer's checkpoint:")
    print(f"each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
