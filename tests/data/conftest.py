"""A data set on disk, and real tokenizers, trained or built on the spot."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from brim.data.rows import jsonl
from brim.data.synthetic import write_sample_data

CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif "
    "%}"
)
TEXT = [
    "the sum of two numbers",
    "hello world, this is a chat",
    "user and assistant",
    "sort the words: apple pear plum",
] * 5


def trained(specials: list[str]) -> tokenizers.Tokenizer:
    """A small byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    return backend


@pytest.fixture(scope="session")
def bpe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lone tokenizer.json that starts every text with <s>, and asks for truncation and padding."""
    backend = trained(["<s>", "</s>", "<pad>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(4)
    backend.enable_padding(length=8, pad_id=2, pad_token="<pad>")
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    backend.save(str(path))
    return path


@pytest.fixture(scope="session")
def plain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json without any special token."""
    path = tmp_path_factory.mktemp("plain") / "plain.json"
    trained([]).save(str(path))
    return path


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `save_pretrained` writes it, with a chat template."""
    return save_chat(tmp_path_factory.mktemp("chat") / "tiny-chat", CHATML)


def save_chat(path: Path, template: str) -> Path:
    from transformers import PreTrainedTokenizerFast

    backend = trained(["<s>", "<|im_start|>", "<|im_end|>", "<pad>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        chat_template=template,
        model_max_length=16,
    )
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def chat_saver():
    return save_chat


@pytest.fixture
def data(tmp_path):
    write_sample_data(tmp_path / "train.jsonl", 200)
    return tmp_path / "train.jsonl"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 2000)
