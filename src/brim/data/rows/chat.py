"""Conversations as text, and which of their characters are the assistant's: only those are trained on.

With a chat template the whole conversation is rendered once, and the span of every assistant turn is found by rendering
the conversation up to it and up to its end: what lies between is the reply with its end marker. White space that the
template puts after an end marker is not trained on. Without a template the rendering is

    user: Hello
    assistant: Hi!<end token>
    user: ...

where the assistant's words and the end token (a newline, if the tokenizer has none) are trained on and "assistant: "
is not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from brim.core.errors import DataError
from brim.data.rows.format import kind_of
from brim.data.tokenizer.base import Message, Tokenizer

Span = tuple[int, int]


def check_messages(messages: Any, *, template: bool) -> list[Message]:
    """Check a conversation and return it.

    Raises:
        DataError: It is not a list of {role, content}, or no message has the role "assistant".
    """
    if not isinstance(messages, list) or not messages:
        raise DataError(
            f'"messages" is {kind_of(messages) if messages != [] else "empty"}; it must be a list of {{role, content}}'
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(
                f"messages[{number}] has no role; every message is an object with role and content (strings)"
            )
        content = message.get("content")
        if not isinstance(content, str) and not (template and content is None and message.get("tool_calls")):
            raise DataError(f'messages[{number}]: "content" is {kind_of(content)}; it must be a string')
    if not any(message["role"] == "assistant" for message in messages):
        roles = ", ".join(sorted({message["role"] for message in messages}))
        raise DataError(
            f'no message has the role "assistant", so there is nothing to learn (roles: {roles}); remove the row'
        )
    return messages


def templated(messages: Sequence[Message], tokenizer: Tokenizer) -> tuple[str, list[Span]]:
    """Return the conversation as the tokenizer's template renders it, and the spans of characters that are trained on.

    Raises:
        DataError: The template refuses it, or renders an earlier turn differently once more turns follow.
    """
    text = tokenizer.render_chat(messages)
    spans: list[Span] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.render_chat(messages[:number], reply=True)
        until = text if number == len(messages) - 1 else tokenizer.render_chat(messages[: number + 1])
        if not (until.startswith(before) and text.startswith(until)):
            raise DataError(
                f"the chat template of {tokenizer.name} writes turn {number + 1} differently once more turns follow, "
                "so its words cannot be told from the rest; split the conversation so that it ends there, or use a "
                "template that keeps earlier turns"
            )
        spans.append((len(before), len(before) + _spoken(until[len(before) :], message.get("content") or "")))
    return text, spans


def _spoken(turn: str, content: str) -> int:
    """Return how many characters of a turn are trained on: all but the white space after its end marker, unless white
    space is the end marker.
    """
    said = content.strip()
    found = turn.rfind(said) if said else -1
    behind = found + len(said) if found >= 0 else 0
    return len(turn.rstrip()) if turn[behind:].strip() else len(turn)


def plain(messages: Sequence[Message], *, has_end: bool) -> list[tuple[str | None, bool]]:
    """Return the conversation as pieces of (text, whether it is trained on). A text of None is the end token."""
    pieces: list[tuple[str | None, bool]] = []
    read = ""
    for message in messages:
        if message["role"] == "assistant":
            pieces.append((read + "assistant: ", False))
            pieces.append((message["content"], True))
            pieces.append((None if has_end else "\n", True))
            read = "\n" if has_end else ""
        else:
            read += f"{message['role']}: {message['content']}\n"
    if read.strip():
        pieces.append((read, False))
    return pieces
