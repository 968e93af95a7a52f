"""Tokenizers that are given as objects: brim's own, those of transformers, and those of tokenizers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from brim.core.errors import OptionError
from brim.data.tokenizer.base import Tokenizer, load_tokenizer
from brim.data.tokenizer.hf import from_backend, from_directory


def as_tokenizer(given: Any) -> Tokenizer:
    """Return a tokenizer that is in memory as one of ours: brim's, one of transformers, or one of tokenizers.

    Raises:
        OptionError: It is none of them.
    """
    if isinstance(given, str | Path):
        return load_tokenizer(given)
    if all(hasattr(given, name) for name in ("encode_batch", "count_batch", "fingerprint")):
        return given
    if hasattr(given, "save_pretrained"):
        with TemporaryDirectory() as folder:
            given.save_pretrained(folder)
            return from_directory(Path(folder), name=str(getattr(given, "name_or_path", "")) or type(given).__name__)
    if hasattr(given, "get_added_tokens_decoder"):
        return from_backend(given, name=type(given).__name__)
    raise OptionError(
        f"tokenizer must be a name or a tokenizer of brim, transformers or tokenizers, got {type(given).__name__}"
    )
