"""Hugging Face's Trainer with brim's sampler, stopped in the middle of an epoch and resumed from its own checkpoint.

    python examples/integrations/hf_trainer.py

The Trainer assumes that every epoch is as long as the first and that every step has equally many batches, and it
resumes by counting batches. So the sampler here covers the whole run: to the Trainer the plan is one epoch, whose steps
all have `batches_per_step` batches. The sampler skips batches without reading them, and the steps stay the same on
another number of processes.
"""

import tempfile

from tiny import exactly_once, tiny_data, tiny_model
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from brim import BatchPlan, TokenStore
from brim.batch.torch import PlanBatchSampler, TensorBatch, TokenDataset, as_inputs


class PlanTrainer(Trainer):
    """Trains on the batches of a plan. The Trainer itself divides the loss of a step by the tokens of the step."""

    def __init__(self, plan: BatchPlan, store: TokenStore, args: TrainingArguments, **options) -> None:
        self.seen: list[tuple[int, int]] = []
        self.sampler = PlanBatchSampler(plan, rank=args.process_index, world_size=args.world_size, whole_run=True)
        args.num_train_epochs, args.gradient_accumulation_steps = 1, self.sampler.batches_per_step
        super().__init__(args=args, train_dataset=TokenDataset(store, flat=plan.config.packing is not None), **options)

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader that did not go through `accelerator.prepare`, which would shard the batches again."""
        return DataLoader(self.train_dataset, batch_sampler=self.sampler, collate_fn=self.collate)

    def collate(self, batch: TensorBatch) -> dict:
        # For the check at the end; without it, pass as_inputs.
        self.seen += [(batch.epoch, sample) for sample in batch.ids]
        return as_inputs(batch)


class StopAfter(TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **_) -> None:
        control.should_training_stop = state.global_step == self.steps


def train(folder: str, stop_after: int | None = None, resume: bool = False) -> PlanTrainer:
    store, plan = tiny_data()
    args = TrainingArguments(
        folder,
        save_strategy="steps",
        save_steps=5,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = PlanTrainer(
        plan, store, args, model=tiny_model(), callbacks=[StopAfter(stop_after)] if stop_after else []
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        before = train(folder, stop_after=5)
        after = train(folder, resume=True)
    store, plan = tiny_data()
    assert exactly_once(before.seen + after.seen, plan)
    print("stopped after 5 steps, resumed from the Trainer's checkpoint:")
    print(f"each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
