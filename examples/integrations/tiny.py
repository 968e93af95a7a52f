"""Shared by the examples here: short texts, a plan for them, and a Llama of a few thousand weights."""

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from brim import (
    BatchingConfig,
    BatchPlan,
    LengthCache,
    LengthEntry,
    PackingConfig,
    Samples,
    TokenStore,
    load_tokenizer,
    open_source,
)
from brim.batch.attention import register
from brim.data import write_sample_data

logging.set_verbosity_error()
torch.set_num_threads(1)  # for so few weights, threads wait for each other


def tiny_data(n: int = 120, num_epochs: int = 2) -> tuple[TokenStore, BatchPlan]:
    """Return tokens and a packed plan with optimizer steps of 4 microbatches, on any number of ranks."""
    tokenizer = load_tokenizer("byte")
    with tempfile.TemporaryDirectory() as folder:
        write_sample_data(Path(folder, "train.jsonl"), n)
        store = TokenStore.from_samples(
            Samples(open_source(Path(folder, "train.jsonl")), tokenizer), pad_id=tokenizer.pad_id
        )
    lengths = LengthCache.from_lengths(
        LengthEntry(number, length) for number, length in enumerate(store.lengths.tolist())
    )
    packing = PackingConfig(max_length=512)
    config = BatchingConfig(token_budget=512, packing=packing, overflow="truncate", microbatches_per_step=4)
    return store, BatchPlan.build(lengths, config, num_epochs=num_epochs)


def tiny_model() -> LlamaForCausalLM:
    """Return a model with the same weights every time, whose attention does not cross the samples of a packed row."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(register())
    return model


def exactly_once(seen: list[tuple[int, int]], plan: BatchPlan) -> bool:
    """Return whether each sample was seen exactly once in each epoch."""
    return sorted(seen) == [(epoch, sample) for epoch in range(plan.num_epochs) for sample in range(len(plan.table))]
