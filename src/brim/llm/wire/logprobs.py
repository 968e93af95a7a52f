"""Read the log-probabilities of generated tokens out of a server's JSON.

    {"tokens": [...], "token_logprobs": [...]}              completions of OpenAI and vLLM
    {"content": [{"token", "logprob", "id"}, ...]}          chats; llama.cpp for completions, too, and with ids
    [{"token", "logprob"}, ...]                             Ollama
    choices[0].token_ids                                    vLLM, if the request has return_token_ids
    tokens spelled "token_id:123"                           vLLM, if the request has return_tokens_as_token_ids

A server that sends none is no failure, and one that sends some that cannot be right is a `BadReply`. Pitfall: fewer of
them than tokens were generated is no mistake of the reply. llama.cpp leaves out the tokens of a stop string, and all
but the last of the tokens that make up one character; Ollama leaves out the end token.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from brim.llm.call import TokenLogprobs
from brim.llm.wire.address import Address
from brim.llm.wire.fields import bad, mapping, rows

NOISE = 1e-3
"""Rounding may lift a log-probability above 0 by so much; then it is 0."""
LARGEST_ID = 2**31 - 1
_SPELLED = re.compile(r"token_id:(\d{1,10})")


def logprobs_of_choice(address: Address, choice: Mapping[str, Any], generated: int | None) -> TokenLogprobs | None:
    """Return the log-probs of an answer in the OpenAI protocol; None if there are none.

    Args:
        generated: Number of tokens that the server says it has generated.

    Raises:
        BadReply: They cannot be right.
    """
    given = choice.get("logprobs")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise bad(address, '"logprobs" is no object')
    fields = mapping(given)
    if fields.get("content") is not None:
        return logprobs_of_entries(address, fields["content"], generated, ids=choice.get("token_ids"))
    if fields.get("token_logprobs") is None:
        return None
    tokens, values = rows(fields.get("tokens")), rows(fields.get("token_logprobs"))
    if tokens is None or values is None or len(tokens) != len(values):
        raise bad(address, '"tokens" and "token_logprobs" are not lists of one length')
    return _checked(address, tokens, values, choice.get("token_ids"), generated)


def logprobs_of_entries(
    address: Address, entries: Any, generated: int | None, *, ids: Any = None
) -> TokenLogprobs | None:
    """Return the log-probs in a list with one object for each token; None if there is no list.

    Args:
        generated: Number of tokens that the server says it has generated.
        ids: The ids of the tokens, where they stand beside the list.

    Raises:
        BadReply: They cannot be right.
    """
    if entries is None:
        return None
    listed = rows(entries)
    if listed is None:
        raise bad(address, 'the "logprobs" are no list')
    objects = [mapping(entry) for entry in listed]
    if ids is None and any("id" in entry for entry in objects):
        ids = [entry.get("id") for entry in objects]
    tokens = [entry.get("token") for entry in objects]
    values = [entry.get("logprob") for entry in objects]
    return _checked(address, tokens, values, ids, generated)


def _checked(
    address: Address, tokens: Sequence[Any], values: Sequence[Any], ids: Any, generated: int | None
) -> TokenLogprobs:
    if not all(isinstance(token, str) for token in tokens):
        raise bad(address, "a token with a log-probability has no text")
    if ids is None:
        ids = _spelled(tokens)
    known = None if ids is None else _ids(address, ids, len(tokens))
    whole = generated is None or generated == len(tokens)
    return TokenLogprobs(
        tokens=tuple(cast(Sequence[str], tokens)),
        logprobs=_logprobs(address, values),
        ids=known if whole else None,
    )


def _logprobs(address: Address, values: Sequence[Any]) -> NDArray[np.float32]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(address, f"the log-probability of a token is not a number: {value!r:.40}")
    with np.errstate(over="ignore"):
        logprobs = np.array(values, np.float64).astype(np.float32)
    wrong = ~np.isfinite(logprobs) | (logprobs > NOISE)
    if wrong.any():
        value = values[int(wrong.argmax())]
        raise bad(address, f"the log-probability of a token is not finite, or above 0: {value!r:.40}")
    return np.minimum(logprobs, np.float32(0))


def _spelled(tokens: Sequence[str]) -> list[int] | None:
    """Return ids that are spelled out in place of texts; None if one of the tokens is anything else."""
    found = [_SPELLED.fullmatch(token) for token in tokens]
    ids = [int(match[1]) for match in found if match is not None]
    return ids if ids and len(ids) == len(tokens) else None


def _ids(address: Address, given: Any, expected: int) -> NDArray[np.int32]:
    ids = rows(given)
    if ids is None or len(ids) != expected:
        raise bad(address, f"there are log-probabilities of {expected} tokens, but not as many ids")
    if not all(type(one) is int and 0 <= one <= LARGEST_ID for one in ids):
        raise bad(address, "the id of a token is not a number from 0 to 2**31 - 1")
    return np.array(ids, np.int32)
