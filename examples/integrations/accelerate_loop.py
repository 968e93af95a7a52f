"""Accelerate: a training loop on any number of processes, stopped in the middle of an epoch and resumed.

    python examples/integrations/accelerate_loop.py
    accelerate launch --cpu --num-processes 2 examples/integrations/accelerate_loop.py

`accelerator.prepare` takes the model and the optimizer. brim's loader may be passed along and is returned unchanged: it
is sharded by rank already. Do not pass a `DataLoader` around brim's sampler: Accelerate would shard it a second time.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from tiny import exactly_once, tiny_data, tiny_model

from brim.batch.torch import loader


def train(checkpoint: Path, stop_after: int | None = None) -> list[tuple[int, int]]:
    """Resume if there is a checkpoint, stop after so many steps, and return (epoch, number) of each sample seen."""
    accelerator = Accelerator(cpu=True)
    store, plan = tiny_data()
    batches = loader(plan, store, rank=accelerator.process_index, world_size=accelerator.num_processes)
    model = tiny_model()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches)
    accelerator.register_for_checkpointing(batches)
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))
    seen = []
    while batches.epoch < plan.num_epochs:
        for step in batches.steps():
            tokens = torch.tensor(sum(batch.num_loss_tokens for batch in step), device=accelerator.device)
            tokens = accelerator.reduce(tokens, "sum")  # of all ranks: one step has one mean
            for batch in step:
                with nullcontext() if batch.ends_step else accelerator.no_sync(model):
                    batch = batch.to(accelerator.device)
                    loss = model(**batch.inputs(), labels=batch.labels, num_items_in_batch=tokens).loss
                    accelerator.backward(loss * accelerator.num_processes)  # gradients are averaged over the ranks
                seen += [(batch.epoch, sample) for sample in batch.ids]
            optimizer.step()
            optimizer.zero_grad()
            if batches.position.global_step == stop_after:
                accelerator.save_state(str(checkpoint))
                return seen
    return seen


def main() -> None:
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        (shared,) = broadcast_object_list([folder])  # that of the main process
        before = train(Path(shared, "checkpoint"), stop_after=5)
        after = train(Path(shared, "checkpoint"))
        seen = gather_object(before + after)
        accelerator.wait_for_everyone()
    store, plan = tiny_data()
    assert exactly_once(seen, plan)
    accelerator.print(f"stopped after 5 steps on {accelerator.num_processes} processes, resumed:")
    accelerator.print(f"each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
    accelerator.end_training()


if __name__ == "__main__":
    main()
