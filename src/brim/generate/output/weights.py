"""A fingerprint of the files of a model, which tells other weights apart without loading any.

Weights are files of safetensors. The names, types and shapes of all tensors are hashed, and a few hundred bytes of each
tensor: training changes nearly every number of a tensor, so a trained model is told from the one that it began as.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.fingerprint import digest_bytes, fingerprint, new_hash

DECIDING = ("config.json", "generation_config.json")
"""Files beside the weights that decide what the model does, and where a response ends."""
SPOTS = 8
"""Places of a tensor at which its bytes are read."""
SPOT_BYTES = 64


def weights_fingerprint(model: str) -> str | None:
    """Return the fingerprint of a model in a directory or in the local Hugging Face cache; None for the built-in one.

    Raises:
        OptionError: A file cannot be read.
    """
    if model == "tiny":
        return None
    directory = _directory(model)
    try:
        files = {
            name: digest_bytes((directory / name).read_bytes()) for name in DECIDING if (directory / name).is_file()
        }
        files |= {path.name: _sampled(path) for path in sorted(directory.glob("*.safetensors"))}
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OptionError(f"the model {model} cannot be loaded: its weights are not readable ({reason})") from None
    return fingerprint(files=files)


def _directory(model: str) -> Path:
    """Return the directory of a model; that of the cache for a name."""
    if Path(model).is_dir():
        return Path(model)
    cached = need("transformers.utils", extra="train", user="brim.generate").cached_file
    return Path(cached(model, "config.json", local_files_only=True)).parent


def _sampled(path: Path) -> str:
    """Hash the header of a file of safetensors, and a few bytes of each tensor."""
    hash = new_hash()
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = file.read(size)
        hash.update(header)
        tensors: dict[str, Any] = json.loads(header)
        for name in sorted(tensors.keys() - {"__metadata__"}):
            begin, end = tensors[name]["data_offsets"]
            for spot in _spots(begin, end):
                hash.update(os.pread(file.fileno(), min(SPOT_BYTES, end - spot), 8 + size + spot))
    return hash.hexdigest()


def _spots(begin: int, end: int) -> list[int]:
    """Return offsets that are spread over a tensor, from its first byte to its last."""
    last = max(begin, end - SPOT_BYTES)
    return sorted({begin + (last - begin) * at // (SPOTS - 1) for at in range(SPOTS)})
