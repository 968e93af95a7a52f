"""A prompt with its reference answer.

The identity of an example is its content: `Example.id` is the same in every process and on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.core.errors import DataError
from brim.core.fingerprint import fingerprint
from brim.core.options import one_of

SPLITS = ("train", "validation", "test")
ID_DIGITS = 16


@dataclass(frozen=True)
class Example:
    """A prompt, exactly as the model reads it, with what is known about its answer."""

    text: str
    """The prompt followed by a worked solution where one is known, otherwise the prompt alone. Models generate from
    `question`, never from this."""
    question: str
    """The prompt with its template, exactly as the model reads it."""
    answer: str | None
    """The reference answer; None if there is none."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Where the example comes from, and what scoring needs: values that JSON can hold."""
    stop: tuple[str, ...] = ()
    """The texts that end a response to this prompt."""

    def __post_init__(self) -> None:
        if clash := sorted(_FIELDS & self.meta.keys()):
            raise DataError(f"meta must not use the name of a field of an example, got {', '.join(clash)}")

    @property
    def id(self) -> str:
        """Return a hash of the question and the answer: 16 hex digits."""
        return fingerprint(question=self.question, answer=self.answer)[:ID_DIGITS]

    @property
    def prompt(self) -> "str | list[dict[str, Any]]":
        """The text that the model continues: the conversation of a row with messages, otherwise the question."""
        return self.meta.get("messages") or self.question

    def asdict(self) -> dict[str, Any]:
        """Return the fields as a dictionary, with the entries of `meta` beside them."""
        return {
            "text": self.text,
            "question": self.question,
            "answer": self.answer,
            "stop": self.stop,
            **self.meta,
        }


_FIELDS = {"text", "question", "answer", "meta", "stop"}


def check_split(dataset: str, split: str) -> None:
    """Refuse a split that is not one of `SPLITS`. `dataset` names the data set in the message.

    Raises:
        OptionError: There is no such split.
    """
    one_of(f"split of {dataset}", split, SPLITS)
