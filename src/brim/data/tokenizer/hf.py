"""Tokenizers of the Hugging Face family, run by `tokenizers`.

Whatever its origin (a tokenizer.json, a directory, the hub's local cache), a tokenizer is kept as one serialised
backend, the special tokens and the chat template: everything that changes ids, and all that is sent to a worker
process. `transformers` is used only to read directories. Truncation and padding that a file configures are disabled:
texts are encoded in full.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.data.tokenizer.base import Message, Tokens
from brim.data.tokenizer.template import render_template
from brim.data.tokenizer.words import words_of

USER = "brim.data.tokenizer.hf"
WAYS_OUT = "use -t byte, a path of a tokenizer.json or of a directory that holds one"

# Special tokens of well-known vocabularies, for a lone tokenizer.json that does not tell its own. The first match wins.
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "[EOS]", "[SEP]")
STARTS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "[CLS]")
PADS = ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")

# The characters that byte-level BPE writes for bytes: printable ones for themselves, U+0100 and up for the others.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(0x100) if byte not in _PRINTABLE)
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + n): byte for n, byte in enumerate(_OTHERS)}


class HfTokenizer:
    """A `tokenizers` backend with its special tokens. Pickles as its serialised form."""

    def __init__(
        self,
        serialized: str,
        *,
        name: str,
        bos: str | None = None,
        eos: str | None = None,
        pad: str | None = None,
        template: str | None = None,
    ) -> None:
        self._state: dict[str, Any] = {
            "serialized": serialized,
            "name": name,
            "bos": bos,
            "eos": eos,
            "pad": pad,
            "template": template,
        }
        self.name = name
        backend = need("tokenizers", extra="hf", user=USER).Tokenizer.from_str(serialized)
        backend.no_truncation()
        backend.no_padding()
        self._backend: Any = backend
        self._words = words_of(backend)
        self._specials = {
            key: token
            for key, token in (("bos_token", bos), ("eos_token", eos), ("pad_token", pad))
            if token is not None
        }
        self._template = template
        self.bos_id, self.eos_id = self._id(bos), self._id(eos)
        pad_id = self._id(pad)
        self.pad_id: int = pad_id if pad_id is not None else (self.eos_id or 0)
        added: list[int] = backend.encode("a", add_special_tokens=True).ids
        self.adds_bos = self.bos_id is not None and added[:1] == [self.bos_id]
        self.has_chat_template = template is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self._state,))

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _vocab_size(self) -> int:
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def _fingerprint(self) -> str:
        backend = self._backend.to_str()
        return fingerprint(backend=backend, specials=self._specials, template=self._template, adds_bos=self.adds_bos)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        if self._words is not None:
            return self._words.encode_batch(texts)
        return [
            np.array(encoding.ids, np.int32)
            for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def count_batch(self, texts: Sequence[str]) -> NDArray[np.int32]:
        if self._words is not None:
            return self._words.count_batch(texts)
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return np.fromiter(map(len, encodings), np.int32, len(encodings))

    def encode_ends(self, texts: Sequence[str]) -> list[tuple[Tokens, NDArray[np.int32]]]:
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(e.ids, np.int32), np.array([end for _, end in e.offsets], np.int32)) for e in encodings]

    def render_chat(self, messages: Sequence[Message], *, reply: bool = False) -> str:
        if self._template is None:
            raise OptionError(f"the tokenizer {self.name} has no chat template")
        return render_template(self._template, messages, reply=reply, specials=self._specials)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """Return the text of ids, without special tokens."""
        return self._backend.decode([int(id) for id in ids], skip_special_tokens=True)

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...] | None:
        """The UTF-8 bytes that each id adds to the text before it; none for special tokens.

        `decode` differs from their concatenation in two ways: bytes that are not valid UTF-8 become U+FFFD, and spaces
        at the start of a text can be dropped. None if the decoder is not known to work token by token.
        """
        decoder = self._backend.decoder
        to_bytes = None if decoder is None else _token_decoder(json.loads(decoder.__getstate__()))
        if to_bytes is None:
            return None
        special = {token.content for token in self._backend.get_added_tokens_decoder().values() if token.special}
        tokens = map(self._backend.id_to_token, range(self.vocab_size))
        return tuple(b"" if token is None or token in special else to_bytes(token) for token in tokens)

    def save(self, directory: Path) -> None:
        """Write a tokenizer.json and a tokenizer_config.json, which `transformers` and `load_tokenizer` read."""
        (directory / "tokenizer.json").write_text(self._backend.to_str(pretty=True))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._specials}
        if self._template is not None:
            config["chat_template"] = self._template
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _token_decoder(decoder: dict[str, Any]) -> Callable[[str], bytes] | None:
    """Return the function from a token to the bytes of its text, for a decoder as a tokenizer.json describes it."""
    match decoder:
        case {"type": "ByteLevel"}:
            return _byte_level
        case {"type": "Metaspace", "replacement": str(space)}:
            return lambda token: token.replace(space, " ").encode()
        case {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": str(space)}, "content": str(content)},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *rest,
            ],
        } if rest == [] or (len(rest) == 1 and rest[0]["type"] == "Strip" and rest[0]["stop"] == 0):
            return lambda token: _byte_fallback(token.replace(space, content))
        case _:
            return None


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(BYTE_OF.__getitem__, token))
    except KeyError:  # an added token, which is written as it is
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    """Return the bytes of a token of sentencepiece: those of its text, or one byte that is spelled as <0x0A>."""
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return bytes.fromhex(byte[1]) if byte else token.encode()


def _restore(state: dict[str, Any]) -> HfTokenizer:
    return HfTokenizer(**state)


def from_file(path: Path) -> HfTokenizer:
    """Load a lone tokenizer.json.

    Its special tokens are those that it adds to a text, or else those with well-known names (`ENDS`, `STARTS`, `PADS`).
    """
    tokenizers = need("tokenizers", extra="hf", user=USER)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise OptionError(f"{path} is not a tokenizer.json ({_line(error)}); {WAYS_OUT}") from None
    return from_backend(backend, name=path.parent.resolve().name if path.name == "tokenizer.json" else path.name)


def from_backend(backend: Any, *, name: str) -> HfTokenizer:
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    plain, added = (backend.encode("a", add_special_tokens=add).tokens for add in (False, True))
    before, _, after = _around(added, plain)
    eos = after or next((token for token in ENDS if token in special), None)
    bos = before or next((token for token in STARTS if token in special), None)
    return HfTokenizer(
        _checked(backend.to_str(), name),
        name=name,
        bos=bos,
        eos=eos,
        pad=next((token for token in PADS if token in special), None),
    )


def from_directory(path: Path, *, name: str) -> HfTokenizer:
    """Load a directory that `save_pretrained` wrote. `transformers` reads it, from its files alone."""
    if (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        return from_file(path / "tokenizer.json")
    if not any(
        (path / file).is_file()
        for file in ("tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    ):
        raise OptionError(
            f"{path} is a directory without a tokenizer (no tokenizer.json, no tokenizer_config.json); {WAYS_OUT}"
        )
    transformers = _transformers()
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a configuration can make it raise anything
        raise OptionError(f"cannot read the tokenizer in {path} ({_line(error)}); {WAYS_OUT}") from None
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise OptionError(
            f"the tokenizer in {path} has no fast version ({type(loaded).__name__}); convert it to a tokenizer.json"
        )
    template = loaded.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    names = {key: getattr(loaded, f"{key}_token") for key in ("bos", "eos", "pad")}
    return HfTokenizer(
        _checked(backend.to_str(), name), name=name, template=template, **{k: v and str(v) for k, v in names.items()}
    )


def from_hub_cache(name: str) -> HfTokenizer:
    """Load a tokenizer by its hub name from the local cache of earlier downloads. `gpt2` needs no download."""
    folder = _snapshot(name)
    if folder is not None:
        return from_directory(folder, name=name)
    if name == "gpt2":
        from brim.data.tokenizer.gpt2 import gpt2_backend

        return from_backend(gpt2_backend(), name="gpt2")
    raise OptionError(
        f"there is no tokenizer {name!r} on this machine: no such file or directory, and not in the local hub cache; "
        f"{WAYS_OUT}, or fetch it once where there is a network: hf download {name}"
    )


def _snapshot(name: str) -> Path | None:
    """Return the directory of a name's files in the hub's local cache, or None.

    The name is resolved before any file is read, so that nothing accesses the network.
    """
    constants = need("huggingface_hub.constants", extra="hf", user=USER)
    if not (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir():
        return None  # before the hub's client is imported, which takes longer than everything else
    hub = need("huggingface_hub", extra="hf", user=USER)
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # an incomplete snapshot, or a name that the hub cannot have
        return None


def _transformers() -> Any:
    """Import `transformers` without its warning that torch is missing: only its tokenizers are used here."""
    logger = logging.getLogger("transformers")

    def wanted(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger.addFilter(wanted)
    try:
        return need("transformers", extra="hf", user=USER)
    finally:
        logger.removeFilter(wanted)


def _around(added: list[str], plain: list[str]) -> tuple[str | None, list[str], str | None]:
    """Return the token added before a text, the tokens of the text, and the token added after it.

    If not exactly one token is added, it is None.
    """
    start = next((i for i in range(len(added) - len(plain) + 1) if added[i : i + len(plain)] == plain), 0)
    before, after = added[:start], added[start + len(plain) :]
    return (before[0] if len(before) == 1 else None), plain, (after[0] if len(after) == 1 else None)


def _checked(serialized: str, name: str) -> str:
    """Refuse a backend with BPE dropout, which gives a text another length every time. Return the others unchanged."""
    if json.loads(serialized)["model"].get("dropout"):
        raise OptionError(
            f"the tokenizer {name} splits at random (BPE dropout); set model.dropout to null in its tokenizer.json"
        )
    return serialized


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
