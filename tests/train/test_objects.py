"""`train_sft` with objects instead of names: a model, a tokenizer, and rows in memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.worlds import lines, weights

from brim.core.errors import DataError, MismatchError, OptionError
from brim.data.rows.open import open_source
from brim.data.sample import Sample
from brim.data.tokenizer.base import ByteTokenizer
from brim.plan.config import BatchingConfig
from brim.train.callbacks import Callback
from brim.train.config import SftConfig
from brim.train.sft import find_checkpoint, train_sft

ROWS = [{"prompt": f"{n}+{n}=", "response": f"{2 * n}"} for n in range(40)]


@pytest.fixture
def bare(tmp_path):
    """Options that name neither model nor data."""
    batching = BatchingConfig(token_budget=128)
    return SftConfig(
        output=str(tmp_path / "run"),
        batching=batching,
        learning_rate=1e-2,
        save_every=2,
        log_every=1,
        tensorboard=False,
        max_steps=4,
    )


def llama(seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=259,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(shape)


def test_a_model_a_tokenizer_and_a_list_of_rows_are_trained_in_place(bare):
    model = llama()
    before = model.lm_head.weight.detach().clone()
    reports = []
    result = train_sft(bare, model=model, tokenizer=ByteTokenizer(), data=ROWS, on_step=reports.append)
    assert result.taken == len(reports) == 4
    assert not torch.equal(before, model.lm_head.weight)
    assert torch.equal(weights(Path(bare.output))["lm_head.weight"], model.lm_head.weight)
    assert lines(Path(bare.output) / "data" / "rows.jsonl") == ROWS


def test_rows_samples_a_dataset_a_source_and_a_path_are_the_same_data(bare, tmp_path):
    from datasets import Dataset

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    ways = {
        "rows": ROWS,
        "dataset": Dataset.from_list(ROWS),
        "source": open_source(tmp_path / "rows.jsonl"),
        "path": tmp_path / "rows.jsonl",
    }
    losses = {}
    for name, data in ways.items():
        config = replace(bare, output=str(tmp_path / name), max_steps=1)
        losses[name] = train_sft(config, model=llama(), tokenizer="byte", data=data).last_loss
    assert len(set(losses.values())) == 1, losses
    samples = [Sample(f"s{n}", [1, 2, 3, n], [0, 0, 1, 1]) for n in range(20)]
    assert train_sft(bare, model=llama(), tokenizer="byte", data=samples).taken > 0


def test_a_run_on_objects_is_resumed_like_any_other(bare, tmp_path):
    whole = replace(bare, output=str(tmp_path / "whole"))
    train_sft(whole, model=llama(), tokenizer="byte", data=ROWS)

    class StopAt2(Callback):
        def on_step(self, run, report):
            if report.step == 2:
                run.stop()

    stopped = train_sft(bare, model=llama(), tokenizer="byte", data=ROWS, callbacks=[StopAt2()])
    assert stopped.stopped
    checkpoint = find_checkpoint(bare.output)
    with pytest.raises(MismatchError, match="the rows given are not those the run began with"):
        train_sft(bare, model=llama(), tokenizer="byte", data=ROWS[1:], resume=checkpoint)
    saved = json.loads((checkpoint / "state.json").read_bytes())["config"]
    assert saved["model"] == "an object of type LlamaForCausalLM"
    train_sft(SftConfig.from_dict(saved), resume=checkpoint)  # as the command does: by names alone
    assert torch.equal(weights(Path(bare.output))["lm_head.weight"], weights(Path(whole.output))["lm_head.weight"])
    assert [line["step"] for line in lines(Path(bare.output) / "log.jsonl")] == [1, 2, 3, 4]


def test_a_resumed_model_object_gets_the_weights_of_the_checkpoint(bare):
    train_sft(bare, model=llama(), tokenizer="byte", data=ROWS)
    again = llama(seed=9)
    result = train_sft(bare, model=again, tokenizer="byte", data=ROWS, resume=find_checkpoint(bare.output))
    assert result.taken == 0
    assert torch.equal(weights(Path(bare.output))["lm_head.weight"], again.lm_head.weight)


def test_a_tokenizer_of_transformers_is_taken_as_it_is(bare):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {**{chr(code): code for code in range(32, 127)}, "</s>": 1}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert train_sft(bare, model=llama(), tokenizer=wrapped, data=ROWS).taken == 4


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"data": ROWS}, OptionError, r"model is missing: .*train_sft\(model=...\)"),
        ({"model": "tiny"}, OptionError, r"data is missing"),
        (
            {"model": torch.nn.Linear(1, 1), "tokenizer": "byte", "data": ROWS},
            OptionError,
            "a causal language model of transformers, got Linear",
        ),
        ({"model": "tiny", "data": ["text"]}, DataError, "row 0 of the data is a str"),
        (
            {"model": "tiny", "data": [{"text": object()}]},
            DataError,
            "row 0 of the data cannot be written as JSON: a value is a object",
        ),
        (
            {"model": "tiny", "data": ROWS, "tokenizer": 3},
            OptionError,
            "tokenizer must be a name or a tokenizer of brim",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing_behind(bare, given, error, message):
    with pytest.raises(error, match=message):
        train_sft(bare, **given)
    assert not (Path(bare.output) / "run.json").exists()


def test_a_model_object_needs_its_tokenizer_and_float32(bare):
    with pytest.raises(OptionError, match="comes without its tokenizer: give tokenizer="):
        train_sft(bare, model=llama(), data=ROWS)
    with pytest.raises(OptionError, match=r"must be in float32, but .* is torch.bfloat16; call model.float\(\) first"):
        train_sft(bare, model=llama().bfloat16(), tokenizer="byte", data=ROWS)


def test_nothing_is_given_twice(bare, tmp_path):
    with pytest.raises(OptionError, match="model is given twice"):
        train_sft(replace(bare, model="tiny"), model=llama(), tokenizer="byte", data=ROWS)
