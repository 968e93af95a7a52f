"""A task that needs no real model: for each kind of question, one mutator makes the scripted model answer rightly.

    kind      a question                                                       best mutator
    wordy     a sum in a lot of talk                                           shorten
    terse     "12 + 7 * 2 = ?"                                                 expand
    several   two questions in one                                             break_into_steps
    bare      "3 km then 250 m. Total?", and the unit is not mentioned         add_context

All answers are a function of the prompt alone: which rewriting a query went through last is visible in its text. The
model rewrites by taking off the wording that an earlier rewriting put around a query and putting on its own, so that
only the last rewriting counts, whatever came before, and no text grows beyond that. `correct_language` is the
exception: it returns the query as it is, since there is nothing to correct.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.core.rng import below, raw_bits
from brim.envs.query.attempt import Question
from brim.envs.query.compare import last_number
from brim.llm.call import Answer, Call
from brim.llm.embed.hash import HashEmbedder
from brim.llm.failures import ModelMissing
from brim.llm.mutations import FIELD, MUTATIONS, OTHER, load_mutation
from brim.llm.rating import rated_texts
from brim.llm.testing.behaviour import Behaviour, Latency
from brim.llm.testing.replies import Replies, asked

MODEL = "scripted"
BEST = {"wordy": "shorten", "terse": "expand", "several": "break_into_steps", "bare": "add_context"}
"""The mutator after which questions of a kind are answered rightly. The others get a wrong number."""
MOST_QUESTIONS = 100_000

_NAMES = ("Maria", "Ahmed", "Lena", "Tomas", "Yuki", "Olga", "Samir", "Ines")
_FRUIT = ("apples", "pears", "plums", "lemons", "figs", "cherries", "melons", "grapes")
_WARES = ("pencils", "candles", "buttons", "stamps", "marbles", "coins", "cards", "beads")
_TALK_BEFORE = (
    "Hello and thank you for taking the time to read this today.",
    "My neighbour told me a long story about it this morning.",
    "We were standing at the market while the sun was shining so nicely.",
    "I hope you are well and that this is not a silly thing to ask.",
    "My grandmother always says that fruit tastes best in late summer.",
    "It has been a busy week and to be honest I am rather tired.",
)
_TALK_AFTER = (
    "Anyway, thank you so much for your patience with me.",
    "I have been wondering about it the whole afternoon.",
    "My sister and I could not agree on it at all.",
    "Please excuse the many words, I do like to talk.",
)
_UNITS = {
    "km": ("m", 1000, "lengths"),
    "kg": ("g", 1000, "weights"),
    "h": ("min", 60, "times"),
    "m": ("cm", 100, "sizes"),
}

_AROUND = {
    "rephrase": ("Could you tell me the following, please: ", ""),
    "simplify": ("In plain words: ", ""),
    "formalize": ("Determine the quantity that is described here: ", ""),
    "make_specific": ("", " State the exact number."),
    "expand": ("Work this out in full: ", " Multiply before you add, say what each number means, and give one result."),
}
"""The wording that a rewriting puts before and after a query."""
_MANNERS = {
    "wordy": "One more thing that I was wondering about:",
    "terse": "Just this:",
    "several": "Two things at once:",
    "bare": "Only the figures:",
    "": "Asked in the same way:",
}
"""The wording that `crossover` puts before a query, by the kind of the other query."""
_CONTEXTS = {
    unit: f"This is about {what}, to be added up in {small}, where one {unit} is {many} {small}."
    for unit, (small, many, what) in _UNITS.items()
} | {"": "This is an exercise in everyday arithmetic."}
"""The sentence that `add_context` puts before a query, by its unit."""
_WORDINGS = [
    *((name, before, after) for name, (before, after) in _AROUND.items()),
    *(("crossover", f"{manner} ", "") for manner in _MANNERS.values()),
    *(("add_context", f"{context} ", "") for context in _CONTEXTS.values()),
]
"""Mutator, text before and text after the query, for all of them but `break_into_steps`."""
_LAST_STEP = "Give the last result as one number."
_NO_PROBLEM = "I find nothing to calculate here."


def scripted_questions(n: int = 64, *, seed: int = 0) -> tuple[Question, ...]:
    """Return questions of the four kinds in turn, with references. All texts differ; the first k do not depend on n.

    Raises:
        OptionError: There are to be none, or more than 100,000.
    """
    check_counts(n=n)
    if n > MOST_QUESTIONS:
        raise OptionError(f"n must be at most {MOST_QUESTIONS}, got {n}")
    kinds = list(BEST)
    questions: list[Question] = []
    seen: set[str] = set()
    for number in range(n):
        kind = kinds[number % len(kinds)]
        again = 0
        while (text := _question(kind, seed, number, again)) in seen:
            again += 1
        seen.add(text)
        problem = _problem(text)
        assert problem is not None, "a question contains its problem"
        reference = str(problem.result)
        questions.append(Question(id=f"{kind}-{number // len(kinds)}", text=text, reference=reference, kind=kind))
    return tuple(questions)


def scripted_answer(call: Call) -> str:
    """Return the answer of the scripted model, a function of the last message alone.

    A prompt of a mutation that comes with brim is answered with the rewritten query, and a prompt of `Judge` with a
    score. Any other prompt is a question; the answer is right if the last rewriting suits its kind. `ModelServer` and
    `VirtualServer` take this function as their `answers`.
    """
    prompt = asked(call)
    for name in MUTATIONS:
        if (inserted := _inserted(name, prompt)) is not None:
            return rewritten(name, *inserted)
    if (texts := rated_texts(prompt)) is not None:
        rated = _problem(texts[0])
        return f"Score: {10 if rated is not None and last_number(texts[-1]) == rated.result else 0}"
    mutator, body = _unwrapped(prompt)
    problem = _problem(body)
    if problem is None:
        return _NO_PROBLEM
    return f"The answer is {problem.result if BEST[problem.kind] == mutator else problem.wrong}."


def rewritten(mutation: str, query: str, other: str = "") -> str:
    """Return a query as the scripted model rewrites it by a mutation that comes with brim. An empty one stays empty."""
    _, body = _unwrapped(query)
    if mutation == "correct_language" or not body:
        return query
    if mutation == "shorten":
        return _without_talk(body)
    if mutation == "add_context":
        problem = _problem(body)
        return f"{_CONTEXTS[problem.unit if problem else '']} {body}"
    if mutation == "crossover":
        problem = _problem(_unwrapped(other)[1])
        return f"{_MANNERS[problem.kind if problem else '']} {body}"
    if mutation == "break_into_steps":
        steps = [*_sentences(body), _LAST_STEP]
        return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    before, after = _AROUND[mutation]
    return f"{before}{body}{after}"


class ScriptedModel:
    """An `Endpoint` in this process that answers as `scripted_answer` does, and embeds as `HashEmbedder` does."""

    def __init__(self, *, latency: float | Latency = 0.0) -> None:
        """
        Args:
            latency: Seconds that a call takes, or a distribution of `brim.llm.testing`, from which every call has its
                own latency: a function of the call, and not of the order in which calls arrive.

        Raises:
            OptionError: It is negative, or neither of the two.
        """
        embedder = HashEmbedder()
        self._behaviour = Behaviour(
            latency=latency, answers=scripted_answer, embedding=lambda text: embedder.encode([text])[0]
        )
        self._replies = Replies()

    @property
    def name(self) -> str:
        return MODEL

    async def ask(self, call: Call) -> Answer:
        """Answer a call after its latency.

        Raises:
            ModelMissing: It asks for another model.
        """
        if call.model not in ("", MODEL):
            raise ModelMissing(f"there is no model {call.model!r} here, only {MODEL!r}", server=self.name, status=404)
        content = self._replies.make(call, self._behaviour)
        seconds = self.seconds(call)
        if seconds > 0:
            await asyncio.sleep(seconds)
        embeds = call.kind == "embed"
        return Answer(
            text="" if embeds else content.texts[0],
            vectors=content.vectors,
            model=MODEL,
            finish_reason=None if embeds else content.reasons[0],
            prompt_tokens=content.prompt_tokens,
            completion_tokens=None if embeds else content.completion_tokens,
            service_seconds=seconds,
            queue_seconds=0.0,
        )

    def seconds(self, call: Call) -> float:
        """Return the latency of a call."""
        latency = self._behaviour.latency
        if isinstance(latency, int | float):
            return latency
        word = int.from_bytes(call.key()[:8], "little")
        return latency.at((word >> 11) * 2.0**-53)

    async def models(self) -> list[str]:
        return [MODEL]

    async def close(self) -> None:
        """Do nothing: there are no connections."""


@dataclass(frozen=True)
class _Problem:
    kind: str
    result: int
    wrong: int
    """A number that a hasty reader would give."""
    unit: str = ""


def _wordy(found: re.Match[str]) -> _Problem:
    return _Problem("wordy", int(found[1]) + int(found[2]), int(found[1]))


def _terse(found: re.Match[str]) -> _Problem:
    a, b, c = map(int, found.groups())
    return _Problem("terse", a + b * c, (a + b) * c)


def _several(found: re.Match[str]) -> _Problem:
    a, b, c = map(int, found.groups())
    return _Problem("several", a * b - c, a * b)


def _bare(found: re.Match[str]) -> _Problem:
    a, unit, b = int(found[1]), found[2], int(found[3])
    return _Problem("bare", a * _UNITS[unit][1] + b, a + b, unit)


_PATTERNS: list[tuple[re.Pattern[str], Callable[[re.Match[str]], _Problem]]] = [
    (re.compile(r"\w+ has (\d+) \w+ and (?:buys|finds|gets) (\d+) more\. How many \w+ does \w+ have now\?"), _wordy),
    (re.compile(r"(\d+) \+ (\d+) \* (\d+) = \?"), _terse),
    (re.compile(r"A box holds (\d+) rows of (\d+) \w+\. .+ how many are left when (\d+) are taken out\?"), _several),
    (re.compile(r"(\d+) (km|kg|h|m) then (\d+) (?:m|g|min|cm)\. Total\?"), _bare),
]


def _question(kind: str, seed: int, number: int, again: int) -> str:
    """Return question `number`; `again` counts the texts that others had already."""
    words = raw_bits(8, seed=seed, purpose=f"query/scripted/{number}", epoch=again).tolist()
    a, b, c = (2 + below(word, 98) for word in words[:3])
    first, second, third = words[3:6]
    if kind == "wordy":
        name, fruit = _pick(_NAMES, first), _pick(_FRUIT, second)
        verb = _pick(("buys", "finds", "gets"), third)
        core = f"{name} has {a} {fruit} and {verb} {b} more. How many {fruit} does {name} have now?"
        return f"{_pick(_TALK_BEFORE, words[6])} {core} {_pick(_TALK_AFTER, words[7])}"
    if kind == "terse":
        return f"{a} + {b} * {c} = ?"
    if kind == "several":
        wares = _pick(_WARES, first)
        taken = 1 + below(second, a * b - 1)
        return (
            f"A box holds {a} rows of {b} {wares}. How many {wares} is that? And how many are left when {taken} are "
            "taken out?"
        )
    unit = _pick(tuple(_UNITS), first)
    small, many, _ = _UNITS[unit]
    return f"{a} {unit} then {1 + below(second, many - 1)} {small}. Total?"


def _pick(choices: tuple[str, ...], word: int) -> str:
    return choices[below(word, len(choices))]


def _problem(text: str) -> _Problem | None:
    """Return the calculation that a text asks for, whatever stands around it; None if there is none."""
    for pattern, made in _PATTERNS:
        if found := pattern.search(text):
            return made(found)
    return None


def _unwrapped(text: str) -> tuple[str, str]:
    """Return the mutator whose wording stands around a text, and the text without any such wording.

    A text without such a wording and without talk is as `shorten` would have made it. For one with talk, the mutator is
    "".
    """
    last = ""
    body = text.strip()
    while (found := _unwrapped_once(body)) is not None:
        mutator, body = found
        last = last or mutator
    body = " ".join(body.split())
    if not last and _without_talk(body) == body:
        last = "shorten"
    return last, body


def _unwrapped_once(text: str) -> tuple[str, str] | None:
    lines = text.split("\n")
    starts = [f"{number}. " for number in range(1, len(lines) + 1)]
    if len(lines) > 1 and all(map(str.startswith, lines, starts)):
        *steps, last = map(str.removeprefix, lines, starts)
        if last == _LAST_STEP:
            return "break_into_steps", " ".join(steps)
    for name, before, after in _WORDINGS:
        inside = text[len(before) : len(text) - len(after)]
        if inside.strip() and text == f"{before}{inside}{after}":
            return name, inside
    return None


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?!]) ", text)


def _without_talk(text: str) -> str:
    """Leave out the sentences that neither contain a number nor ask anything, unless there are no others."""
    kept = [one for one in _sentences(text) if "?" in one or any(map(str.isdigit, one))]
    return " ".join(kept) or text


@cache
def _pieces(mutation: str) -> list[str]:
    """Return the fields of a template and the text between them, in turn."""
    return re.split(f"({re.escape(FIELD)}|{re.escape(OTHER)})", load_mutation(mutation).template)


def _inserted(mutation: str, prompt: str) -> tuple[str, ...] | None:
    """Return the query, and perhaps the other one, that a mutation has put into a prompt; None for other prompts."""
    first, *pieces = _pieces(mutation)
    last = pieces[-1]
    inside = prompt[len(first) : len(prompt) - len(last)]
    if not inside or prompt != f"{first}{inside}{last}":
        return None
    if len(pieces) == 2:
        return (inside,)
    # The query comes last; it is taken to be without the text that stands between the two.
    other, between, query = inside.rpartition(pieces[1])
    return (query, other) if between else None
