"""Prompts as token ids, checked against the model that will read them. Nothing here imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from brim.core.errors import LengthError, MismatchError, OptionError
from brim.data.tokenizer.base import Tokenizer
from brim.generate.rollouts import Ids

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""A text, a conversation (to which the model writes the next turn), or token ids."""


def read_prompts(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[Ids]:
    """Return the token ids of each prompt, with the start token where the tokenizer asks for one.

    Raises:
        OptionError: There is no prompt, one is empty, or one is neither a text, nor messages, nor token ids.
    """
    if isinstance(prompts, str):
        raise OptionError(f"prompts must be a list of prompts, got one text: {prompts!r:.80}")
    if len(prompts) == 0:
        raise OptionError("there are no prompts")
    texts: dict[int, str] = {}
    found: dict[int, Ids] = {}
    starts: dict[int, bool] = {}
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            texts[number], starts[number] = prompt, tokenizer.adds_bos
        elif len(prompt) and isinstance(prompt[0], Mapping):
            messages = cast(Sequence[Mapping[str, Any]], prompt)
            texts[number], starts[number] = (
                tokenizer.render_chat(messages, reply=True),
                False,
            )  # templates add their own
        else:
            found[number] = _as_ids(number, prompt)
    for (number, text), ids in zip(texts.items(), tokenizer.encode_batch(list(texts.values())), strict=True):
        if not text:
            raise OptionError(f"prompt {number} is empty")
        start = [tokenizer.bos_id] if starts[number] and tokenizer.bos_id is not None else []
        found[number] = np.concatenate([np.array(start, np.int32), ids]) if start else ids
    for number in range(len(prompts)):
        if len(found[number]) == 0:
            raise OptionError(f"prompt {number} is empty: it has no tokens")
    return [found[number] for number in range(len(prompts))]


def _as_ids(number: int, prompt: Any) -> Ids:
    try:
        ids = np.asarray(prompt)
    except ValueError:
        ids = np.empty(0, object)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise OptionError(f"prompt {number} must be a text, messages or token ids, got {prompt!r:.80}")
    return ids.astype(np.int32)


def check_prompts(prompts: Sequence[Ids], *, known_tokens: int, context: int | None) -> None:
    """Check that a model knows every token of the prompts, and has room for a response to each.

    Raises:
        MismatchError: A token is unknown to the model.
        LengthError: A prompt fills the model's context.
    """
    for number, ids in enumerate(prompts):
        if int(ids.max()) >= known_tokens or int(ids.min()) < 0:
            unknown = int(ids.max()) if int(ids.max()) >= known_tokens else int(ids.min())
            raise MismatchError(
                f"prompt {number} has the token {unknown}, the model knows {known_tokens} tokens; use the model's own "
                "tokenizer"
            )
        if context is not None and len(ids) >= context:
            raise LengthError(
                f"prompt {number} has {len(ids)} tokens, the model's context is {context}, so there is no room for a "
                "response; shorten the prompt"
            )
