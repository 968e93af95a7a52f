"""An answer of a model as the bytes of one entry of the cache, and back.

    checksum, 8 bytes
    a line of JSON      [model, finish_reason, prompt_tokens, completion_tokens, bytes of the text, *shape of vectors]
    the text            UTF-8
    the vectors         little-endian float32
    a line of JSON      {"stop_reason": ..., "tokens": [...], "ids": true}, each only where the answer has it
    the log-probs       little-endian float32
    the ids of tokens   little-endian int32

Everything from the second line of JSON on is absent in an answer that has nothing of it, as in all older entries, and
versions that do not know it ignore it. The times of an answer are left out: they belong to the request that brought it.
"""

import hashlib
import json
import math
from typing import Any

import numpy as np

from brim.llm.call import Answer, TokenLogprobs

CHECKSUM_BYTES = 8


def to_bytes(key: bytes, answer: Answer) -> bytes:
    """Return an answer as bytes. The checksum covers the key, too, so an entry belongs to its key alone."""
    text = answer.text.encode("utf-8", "surrogatepass")
    head: list[Any] = [answer.model, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, len(text)]
    vectors = b""
    if answer.vectors is not None:
        head += answer.vectors.shape
        vectors = answer.vectors.astype("<f4").tobytes()
    payload = b"".join([json.dumps(head).encode(), b"\n", text, vectors, _details(answer)])
    return _checksum(key, payload) + payload


def from_bytes(key: bytes, value: bytes) -> Answer | None:
    """Return the answer that `to_bytes` wrote, or None if a bit of it or of its key has changed."""
    payload = value[CHECKSUM_BYTES:]
    if value[:CHECKSUM_BYTES] != _checksum(key, payload):
        return None
    line, body = payload.split(b"\n", 1)
    model, finish_reason, prompt_tokens, completion_tokens, size, *shape = json.loads(line)
    end = size + 4 * math.prod(shape) if shape else size
    details, numbers = _split_details(body[end:])
    return Answer(
        text=body[:size].decode("utf-8", "surrogatepass"),
        vectors=np.frombuffer(body[size:end], "<f4").astype(np.float32).reshape(shape) if shape else None,
        model=model,
        finish_reason=finish_reason,
        stop_reason=details.get("stop_reason"),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        logprobs=_logprobs(details, numbers),
    )


def _details(answer: Answer) -> bytes:
    """Return the last three parts of an entry, or nothing."""
    details: dict[str, Any] = {}
    numbers = b""
    if answer.stop_reason is not None:
        details["stop_reason"] = answer.stop_reason
    if (logprobs := answer.logprobs) is not None:
        details["tokens"] = logprobs.tokens
        numbers = logprobs.logprobs.astype("<f4").tobytes()
        if logprobs.ids is not None:
            details["ids"] = True
            numbers += logprobs.ids.astype("<i4").tobytes()
    return b"".join([json.dumps(details).encode(), b"\n", numbers]) if details else b""


def _split_details(end: bytes) -> tuple[dict[str, Any], bytes]:
    if not end:
        return {}, b""
    line, numbers = end.split(b"\n", 1)
    return json.loads(line), numbers


def _logprobs(details: dict[str, Any], numbers: bytes) -> TokenLogprobs | None:
    if "tokens" not in details:
        return None
    tokens = tuple(details["tokens"])
    end = 4 * len(tokens)
    return TokenLogprobs(
        tokens=tokens,
        logprobs=np.frombuffer(numbers[:end], "<f4").astype(np.float32),
        ids=np.frombuffer(numbers[end:], "<i4").astype(np.int32) if details.get("ids") else None,
    )


def _checksum(key: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=CHECKSUM_BYTES, key=key).digest()
