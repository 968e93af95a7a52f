"""`open_embedder`: an embedding model that runs in this process, by its name."""

import os
import re
from pathlib import Path

from brim.core.errors import OptionError
from brim.llm.embed.base import Embedder
from brim.llm.embed.hash import DEFAULT_DIM, HashEmbedder


def open_embedder(
    name: str | Path, *, device: str | None = None, batch_tokens: int | None = None, normalize: bool | None = None
) -> Embedder:
    """Open an embedding model: `hash` (or `hash-DIM`), which is built in, or a directory with a model of transformers.

    The options are for a directory; see `brim.llm.embed.transformers.TransformersEmbedder`. `./hash` is a directory.

    Raises:
        OptionError: There is no such model, or an option does not go with it.
        DataError: The directory's description of its pooling cannot be followed.
        MissingExtraError: The directory needs torch and transformers, and one of them is not installed.
    """
    built_in = re.fullmatch(r"hash(?:-([1-9]\d{0,8}))?", str(name)) if isinstance(name, str) else None
    if built_in is not None:
        options = {"device": device, "batch_tokens": batch_tokens, "normalize": normalize}
        given = [option for option, value in options.items() if value is not None]
        if given:
            raise OptionError(f"{given[0]} has no effect on the built-in model {name}; leave it out")
        return HashEmbedder(DEFAULT_DIM if built_in[1] is None else int(built_in[1]))
    from brim.llm.embed.transformers import BATCH_TOKENS, TransformersEmbedder

    return TransformersEmbedder(
        name, device=device, batch_tokens=BATCH_TOKENS if batch_tokens is None else batch_tokens, normalize=normalize
    )


def is_in_process(model: str | os.PathLike[str]) -> bool:
    """Return whether a model is the built-in one or a directory, and not a model of a server.

    Names of servers' models may be names of directories here, so a string must have a slash to be one.
    """
    if not isinstance(model, str):
        return True
    return re.fullmatch(r"hash(-\d+)?", model) is not None or ("/" in model and os.path.isdir(model))
