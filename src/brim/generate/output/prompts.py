"""The prompts of a run: examples, and how each of them is sent to the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brim.core.fingerprint import fingerprint
from brim.generate.prompts.example import Example

SentPrompt = str | list[dict[str, Any]]
"""A text that the model continues, or a conversation to which it writes the next turn."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a run, in their order."""

    examples: Sequence[Example]
    chat: bool = False
    """Send each text as a conversation of one message of the user."""

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each prompt, and the fields by which a list of failed responses shows it."""
        for number, prompt in enumerate(self.sent):
            yield number, {"id": self.id(number), "prompt": prompt}

    @cached_property
    def sent(self) -> list[SentPrompt]:
        """The prompts as the model gets them."""
        return [_conversation(example.prompt) if self.chat else example.prompt for example in self.examples]

    @cached_property
    def stop(self) -> tuple[str, ...]:
        """The stops that the examples ask for, over all of them: a run has the same stops for every prompt."""
        return tuple(dict.fromkeys(text for example in self.examples for text in example.stop))

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of everything about the prompts that a line of the output depends on."""
        parts = [
            [self.id(number), example.question, example.answer, list(example.stop), self.sent[number]]
            for number, example in enumerate(self.examples)
        ]
        return fingerprint(prompts=parts)

    def id(self, number: int) -> str:
        """Return the id of a prompt: that of its row, or else a hash of its content."""
        example = self.examples[number]
        return example.meta.get("id") or example.id

    def where(self, number: int) -> str:
        """Return where a prompt comes from, such as "arithmetic test 12" or "prompts.jsonl row 12"."""
        meta = self.examples[number].meta
        return f"{meta.get('dataset', 'prompts')} {meta.get('split', 'row')} {meta.get('index', number)}"


def _conversation(prompt: SentPrompt) -> SentPrompt:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
