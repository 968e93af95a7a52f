"""Sentence-embedding models in a directory, run by transformers and torch.

Texts are cut into tokens first; brim's planner then puts texts of similar length into one batch, so that little is
padding, and the vectors are put back into the order asked. Weights are read from safetensors in that directory and from
nowhere else: nothing is downloaded, no code of a model is run, no pickle is opened.

A text that is longer than the model reads is cut off at its end, as sentence-transformers does; `truncated` counts
them.
"""

import hashlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.core.options import check_counts
from brim.llm.embed.base import checked_texts
from brim.llm.embed.pooling import pool, read_recipe
from brim.plan.grouping.group import group_sorted

if TYPE_CHECKING:
    import torch

USER = "brim.llm.embed"
EXTRA = "hf,torch"
BATCH_TOKENS = 8192
"""Tokens in a batch, padding included, by default."""
TEXTS_AT_ONCE = 1024
"""Texts that are cut into tokens by one call."""
NO_LIMIT = 1 << 20
"""Tokenizers without a maximum length say 10^30."""


class TransformersEmbedder:
    """A sentence-embedding model of a directory on this machine.

    Example:
        embedder = TransformersEmbedder("all-MiniLM-L6-v2/")
        vectors = embedder.encode(["a cat", "a kitten"])
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        device: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        normalize: bool | None = None,
    ) -> None:
        """
        Args:
            directory: A model of transformers, with or without the files that sentence-transformers adds.
            device: As torch names it, such as "cpu" or "cuda:0". Default: the first GPU, or else the CPU.
            batch_tokens: Upper limit of the tokens in a batch, padding included. A longer text is a batch of its own.
            normalize: Whether vectors are scaled to length 1. Default: as the model's `modules.json` says.

        Raises:
            OptionError: There is no such directory, it holds no model that can be run, or there is no such device.
            DataError: Its description of the pooling is damaged, or asks for what brim cannot do.
            MissingExtraError: Torch or transformers is not installed.
        """
        check_counts(batch_tokens=batch_tokens)
        path = _checked_directory(Path(directory))
        self._recipe = read_recipe(path)
        self._torch = need("torch", extra=EXTRA, user=USER)
        self._device = _device(self._torch, device)
        self._tokenizer, self._pad = _tokenizer(path)
        self._model = _model(path, self._torch).to(self._device)
        self._batch_tokens = batch_tokens
        self._normalize = self._recipe.normalize if normalize is None else normalize
        self.max_length = min(self._recipe.max_length or NO_LIMIT, _max_length(self._model.config, self._tokenizer))
        """Upper limit of the tokens of a text."""
        self._tokenizer.backend_tokenizer.enable_truncation(self.max_length)
        self._tokenizer.backend_tokenizer.no_padding()
        self.dim: int = self._model.config.hidden_size * len(self._recipe.modes)
        self.name = f"{path.resolve().name}-{_digest(path, self._normalize)}"
        """Name of the directory, and a checksum of what is in it: other weights are another model."""
        self.truncated = 0
        """Number of texts so far that were longer than the model reads."""
        self._fill = Fill()

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def fill(self) -> Fill:
        return self._fill

    def encode(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, [n, dim], in their order.

        A text of which the tokenizer leaves no token gets the zero vector.
        """
        rows = self._tokens(checked_texts(texts))
        vectors = np.zeros((len(rows), self.dim), np.float32)
        lengths = np.array([len(row) for row in rows], np.int32)
        some = np.flatnonzero(lengths)
        for batch in _batches(lengths[some], self._batch_tokens):
            members = some[batch]
            vectors[members] = self._run([rows[member] for member in members], lengths[members])
        return vectors

    def _tokens(self, texts: list[str]) -> list[NDArray[np.int64]]:
        recipe, backend = self._recipe, self._tokenizer.backend_tokenizer
        rows: list[NDArray[np.int64]] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = [recipe.prefix + text for text in texts[start : start + TEXTS_AT_ONCE]]
            if recipe.lower:
                some = [text.lower() for text in some]
            for encoding in backend.encode_batch([_without_surrogates(text) for text in some]):
                rows.append(np.array(encoding.ids, np.int64))
                self.truncated += bool(encoding.overflowing)
        return rows

    def _run(self, rows: list[NDArray[np.int64]], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the vectors of one batch, [rows, dim]."""
        torch = self._torch
        width = int(lengths.max())
        ids = np.full((len(rows), width), self._pad, np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        self._fill += Fill(int(lengths.sum()), ids.size)
        # The mask comes from lengths: a token that equals the padding is a token.
        mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
        with torch.inference_mode():
            states = self._model(
                input_ids=torch.from_numpy(ids).to(self._device),
                attention_mask=torch.from_numpy(mask).to(self._device),
            ).last_hidden_state
            counts = torch.from_numpy(lengths.astype(np.int64)).to(self._device)
            pooled = torch.cat([pool(states, counts, mode) for mode in self._recipe.modes], dim=1)
            if self._normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=1)
            return pooled.float().cpu().numpy()


def _checked_directory(path: Path) -> Path:
    if not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "is a file" if path.exists() else "does not exist"
        raise OptionError(
            f"there is no embedding model in {path}: it {what}; give a directory with a model of transformers (nothing "
            "is downloaded), or the built-in model: hash"
        )
    if not any(path.glob("*.safetensors")):
        raise OptionError(
            f"{path} has no weights in safetensors, the only format that is read; convert them first (transformers: "
            "save_pretrained of a model you trust)"
        )
    return path


def _device(torch: Any, name: str | None) -> "torch.device":
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them for some names
        raise OptionError(f"there is no device {name!r} here ({str(error).splitlines()[0]})") from None
    if device.type == "meta":
        raise OptionError("the device 'meta' computes nothing; use cpu or cuda")
    return device


def _tokenizer(path: Path) -> tuple[Any, int]:
    """Return the tokenizer, and the number of its padding token."""
    transformers = need("transformers", extra=EXTRA, user=USER)
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a configuration can make it raise anything
        raise _cannot_load("tokenizer", path, error) from None
    if getattr(loaded, "backend_tokenizer", None) is None:
        raise OptionError(
            f"the tokenizer in {path} has no fast version ({type(loaded).__name__}); convert it to a tokenizer.json"
        )
    return loaded, loaded.pad_token_id or 0


def _model(path: Path, torch: Any) -> Any:
    """Return the model, in float32 and ready for inference; of an encoder-decoder, the encoder."""
    transformers = need("transformers", extra=EXTRA, user=USER)
    safetensors = need("safetensors", extra=EXTRA, user=USER)
    with _quiet():
        try:
            model, loading = transformers.AutoModel.from_pretrained(
                str(path),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            raise _cannot_load("model", path, error) from None
    # Transformers fills in random numbers. Those of the pooler are not used: it is a layer of BERT's training.
    missing = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
    if missing:
        raise OptionError(f"the model in {path} lacks {len(missing)} of its weights, such as {missing[0]}")
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    return model.to(torch.float32).eval()


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """Switch off the progress bars of transformers inside."""
    logging = need("transformers.utils.logging", extra=EXTRA, user=USER)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _max_length(config: Any, tokenizer: Any) -> int:
    """Return the number of tokens that a model reads: the least of what its tokenizer and its positions allow."""
    longest: int = min(tokenizer.model_max_length, NO_LIMIT)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions > 0:
        # The family of RoBERTa counts positions from the number after that of the padding token.
        offset = config.pad_token_id + 1 if "roberta" in config.model_type or config.model_type == "mpnet" else 0
        longest = min(longest, positions - offset)
    return longest


def _digest(path: Path, normalize: bool) -> str:
    digest = hashlib.blake2b(b"normalize" if normalize else b"", digest_size=4)
    files = [file for suffix in (".safetensors", ".json", ".txt", ".model") for file in path.glob(f"*{suffix}")]
    for file in sorted([*files, *path.glob("*/config.json")]):
        with open(file, "rb") as contents:
            digest.update(hashlib.file_digest(contents, "blake2b").digest())
    return digest.hexdigest()


def _batches(lengths: NDArray[np.int32], batch_tokens: int) -> list[NDArray[np.int32]]:
    """Return the places of the rows of each batch, rows of similar length together."""
    if len(lengths) == 0:
        return []
    groups = group_sorted(lengths, budget=max(batch_tokens, int(lengths.max())))
    return np.split(groups.order, groups.ptr[1:-1])


def _without_surrogates(text: str) -> str:
    """Replace what UTF-8 cannot hold: half of a surrogate pair, which JSON can contain."""
    return text.encode("utf-8", "replace").decode()


def _cannot_load(what: str, path: Path, error: Exception) -> OptionError:
    said = str(error).strip().splitlines()
    return OptionError(f"the {what} in {path} cannot be loaded: {said[0] if said else type(error).__name__}")
