"""Packed, padded and one at a time: the same loss and the same gradients, on real models."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from brim import BatchingConfig, BatchPlan, LengthCache, LengthEntry, PackingConfig, Sample, TokenStore
from brim.batch.torch import TensorBatch, loader
from brim.core.errors import OptionError
from brim.train.loss import SftLoss, choose_attention, keeps_segments_apart
from brim.train.step import Stepper

EOS = 60
SHAPE = {"vocab_size": 64, "pad_token_id": EOS, "eos_token_id": EOS, "bos_token_id": 61}
LLAMA = {
    **SHAPE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, max_position_embeddings=128)),
    "mistral, sliding window": lambda: MistralForCausalLM(
        MistralConfig(**LLAMA, max_position_embeddings=128, sliding_window=8)
    ),
    "gpt2, learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(**SHAPE, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    ),
}
SAMPLES = [
    Sample(
        f"s{i}",
        [*np.random.default_rng(i).integers(0, 64, length - 1), EOS],
        [0] * (length // 3) + [1] * (length - length // 3),
    )
    for i, length in enumerate([1, 2, 3, 40, 17, 29, 5, 11, 23, 8, 31, 2])
]


def of(model, attention, batching):
    """Loss sum, and gradients, of all samples batched in some way."""
    table = LengthCache.from_entries([LengthEntry(sample.id, sample.length) for sample in SAMPLES])
    plan, store = BatchPlan.build(table, batching), TokenStore.from_samples(SAMPLES, pad_id=EOS)
    module = SftLoss(model, choose_attention(model, attention, packed=batching.packing is not None, longest=40))
    model.zero_grad()
    total = 0.0
    for batch in loader(plan, store, rank=0, world_size=1):
        loss = module(batch)
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters()}


PADDED = BatchingConfig(token_budget=128)
PACKED = BatchingConfig(token_budget=128, packing=PackingConfig(max_length=64))
ALONE = BatchingConfig(token_budget=128, max_sequences=1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention", ["auto", "brim", "sdpa", "eager"])
def test_packed_padded_and_alone_give_the_same_loss_and_gradients(name, attention):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # attention that matters
    loss, gradients = of(model, attention if attention != "auto" else "eager", ALONE)
    for batching in (PADDED, PACKED):
        if batching is PACKED and name.startswith("mistral") and attention in ("sdpa", "eager"):
            with pytest.raises(
                OptionError, match=f"does not keep the samples of a packed row apart with the attention {attention}"
            ):
                of(model, attention, batching)  # one mask cannot say which layers slide
            continue
        other, others = of(model, attention, batching)
        assert other == pytest.approx(loss, rel=1e-5)
        for weight, gradient in gradients.items():
            assert torch.allclose(others[weight], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max())), weight


def test_a_model_that_mixes_segments_whatever_it_is_told_is_refused():
    class Mixing(torch.nn.Module):
        """Every token sees the mean of all before it."""

        def __init__(self):
            super().__init__()
            self.config = LlamaConfig()
            self.embed, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)

        def get_input_embeddings(self):
            return self.embed

        def set_attn_implementation(self, name):
            pass

        def forward(self, input_ids, **_):
            seen = self.embed(input_ids).cumsum(1)
            return type("Output", (), {"logits": self.head(seen)})()

    model = Mixing()
    assert not keeps_segments_apart(model, "bounds")
    with pytest.raises(OptionError, match="does not keep the samples of a packed row apart with every kind"):
        choose_attention(model, "auto", packed=True, longest=5)
    assert choose_attention(model, "auto", packed=False, longest=5) == "none"


def test_an_empty_microbatch_has_no_loss_and_a_gradient_of_zero_everywhere():
    from brim.batch.collate import collate

    model = MODELS["llama"]()
    table = LengthCache.from_entries([LengthEntry(sample.id, sample.length) for sample in SAMPLES[:1]])
    null = BatchPlan.build(table, PADDED).shard(1, 2).get_epoch(0)[0]
    assert null.is_null
    for flat in (False, True):
        batch = TensorBatch.of(collate(null, TokenStore.from_samples(SAMPLES), dtype=np.int64, flat=flat))
        loss = SftLoss(model, choose_attention(model, "auto", packed=flat, longest=1))(batch)
        loss.backward()
        assert float(loss.detach()) == 0
        assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def test_dropout_depends_on_the_microbatch_and_not_on_what_came_before(options):
    from brim.plan.distributed import DistributedConfig
    from brim.train.ranks import Ranks

    model = LlamaForCausalLM(LlamaConfig(**LLAMA, attention_dropout=0.5))
    model.train()
    stepper = Stepper(SftLoss(model, "none"), options(), Ranks(DistributedConfig(), torch.device("cpu")))
    table = LengthCache.from_entries([LengthEntry(sample.id, sample.length) for sample in SAMPLES])
    batches = list(loader(BatchPlan.build(table, PADDED), TokenStore.from_samples(SAMPLES), rank=0, world_size=1))
    forward = [float(stepper._forward(batch).detach()) for batch in batches]
    backward = [float(stepper._forward(batch).detach()) for batch in reversed(batches)]
    assert forward == backward[::-1]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    stepper._forward(batches[0])
    assert torch.equal(torch.get_rng_state(), state)
