"""Gather an output in one pass: numbers of every response as columns, text and per-token numbers within limits.

Where a limit is reached, every second prompt or response that was kept is dropped, and from then on every second one is
taken. What is kept is therefore spread evenly over the output and depends on nothing else. One number describes it: the
step, 4 if every fourth was kept.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brim.generate.report.lines import Floats, Line, Turn
from brim.generate.rollouts import REASONS

PAGE_BYTES = 3_000_000
"""Upper limit, about, of the prompts and responses that go into a page."""
MOST_TOKENS = 2_000_000
"""Upper limit of the tokens whose numbers are kept for the charts by position."""
LONGEST = 10_000
"""Characters of a text that go into the page; the page says how many do not."""
MOST_RESPONSES = 32
"""Responses to one prompt that go into the page."""
FRAME_BYTES = 500
"""HTML around one response, about."""

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clipped:
    """The beginning of a text, and the number of characters of all of it."""

    text: str
    length: int

    @classmethod
    def of(cls, text: str) -> "Clipped":
        return cls(text=text[:LONGEST], length=len(text))

    @property
    def size(self) -> int:
        return len(self.text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Excerpt:
    """A response that is shown. Its numbers are in row `row` of the columns."""

    row: int
    sample: int
    text: Clipped


@dataclass(kw_only=True, slots=True, eq=False)
class Card:
    """A prompt that is shown, with its responses."""

    number: int
    """Number of the prompt in the output."""
    id: str
    prompt: tuple[tuple[str, Clipped], ...]
    """Role and text of each message."""
    answer: Clipped | None
    responses: list[Excerpt] = field(default_factory=list[Excerpt])


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """An output: columns with one entry for each response, NaN where a number is not known."""

    G: int
    """Responses that were asked for each prompt: one more than the largest number of a sample."""
    prompts: int
    prompt: NDArray[np.int64]
    """Number of the prompt."""
    reason: NDArray[np.int64]
    """Index into `REASONS`."""
    tokens: Floats
    characters: Floats
    logprob: Floats
    entropy: Floats
    score: Floats
    per_token: list[Mapping[str, Floats]]
    """Numbers of each token of the responses that were kept for the charts by position."""
    token_step: int
    """1 if all responses with such numbers were kept, 2 if every second one was, and so on."""
    cards: list[Card]
    card_step: int
    """The same for the prompts that are shown."""

    def __len__(self) -> int:
        return len(self.prompt)


class Thinned(Generic[Item]):
    """Items of every nth number. Their sizes stay within a limit because n doubles; one item is always kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.step = 1
        self.items: dict[int, Item] = {}
        self.sizes: dict[int, int] = {}
        self.size = 0

    def wants(self, number: int) -> bool:
        return number % self.step == 0

    def grow(self, number: int, size: int) -> None:
        """Count that an item became larger, and drop items until all are within the limit."""
        self.sizes[number] = self.sizes.get(number, 0) + size
        self.size += size
        while self.size > self.limit and len(self.items) > 1:
            self.step *= 2
            for dropped in [number for number in self.items if not self.wants(number)]:
                del self.items[dropped]
                self.size -= self.sizes.pop(dropped)


def collect_responses(
    lines: Iterable[Line], *, page_bytes: int = PAGE_BYTES, most_tokens: int = MOST_TOKENS
) -> Generated:
    """Gather the responses of an output, of which there is at least one."""
    columns: dict[str, array[Any]] = {name: array("q") for name in ("prompt", "reason")}
    columns |= {name: array("d") for name in ("tokens", "characters", "logprob", "entropy", "score")}
    places = _Places()
    cards: Thinned[Card] = Thinned(page_bytes)
    kept: Thinned[Mapping[str, Floats]] = Thinned(most_tokens)
    largest = measured = 0
    for row, line in enumerate(lines):
        number = places.number_of(line)
        largest = max(largest, line.sample)
        columns["prompt"].append(number)
        columns["reason"].append(REASONS.index(line.finish_reason))
        columns["characters"].append(len(line.response))
        for name in ("tokens", "logprob", "entropy", "score"):
            value = getattr(line, name)
            columns[name].append(np.nan if value is None else value)
        if line.per_token:
            if kept.wants(measured):
                kept.items[measured] = line.per_token
                kept.grow(measured, len(next(iter(line.per_token.values()))))
            measured += 1
        if cards.wants(number):
            _show(cards, number, row, line)
    return Generated(
        G=largest + 1,
        prompts=places.count,
        per_token=list(kept.items.values()),
        token_step=kept.step,
        cards=list(cards.items.values()),
        card_step=cards.step,
        **{name: np.array(column) for name, column in columns.items()},
    )


class _Places:
    """Numbers of prompts. A prompt with two samples of the same number was drawn twice, and is two prompts."""

    def __init__(self) -> None:
        self.count = 0
        self._open: dict[tuple[str, int], tuple[int, set[int]]] = {}

    def number_of(self, line: Line) -> int:
        key = (line.id, hash(line.prompt))
        number, samples = self._open.get(key, (-1, {line.sample}))
        if line.sample in samples:
            number, samples = self.count, set[int]()
            self.count += 1
            self._open[key] = (number, samples)
        samples.add(line.sample)
        return number


def _show(cards: Thinned[Card], number: int, row: int, line: Line) -> None:
    """Put a response on the card of its prompt, and the prompt on a new one if it is the first."""
    size = 0
    card = cards.items.get(number)
    if card is None:
        prompt = tuple(_message(turn) for turn in line.prompt)
        answer = None if line.answer is None else Clipped.of(line.answer)
        card = cards.items[number] = Card(number=number, id=line.id, prompt=prompt, answer=answer)
        size += FRAME_BYTES + sum(text.size for _, text in prompt) + (answer.size if answer else 0)
    if len(card.responses) < MOST_RESPONSES:
        text = Clipped.of(line.response)
        card.responses.append(Excerpt(row=row, sample=line.sample, text=text))
        size += FRAME_BYTES + text.size
    cards.grow(number, size)


def _message(turn: Turn) -> tuple[str, Clipped]:
    return turn.role, Clipped.of(turn.text)
