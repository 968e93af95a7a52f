"""The calls of many prompts that are asked with the same options."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.llm.call import Call, Message
from brim.llm.failures import Rejected

Prompt = str | Sequence[Message] | Call
"""A question: a text, a conversation, or a call that was made before."""


class PromptCalls:
    """Options that all calls of one `map` have in common."""

    def __init__(self, call: Callable[..., Call], *, samples: int, **options: Any) -> None:
        """`call` makes the call of a prompt, as `LLMPool.call` does."""
        check_counts(samples=samples)
        self._call = call
        self._samples = samples
        self._options = options

    def of(self, prompts: Iterable[Prompt]) -> Iterator["Call | Rejected"]:
        """Yield the calls for some prompts; for one that cannot be sent, the failure that it ends with.

        Raises:
            OptionError: The prompts are one string.
        """
        if isinstance(prompts, str):
            raise OptionError("prompts must be a list of prompts, not one string")
        return self._calls(prompts)

    def _calls(self, prompts: Iterable[Prompt]) -> Iterator["Call | Rejected"]:
        for prompt in prompts:
            for sample in range(self._samples):
                if isinstance(prompt, Call):
                    sampling = prompt.sampling.numbered(sample)
                    yield prompt if not sample else replace(prompt, sample=sample, sampling=sampling)
                    continue
                try:
                    yield self._call(prompt, sample=sample, **self._options)
                except OptionError as error:
                    yield Rejected(str(error))
