"""Encode rows as tokens and loss masks, or only measure their lengths.

A sample is: the start token if the tokenizer adds one; the pieces of the row; the end token if the tokenizer has one.
Pieces that are trained on and pieces that are only read are encoded separately and laid end to end, so no token
straddles the border between a prompt and its response. A newline separates the two, unless the prompt is empty or ends
in white space already; it belongs to the prompt. An instruction and its input are joined by an empty line. Nothing is
added to rows of tokens, nor to conversations that a chat template rendered, since it writes its own start and end.

`measure_rows` counts the tokens of the same pieces that `encode_flat` encodes: the two cannot disagree on a length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import offsets, segment_sums
from brim.core.errors import DataError
from brim.core.fingerprint import fingerprint
from brim.data.rows.chat import Span, check_messages, plain, templated
from brim.data.rows.format import Layout, Row, RowFormat, kind_of
from brim.data.tokenizer.base import Tokenizer, Tokens

Mask = NDArray[np.uint8]
Where = Callable[[int], str]
NOT_LEARNED = -100
LARGEST = 2**31 - 1


@dataclass(slots=True)
class _Parts:
    """One row, ready to be encoded: exactly one of the three is set."""

    pieces: list[tuple[str | None, bool]] = field(default_factory=lambda: [])
    chat: tuple[str, list[Span]] | None = None
    tokens: tuple[Tokens, Mask] | None = None


def identity(tokenizer: Tokenizer, layout: Layout) -> str:
    """Return the fingerprint of how rows become tokens: the `tokenizer_hash` of length tables and token stores."""
    return fingerprint(tokenizer=tokenizer.fingerprint, layout=layout.fingerprint)


class Encoded(NamedTuple):
    """The lengths of rows, and their tokens and loss masks laid end to end."""

    lengths: NDArray[np.int32]
    tokens: Tokens
    learned: Mask


def encode_rows(
    rows: Sequence[Row], tokenizer: Tokenizer, format: RowFormat | Layout, where: Where
) -> list[tuple[Tokens, Mask]]:
    """Return the tokens and the loss mask of every row. `where(k)` names the k-th row in errors.

    Raises:
        DataError: A row does not have the shape, or has no tokens.
    """
    lengths, tokens, learned = encode_flat(rows, tokenizer, format, where)
    edges = offsets(lengths).tolist()
    return [(tokens[start:stop], learned[start:stop]) for start, stop in pairwise(edges)]


def encode_flat(rows: Sequence[Row], tokenizer: Tokenizer, format: RowFormat | Layout, where: Where) -> Encoded:
    """Encode rows as `encode_rows` does, but return all tokens in one array and all loss masks in another.

    Raises:
        DataError: A row does not have the shape, or has no tokens.
    """
    parts = _parts(rows, tokenizer, format, where)
    texts = iter(tokenizer.encode_batch([text for part in parts for text, _ in part.pieces if text is not None]))
    chats = iter(tokenizer.encode_ends([part.chat[0] for part in parts if part.chat is not None]))
    end = np.array([tokenizer.eos_id if tokenizer.eos_id is not None else -1], np.int32)
    start = np.array([tokenizer.bos_id], np.int32) if tokenizer.adds_bos else None
    # Every row is one or more arrays, each of which is trained on as a whole or not at all; or one array with a mask of
    # its own.
    arrays: list[Tokens] = []
    flags: list[bool] = []
    counts: list[int] = []  # number of arrays of each row
    masks: dict[int, Mask] = {}
    for number, part in enumerate(parts):
        before = len(arrays)
        if part.tokens is not None:
            arrays.append(part.tokens[0])
            masks[number] = part.tokens[1]
        elif part.chat is not None:
            ids, ends = next(chats)
            arrays.append(ids)
            masks[number] = _inside(ends, part.chat[1])
        else:
            if start is not None:
                arrays.append(start)
                flags.append(False)
            for text, learned in part.pieces:
                arrays.append(end if text is None else next(texts))
                flags.append(learned)
        counts.append(len(arrays) - before)
        if number in masks:
            flags.append(False)
    sizes = np.fromiter(map(len, arrays), np.int64, len(arrays))
    lengths = segment_sums(sizes, offsets(np.array(counts, np.int64))).astype(np.int32)
    _refuse_empty(lengths.tolist(), where)
    learned = np.repeat(np.array(flags, np.uint8), sizes)
    edges = offsets(lengths)
    for number, mask in masks.items():
        learned[edges[number] : edges[number + 1]] = mask
    return Encoded(lengths, np.concatenate([np.empty(0, np.int32), *arrays]), learned)


def measure_rows(
    rows: Sequence[Row], tokenizer: Tokenizer, format: RowFormat | Layout, where: Where
) -> NDArray[np.int32]:
    """Return the number of tokens that `encode_rows` would give for every row.

    Raises:
        DataError: A row does not have the shape, or has no tokens.
    """
    texts: list[str] = []
    owners: list[int] = []
    fixed: list[int] = []  # tokens of each row that are not encoded from text
    for number, part in enumerate(_parts(rows, tokenizer, format, where)):
        if part.tokens is not None:
            fixed.append(len(part.tokens[0]))
            continue
        if part.chat is not None:
            fixed.append(0)
            texts.append(part.chat[0])
            owners.append(number)
            continue
        fixed.append(int(tokenizer.adds_bos))
        for text, _ in part.pieces:
            if text is None:
                fixed[number] += 1
            else:
                texts.append(text)
                owners.append(number)
    counts = tokenizer.count_batch(texts) if texts else np.empty(0, np.int32)
    lengths = (np.array(fixed) + np.bincount(np.array(owners, np.int64), counts, len(fixed)).astype(np.int64)).astype(
        np.int32
    )
    _refuse_empty(lengths.tolist(), where)
    return lengths


def _parts(rows: Sequence[Row], tokenizer: Tokenizer, format: RowFormat | Layout, where: Where) -> list[_Parts]:
    parts: list[_Parts] = []
    try:
        for row in rows:
            if isinstance(format, RowFormat):
                format = format.layout(row)
            parts.append(_part(row, tokenizer, format))
    except DataError as error:
        raise DataError(f"{where(len(parts))}: {error}") from None
    return parts


def _part(row: Row, tokenizer: Tokenizer, layout: Layout) -> _Parts:
    end: list[tuple[str | None, bool]] = [(None, True)] if tokenizer.eos_id is not None else []
    if layout.kind == "prompt":
        return _Parts([*_answered(layout.text(row, "prompt"), layout.text(row, "response")), *end])
    if layout.kind == "text":
        return _Parts([(layout.text(row, "text"), True), *end])
    if layout.kind == "instruction":
        extra = layout.text(row, "input") if row.get("input") is not None else ""
        instruction = layout.text(row, "instruction") + (f"\n\n{extra}" if extra else "")
        return _Parts([*_answered(instruction, layout.text(row, "output")), *end])
    if layout.kind == "messages":
        messages = check_messages(layout.value(row, "messages"), template=tokenizer.has_chat_template)
        if tokenizer.has_chat_template:
            return _Parts(chat=templated(messages, tokenizer))
        return _Parts(plain(messages, has_end=tokenizer.eos_id is not None))
    return _Parts(tokens=_tokens(row, layout))


def _answered(prompt: str, response: str) -> list[tuple[str | None, bool]]:
    if not prompt:
        return [(response, True)]
    return [(prompt if prompt[-1].isspace() else prompt + "\n", False), (response, True)]


def _tokens(row: Row, layout: Layout) -> tuple[Tokens, Mask]:
    ids = _integers("input_ids", layout.value(row, "input_ids"), 0, LARGEST)
    mask, labels = row.get("loss_mask"), row.get("labels")
    if mask is not None and labels is not None:
        raise DataError('both "loss_mask" and "labels" are given; keep one of them')
    if mask is not None:
        learned = _integers("loss_mask", mask, 0, 1, len(ids)).astype(np.uint8)
    elif labels is not None:
        marks = _integers("labels", labels, NOT_LEARNED, LARGEST, len(ids))
        learned = (marks != NOT_LEARNED).astype(np.uint8)
        wrong = np.flatnonzero((marks != ids) & (learned == 1))
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f'"labels" differs from "input_ids" at position {at} ({marks[at]}, {ids[at]}); a label is the token '
                f"itself or -100"
            )
    else:
        learned = np.ones(len(ids), np.uint8)
    return ids, learned


def _integers(name: str, values: Any, low: int, high: int, size: int | None = None) -> NDArray[np.int32]:
    if not isinstance(values, list):
        raise DataError(f'"{name}" is {kind_of(values)}; it must be a list of integers')
    try:
        array = np.array(values) if values else np.empty(0, np.int32)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in ("iub" if high == 1 else "iu"):
        raise DataError(f'"{name}" is not a flat list of integers')
    if array.size and not (low <= array.min() and array.max() <= high):
        raise DataError(f'"{name}" holds values from {array.min()} to {array.max()}; they must lie in {low}..{high}')
    if size is not None and len(array) != size:
        raise DataError(f'"{name}" has {len(array)} entries for {size} tokens')
    return array.astype(np.int32)


def _inside(ends: NDArray[np.int32], spans: list[Span]) -> Mask:
    """Return the loss mask of tokens by where they end: a token is trained on if its last character is in a span."""
    mask = np.zeros(len(ends), np.uint8)
    for start, stop in spans:
        mask[(ends > start) & (ends <= stop)] = 1
    return mask


def _refuse_empty(lengths: list[int], where: Where) -> None:
    if 0 in lengths:
        raise DataError(f"{where(lengths.index(0))}: the row has no tokens; remove it")
