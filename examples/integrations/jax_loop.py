"""JAX: a jitted step that is compiled once for each bucket, stopped in the middle of an epoch and resumed.

    python examples/integrations/jax_loop.py

The model is a table of which byte follows which. The example is about the loop around it: shapes are fixed, the
gradients of the microbatches of a step are added up, and each step is divided by its own number of tokens.
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from brim import BatchingConfig, BatchPlan, LengthCache, LengthEntry, Samples, TokenStore, load_tokenizer, open_source
from brim.batch.jax import Arrays, JaxLoader, loader, shapes
from brim.data import write_sample_data

tokenizer = load_tokenizer("byte")
with tempfile.TemporaryDirectory() as folder:
    write_sample_data(Path(folder, "train.jsonl"), 120)
    store = TokenStore.from_samples(
        Samples(open_source(Path(folder, "train.jsonl")), tokenizer), pad_id=tokenizer.pad_id
    )
lengths = LengthCache.from_lengths(LengthEntry(number, length) for number, length in enumerate(store.lengths.tolist()))
config = BatchingConfig.predictable(token_budget=4096, num_buckets=4, microbatches_per_step=2)
plan = BatchPlan.build(lengths, config, num_epochs=2)
compiled = []


@jax.jit
def gradient(table: jax.Array, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    """Return the summed loss of a microbatch and its gradient."""
    compiled.append(arrays.tokens.shape)  # runs when it is compiled, not when it is called

    def loss(table: jax.Array) -> jax.Array:
        targets = arrays.labels[:, 1:]
        scores = jax.nn.log_softmax(table[arrays.tokens[:, :-1]])
        picked = jnp.take_along_axis(scores, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
        return -jnp.where(targets >= 0, picked, 0).sum()

    return jax.value_and_grad(loss)(table)


def train(
    table: jax.Array, batches: JaxLoader, seen: list[tuple[int, int]], stop_after: int | None = None
) -> jax.Array:
    while batches.epoch < plan.num_epochs:
        for step in batches.steps():
            gradients = [gradient(table, batch.arrays)[1] for batch in step]
            table = table - 20 * sum(gradients) / sum(batch.num_loss_tokens for batch in step)
            seen += [(batch.epoch, sample) for batch in step for sample in batch.ids]
            if batches.position.global_step == stop_after:
                return table
    return table


seen: list[tuple[int, int]] = []
batches = loader(plan, store)
table = train(jnp.zeros((tokenizer.vocab_size, tokenizer.vocab_size)), batches, seen, stop_after=5)
saved = json.dumps(batches.state_dict())  # next to the table, in a real checkpoint
print(f"stopped after 5 steps, at microbatch {batches.position.microbatch_idx} of epoch {batches.position.epoch}")

batches = loader(plan, store)
batches.load_state_dict(json.loads(saved))
table = train(table, batches, seen)
assert sorted(seen) == [(epoch, sample) for epoch in range(2) for sample in range(len(store))]
print(f"resumed: each of {len(store)} samples was seen exactly once in each of {plan.num_epochs} epochs")
assert len(compiled) == len(set(compiled)) <= len(shapes(plan))
print(
    f"compiled {len(compiled)} times, once for each of the shapes "
    f"{', '.join(f'{rows} x {width}' for rows, width in shapes(plan))}"
)
