"""The content of replies: texts and vectors, computed without any model.

A token is a word here: an estimate that needs no tokenizer, and that a test can count by hand.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.rng import uniform
from brim.llm.call import Call, TokenLogprobs
from brim.llm.testing.behaviour import Behaviour, Refusal


@dataclass(kw_only=True, slots=True)
class Content:
    """The model's part of a reply."""

    texts: tuple[str, ...] = ()
    """The answer, or one answer for each of several prompts."""
    vectors: NDArray[np.float32] | None = None
    """[n, d], one row for each text to embed."""
    reasons: tuple[str, ...] = ()
    """Why each of the texts ends: "stop" or "length"."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stopped_by: tuple[str, ...] = ()
    """The stop string at which each of the texts ends, "" if at none."""


class Replies:
    """Makes the content of replies, and remembers how far a script of answers has been told."""

    def __init__(self) -> None:
        self._told = 0

    def make(self, call: Call, behaviour: Behaviour) -> Content:
        """Return what the behaviour says to a call. A completion with `inputs` is a list of prompts.

        Raises:
            Refusal: There is no answer to it.
        """
        if call.kind == "embed":
            return _embed(call.inputs, behaviour)
        prompts = call.inputs if call.kind == "complete" and call.inputs else (asked(call),)
        texts: list[str] = []
        reasons: list[str] = []
        stops: list[str] = []
        for prompt in prompts:
            one = replace(call, prompt=prompt, inputs=()) if call.inputs else call
            text, reason, stop = _limited(self._text(one, prompt, behaviour), call)
            texts.append(text)
            reasons.append(reason)
            stops.append(stop)
        spoken = [str(message.get("content", "")) for message in call.messages] or prompts
        return Content(
            texts=tuple(texts),
            reasons=tuple(reasons),
            prompt_tokens=sum(map(_tokens, spoken)),
            completion_tokens=sum(map(_tokens, texts)),
            stopped_by=tuple(stops),
        )

    def _text(self, call: Call, prompt: str, behaviour: Behaviour) -> str:
        answers = behaviour.answers
        if answers is None:
            return echo(prompt)
        if isinstance(answers, Callable):
            return answers(call)
        if isinstance(answers, Mapping):
            if prompt not in answers:
                raise Refusal(f"the test server has no answer to this prompt: {prompt[:100]!r}")
            return answers[prompt]
        if self._told >= len(answers):
            raise Refusal(f"the test server has given all {len(answers)} answers of its script")
        self._told += 1
        return answers[self._told - 1]


def asked(call: Call) -> str:
    """Return the text that a call asks about: its prompt, or its last message."""
    if call.kind == "complete":
        return call.prompt
    if not call.messages:
        return ""
    content: Any = call.messages[-1].get("content")
    if isinstance(content, str):
        return content
    parts = cast(list[Any], content) if isinstance(content, list) else []
    return "".join(str(cast(dict[str, Any], part).get("text", "")) for part in parts if isinstance(part, dict))


def echo(prompt: str) -> str:
    """Return the default answer to a prompt: "answer to: " and the prompt. A prompt of more than 200 characters is cut
    off and followed by a digest of the whole.

    Example:
        >>> echo("What is a batch?")
        'answer to: What is a batch?'
    """
    if len(prompt) > 200:
        digest = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        prompt = f"{prompt[:100]}... {digest}"
    return f"answer to: {prompt}"


def token_texts(text: str) -> list[str]:
    """Cut a text into words with the white space around them, so that joined they are the text."""
    return re.findall(r"\s*\S+(?:\s+\Z)?|\s+\Z", text)


def token_facts(token: str) -> tuple[int, float]:
    """Return the id and the log-probability of a token: they depend on its text alone.

    A log-probability is a multiple of 1/16 from -4 to -1/16, so no rounding changes it.

    Example:
        >>> token_facts("answer")
        (59707, -3.9375)
    """
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=3).digest()
    return int.from_bytes(digest[:2], "little"), -(digest[2] % 64 + 1) / 16


def token_logprobs(text: str) -> TokenLogprobs:
    """Return the log-probs of the tokens of a text, with their ids."""
    tokens = token_texts(text)
    facts = [token_facts(token) for token in tokens]
    return TokenLogprobs(
        tokens=tuple(tokens),
        logprobs=np.array([logprob for _, logprob in facts], np.float32),
        ids=np.array([number for number, _ in facts], np.int32),
    )


def text_vector(text: str, dim: int) -> NDArray[np.float32]:
    """Return the default embedding of a text: [dim], of length 1, equal for equal texts."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    vector = uniform(dim, seed=0, purpose=f"llm/testing/embedding/{digest}") - 0.5
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _embed(texts: tuple[str, ...], behaviour: Behaviour) -> Content:
    embedding = behaviour.embedding
    rows = [text_vector(text, behaviour.dim) if embedding is None else embedding(text) for text in texts]
    vectors = np.asarray(rows, np.float32).reshape(len(rows), -1 if rows else 0)
    return Content(vectors=vectors, prompt_tokens=sum(map(_tokens, texts)))


def _limited(text: str, call: Call) -> tuple[str, str, str]:
    """Cut a text at stop strings and at the upper limit of its tokens. Returns it, why it ends, and which stop ended
    it."""
    places = [(place, stop) for stop in call.sampling.stop if (place := text.find(stop)) >= 0]
    place, stopped_by = min(places, default=(len(text), ""))
    text = text[:place]
    most = call.sampling.max_tokens
    if most is None or _tokens(text) <= most:
        return text, "stop", stopped_by
    return " ".join(text.split()[:most]), "length", ""


def _tokens(text: str) -> int:
    return len(text.split())
