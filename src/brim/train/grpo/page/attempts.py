"""Tasks and attempts at them, as HTML that needs no JavaScript.

All of it is text that models or data wrote: it is escaped, characters that cannot be seen are made visible, and long
text is clipped, with the rest behind an expander. Attributes carry only numbers and words of ours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from brim.analyze.page.forms import counted, named, number
from brim.analyze.page.parts import LONGEST, clipped_html, text_html
from brim.analyze.page.points import finite
from brim.generate.report.page.cards import common_beginning
from brim.train.grpo.report import ShownAttempt, ShownGroup

GROUP_ATTEMPTS = 8
"""Attempts shown of a group of a rollout."""
MOST_NAMED_PARTS = 6
TITLE = 160
"""Characters of a prompt that stand in for it while it is folded."""
PREVIEW, PREVIEW_LINES = 280, 9
"""Size of the beginning of a text that is shown while the rest is folded."""
ALL_CHARACTERS = 350_000
"""Characters of all attempts of a page together, divided equally."""
SHORTEST = 400


@dataclass(frozen=True)
class Titles:
    """Names of tasks by their prompts, without the words that all prompts begin or end with."""

    before: int
    after: int

    @classmethod
    def of(cls, prompts: Sequence[str]) -> "Titles":
        return cls(common_beginning(prompts), common_beginning([prompt[::-1] for prompt in prompts]))

    def html(self, prompt: str) -> str:
        words = re.sub(r"\s+", " ", prompt[self.before : len(prompt) - self.after][: 4 * TITLE]).strip(" ")
        clipped = words[:TITLE] + (" …" if self.after or len(words) > TITLE else "")
        return ("… " if self.before else "") + (text_html(clipped) or "(empty prompt)")


def longest_text(texts: int) -> int:
    """Return the characters of a text that go into a page with so many of them."""
    return max(SHORTEST, min(LONGEST, ALL_CHARACTERS // max(texts, 1)))


def asked_html(group: ShownGroup, longest: int) -> str:
    """Return the prompt of a task and the answer that is expected."""
    answer = ""
    if group.answer is not None:
        answer = f'<p class="label">Expected answer</p>{clipped_html(group.answer, longest=longest)}'
    return (
        f'<div class="asked"><p class="label">Prompt <span class="id"><bdi>{escape(named(group.task, "id"))}</bdi>'
        f"</span></p>{clipped_html(group.prompt, longest=longest)}{answer}</div>"
    )


def attempt_html(attempt: ShownAttempt, longest: int) -> str:
    """Return an attempt as a card."""
    verdicts = {True: ("yes", "passed"), False: ("no", "not passed"), None: ("none", "")}
    kind, passed = verdicts[attempt.passed]
    turns = f", {counted(attempt.turns, 'turn')}" if attempt.turns != 1 else ""
    reason = named(attempt.finish_reason, "reason")
    ended = f'<b class="cut">{escape(reason)}</b>' if reason == "length" else escape(reason)
    return (
        f'<article class="response {kind}"><p class="score"><b>{_reward(attempt)}</b> {passed}</p>'
        f'<p class="numbers">{counted(attempt.tokens, "token")}{turns}, ended by {ended}{_parts(attempt)}</p>'
        f"{clipped_html(attempt.text, preview=PREVIEW, lines=PREVIEW_LINES, longest=longest)}</article>"
    )


def _reward(attempt: ShownAttempt) -> str:
    reward = finite(attempt.reward)
    if reward is not None:
        return f"reward {number(reward)}"
    return f"no reward: {escape(named(attempt.failure))}" if attempt.failure is not None else "no reward"


def _parts(attempt: ShownAttempt) -> str:
    """Return the parts of the reward on a line of their own, if there is more than one."""
    if len(attempt.parts) < 2:
        return ""
    listed = [f"{escape(named(name))} {number(finite(value))}" for name, value in attempt.parts.items()]
    more = len(listed) - MOST_NAMED_PARTS
    return f"<br>{', '.join(listed[:MOST_NAMED_PARTS])}{f' and {more} more' if more > 0 else ''}"


def group_html(group: ShownGroup, titles: Titles, longest: int, *, is_open: bool) -> str:
    """Return a group, which unfolds."""
    attempts = group.attempts[:GROUP_ATTEMPTS]
    cards = "".join(attempt_html(one, longest) for one in attempts)
    return (
        f'<details class="prompt"{" open" if is_open else ""}><summary><span class="rate">{_result(group)}</span>'
        f'<span class="ask"><bdi>{titles.html(group.prompt)}</bdi></span></summary>'
        f'<div class="inside">{asked_html(group, longest)}<div class="responses">{cards}</div>'
        f"{left_html(len(group.attempts) - len(attempts))}</div></details>"
    )


def left_html(many: int) -> str:
    """Say how many attempts are left out; nothing if there are none."""
    if not many:
        return ""
    return f'<p class="hint">{counted(many, "more attempt")} {"is" if many == 1 else "are"} not shown.</p>'


def _result(group: ShownGroup) -> str:
    rewards = mean_reward(group)
    passed = [one.passed for one in group.attempts if one.passed is not None]
    if passed:
        return f"{sum(passed)} of {len(passed)} passed"
    return "no reward" if rewards is None else f"reward {number(rewards)}"


def mean_reward(group: ShownGroup) -> float | None:
    """Return the mean reward of the attempts of a group that are shown; None if none has one."""
    known = [reward for one in group.attempts if (reward := finite(one.reward)) is not None]
    return sum(known) / len(known) if known else None
