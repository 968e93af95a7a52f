import pytest

from brim.data.synthetic import write_sample_data
from brim.data.tokenizer.base import ByteTokenizer
from brim.plan.config import BatchingConfig


@pytest.fixture(scope="module")
def one_thread():
    """Several tests run side by side, so torch takes one thread in each, whatever the environment says."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A directory with a Llama of twenty thousand weights, and some data."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from brim.train.model import save_tokenizer

    folder = tmp_path_factory.mktemp("small")
    shape = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        attention_dropout=0.1,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(shape).save_pretrained(folder / "model")
    save_tokenizer(ByteTokenizer(), folder / "model")
    write_sample_data(folder / "train.jsonl", 36)
    return folder


@pytest.fixture(scope="session")
def short_run(small):
    """Options of a short run in a directory; keywords change them."""
    from brim.train.config import SftConfig

    def make(output, **changes):
        values = {
            "model": str(small / "model"),
            "data": str(small / "train.jsonl"),
            "output": str(output),
            "batching": BatchingConfig(token_budget=1024, overflow="truncate"),
            "learning_rate": 1e-3,
            "tensorboard": False,
            "record_samples": True,
            "save_every": 3,
            "log_every": 1,
        }
        return SftConfig(**{**values, **changes})

    return make


@pytest.fixture
def options(short_run, tmp_path):
    """Options of a short run under a name; keywords change them."""

    def make(name="run", **changes):
        return short_run(tmp_path / name, **changes)

    return make
