"""torchdata's StatefulDataLoader with brim's sampler: its state is exact to the batch, with worker processes too.

python examples/integrations/stateful_dataloader.py
"""

import json

from tiny import exactly_once, tiny_data
from torchdata.stateful_dataloader import StatefulDataLoader

from brim.batch.torch import PlanBatchSampler, TokenDataset, as_is

store, plan = tiny_data()


def make_loader() -> StatefulDataLoader:
    """Make a loader. The sampler handles ranks and epochs and the data set makes whole batches: nothing to collate."""
    return StatefulDataLoader(
        TokenDataset(store, flat=True), batch_sampler=PlanBatchSampler(plan), collate_fn=as_is, num_workers=2
    )


if __name__ == "__main__":
    seen = []
    loader = make_loader()
    for number, batch in enumerate(loader, 1):
        seen += [(batch.epoch, sample) for sample in batch.ids]
        if number == 12 and batch.ends_step:  # between optimizer steps, as any checkpoint
            break
    saved = json.dumps(loader.state_dict())
    print(f"stopped after {number} batches of {len(loader)}, while workers had fetched more")

    loader = make_loader()
    loader.load_state_dict(json.loads(saved))
    for _ in range(plan.num_epochs):  # the rest of epoch 0, then epoch 1
        for batch in loader:
            seen += [(batch.epoch, sample) for sample in batch.ids]
    assert exactly_once(seen, plan)
    print(f"resumed: each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
