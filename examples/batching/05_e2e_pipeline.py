"""The whole pipeline: from a JSONL file to a trained model, by both paths.

    data set -> tokenizer -> lengths -> plan -+-> token store -> loader -> training     streaming, recommended
                                              +-> BatchWriter -> NPZ files -> training  offline

The plan decides every batch in advance, so the two paths train on the same batches in the same order and end with the
same weights, and a run that was killed on one path can be resumed on the other. Needs torch.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from brim import (
    BatchingConfig,
    BatchPlan,
    BatchReader,
    BatchWriter,
    LengthCache,
    Samples,
    build_lengths,
    build_tokens,
    collate,
    load_tokenizer,
    open_source,
)
from brim.batch.torch import TensorBatch, loader
from brim.data import write_sample_data

torch.set_num_threads(1)
WIDTH, EPOCHS, RANKS = 32, 2, 4


class Tiny(nn.Module):
    """One causal attention layer over bytes. Padding is on the right, so causal attention needs no mask for it."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.attend = nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.think = nn.Sequential(
            nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 128), nn.ReLU(), nn.Linear(128, vocabulary)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mixed = functional.scaled_dot_product_attention(*self.attend(x).chunk(3, dim=-1), is_causal=True)
        return self.think(torch.cat([x, mixed], dim=-1))


def train(model: nn.Module, batches: Iterable[TensorBatch]) -> list[float]:
    """A plain training loop. Returns the loss of every step; `cross_entropy` ignores labels of -100."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for batch in batches:
        logits = model(batch.input_ids)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return Tiny(tokenizer.vocab_size)


with tempfile.TemporaryDirectory() as directory:
    folder = Path(directory)

    # 1. A data set: rows with a prompt and a response. Use your own JSONL file here.
    write_sample_data(folder / "train.jsonl", 300)
    source = open_source(folder / "train.jsonl")

    # 2. A tokenizer. Only the tokens of the response are trained on.
    tokenizer = load_tokenizer("byte")
    samples = Samples(source, tokenizer)
    first = samples[0]
    print(
        f"1. {len(source)} rows; row 0 is sample {first.id}: {first.length} tokens, {first.num_loss_tokens} of them "
        "trained on"
    )

    # 3. Lengths: one pass over the data, and all that planning needs. From the shell: brim lengths build -d train.jsonl
    # -o lengths.brim
    build_lengths(folder / "train.jsonl", folder / "lengths.brim", tokenizer)
    lengths = LengthCache.load(folder / "lengths.brim")
    print(
        f"2. lengths: {len(lengths)} samples, {lengths.lengths.sum()} tokens, the longest has {lengths.lengths.max()}"
    )

    # 4. A plan. From the shell: brim plan build -l lengths.brim -b 4096 -e 2 --overflow truncate --overflow-max 256 -o
    # plan/
    config = BatchingConfig.throughput(token_budget=4096, overflow="truncate", overflow_max=256, seed=1)
    plan = BatchPlan.build(lengths, config, num_epochs=EPOCHS)
    print(
        f"3. plan: {plan.total_microbatches} batches in {EPOCHS} epochs, fill {plan.get_epoch(0).fill}, "
        f"{plan.counts.truncated} samples cut"
    )

    # 5. Streaming. The token store is written once and mapped into memory; the loader makes batches from it while the
    # model trains. It walks `plan.iter_epoch`, which is all there is to a batch:
    store = build_tokens(source, folder / "tokens.brim", tokenizer, samples.layout, lengths)
    by_hand = [collate(microbatch, store, dtype=np.int64) for microbatch in plan.iter_epoch(0)]
    streaming = loader(plan, store)
    streamed = [batch for _ in range(EPOCHS) for batch in streaming]  # kept to compare them; a run would not
    assert all(
        np.array_equal(batch.labels.numpy(), mine.labels) for batch, mine in zip(streamed, by_hand, strict=False)
    )
    model_streaming = new_model()
    losses_streaming = train(model_streaming, streamed)

    # 6. Offline. The same batches as files, for a trainer that cannot run brim. From the shell:
    # brim batch write -p plan/ -d train.jsonl -o batches/
    as_int64 = partial(collate, dtype=np.int64)  # what torch wants of labels; int32 otherwise
    written = BatchWriter(plan, store, folder / "batches", as_int64).write_all()
    reader = BatchReader(folder / "batches")
    assert reader.verify_fingerprint(plan.fingerprint)
    model_offline = new_model()
    losses_offline = train(
        model_offline, (TensorBatch.of(batch) for epoch in range(EPOCHS) for batch in reader.iter_epoch(epoch))
    )
    again = BatchWriter(plan, store, folder / "batches", as_int64).write_all()
    print(f"4. wrote {written.written} NPZ files; written again: {again.written}, all {again.kept} were there")

    # 7. Both paths train the same model.
    print(f"\n{'step':>6}{'loss, streaming':>18}{'loss, from files':>18}")
    for step in (0, len(losses_streaming) // 4, len(losses_streaming) // 2, len(losses_streaming) - 1):
        print(f"{step:>6}{losses_streaming[step]:>18.3f}{losses_offline[step]:>18.3f}")
    assert losses_streaming == losses_offline
    assert losses_streaming[-1] < 0.7 * losses_streaming[0]
    pairs = zip(model_streaming.parameters(), model_offline.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    print("both paths give the same loss at every step and the same weights")

    # 8. Killed while streaming, resumed from files: a position belongs to the plan, which both paths follow.
    killed_at = 10
    model = new_model()
    position = streamed[killed_at - 1].after
    halves = [TensorBatch.of(batch) for batch in reader.iter_from(position)]
    assert train(model, [*streamed[:killed_at], *halves]) == losses_streaming
    print(
        f"\nkilled after {killed_at} streamed batches and resumed from files with the other {len(halves)}: the same "
        "losses again"
    )

    # 9. Ranks. Each takes its share of the plan and makes equally many batches; nothing is sent between them.
    shares = [list(loader(plan, store, rank=rank, world_size=RANKS)) for rank in range(RANKS)]
    assert Counter(id for share in shares for batch in share for id in batch.ids) == Counter(lengths.ids)
    assert len({len(share) for share in shares}) == 1
    print(f"\n{RANKS} ranks take {len(shares[0])} batches each, every sample exactly once in the epoch")
    BatchWriter(plan.shard(3, RANKS), store, folder / "rank_3").write_epoch(0)
    files = BatchReader(folder / "rank_3").iter_epoch(0)
    assert [batch.ids for batch in files] == [batch.ids for batch in shares[3]]
    print(f"the files of rank 3 hold its {len(files)} batches, {sum(batch.is_null for batch in files)} of them empty")

    # One step of all ranks: losses are summed and divided by the learned tokens of the whole step, so it is the step of
    # one process.
    def summed_loss(batch: TensorBatch) -> Tensor:
        logits = new_model()(batch.input_ids)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(), reduction="sum")

    together = [share[0] for share in shares]
    learned = sum(batch.num_loss_tokens for batch in together)
    over_ranks = sum(summed_loss(batch).item() for batch in together) / learned
    whole_step = next(iter(loader(plan, store, rank=0, world_size=1, microbatches_per_step=RANKS).steps()))
    on_one = sum(summed_loss(batch).item() for batch in whole_step) / sum(batch.num_loss_tokens for batch in whole_step)
    assert abs(over_ranks - on_one) < 1e-6
    print(
        f"the first step over {RANKS} ranks has loss {over_ranks:.3f}, on one rank with {RANKS} batches to a step "
        f"{on_one:.3f}"
    )
