"""Prompts with their responses side by side, as HTML that needs no JavaScript.

All of it is text that models or data wrote: it is escaped, and characters that cannot be seen are made visible.
Attributes carry only numbers and words of ours, by which the script filters and sorts.
"""

import re
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from brim.analyze.page.forms import counted, length, named, number
from brim.analyze.page.parts import KEPT, text_html
from brim.generate.report.collect import Card, Clipped, Excerpt, Generated
from brim.generate.report.figures import FULL, mean_of
from brim.generate.report.page.words import lengths_of, unit_of
from brim.generate.rollouts import REASONS

TITLE = 180
"""Characters of a prompt that stand in for it while it is folded."""
LEAST_SHARED = 12
"""Characters with which all prompts begin or end, such as a template, from which on titles leave them out."""
MOST_MARKS = 16
"""Responses up to which each has a square in the line of its prompt."""
LONG = 700
"""Characters of a text from which on its box can be focused, and so scrolled with the keyboard."""


def cards_html(generated: Generated) -> str:
    """Return all prompts that are shown. The first one is unfolded."""
    texts = [title_text(card) for card in generated.cards]
    shared = common_beginning(texts), common_beginning([text[::-1] for text in texts])
    by_prompt = rows_by_prompt(generated)
    return "".join(
        _card(generated, card, by_prompt[card.number], shared, at == 0) for at, card in enumerate(generated.cards)
    )


def rows_by_prompt(generated: Generated) -> list[NDArray[np.int64]]:
    """Return the rows of all responses to each prompt, shown or not."""
    order = np.argsort(generated.prompt, kind="stable")
    return np.split(order, np.searchsorted(generated.prompt[order], np.arange(1, generated.prompts)))


def title_text(card: Card) -> str:
    """Return the text that tells a prompt from others: its last message."""
    return card.prompt[-1][1].text if card.prompt else ""


def common_beginning(texts: Sequence[str]) -> int:
    """Return the number of characters with which all texts begin, whole words of them; 0 if they are few."""
    low, high = min(texts, default=""), max(texts, default="")
    if low == high:
        return 0
    # What the first and the last text in alphabetical order share is shared by all texts between them.
    same = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    whole = max(low.rfind(" ", 0, same), low.rfind("\n", 0, same)) + 1
    return whole if whole >= LEAST_SHARED else 0


def solving(scores: Sequence[float]) -> str:
    """Return how often a prompt with these scores is solved: always, sometimes, never, or unscored."""
    known = [score for score in scores if not np.isnan(score)]
    if not known:
        return "unscored"
    hits = sum(score >= FULL for score in known)
    return "always" if hits == len(known) else "sometimes" if hits else "never"


def _card(generated: Generated, card: Card, rows: NDArray[np.int64], shared: tuple[int, int], is_first: bool) -> str:
    scores = generated.score[rows]
    hits, scored = int((scores >= FULL).sum()), int((~np.isnan(scores)).sum())
    size = mean_of(lengths_of(generated)[rows])
    rate = ""
    if not np.isnan(generated.score).all():
        said = f"{hits} of {scored} solved" if scored else "no score"
        marks = _marks(scores.tolist(), hits / scored if scored else 0.0)
        rate = f'<span class="marks" aria-hidden="true">{marks}</span><span class="rate">{said}</span>'
    attributes = f'data-at="{card.number}" data-solved="{solving(scores.tolist())}"'
    attributes += f' data-rate="{hits / scored:.6g}"' if scored else ""
    attributes += f' data-length="{size:.6g}"' if size is not None else ""
    return (
        f'<details class="prompt" {attributes}{" open" if is_first else ""}><summary>'
        f'{rate}<span class="ask"><bdi>{_title(card, *shared)}</bdi></span>'
        f'<span class="size">{_size(size, generated)}</span></summary>'
        f'<div class="inside">{_asked(card)}'
        f'<div class="responses">{"".join(_response(generated, one) for one in card.responses)}</div>'
        f"{_left(len(rows) - len(card.responses))}</div></details>"
    )


def _left(many: int) -> str:
    return f'<p class="hint">{counted(many, "more response")} are left out of this page.</p>' if many else ""


def _marks(scores: Sequence[float], rate: float) -> str:
    """Return a square for each response, or a bar if there are many."""
    if len(scores) <= MOST_MARKS:
        return "".join(f'<i class="{_solved(score)}"></i>' for score in scores)
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none"><rect class="back" width="100" height="10"/>'
        f'<rect class="used" width="{100 * rate:.1f}" height="10"/></svg>'
    )


def _solved(score: float) -> str:
    return "none" if np.isnan(score) else "yes" if score >= FULL else "no"


def _size(size: float | None, generated: Generated) -> str:
    return "length unknown" if size is None else f"mean {length(size)} {unit_of(generated)}"


def _title(card: Card, before: int, after: int) -> str:
    text = title_text(card)
    words = re.sub(r"[ \t\n]+", " ", text[before : len(text) - after][: 4 * TITLE]).strip(" ")
    clipped = words[:TITLE] + (" …" if after or len(words) > TITLE else "")
    return ("… " if before else "") + (text_html(clipped) or "(empty prompt)")


def _asked(card: Card) -> str:
    """Return the prompt and the answer that was expected."""
    name = f'<p class="label">Prompt <span class="id"><bdi>{escape(named(card.id, "id"))}</bdi></span></p>'
    if not card.prompt:
        name += '<p class="none">no messages</p>'
    turns = "".join(
        (f'<p class="label"><bdi>{escape(named(role))}</bdi></p>' if role else "") + block_html(text)
        for role, text in card.prompt
    )
    answer = f'<p class="label">Expected answer</p>{block_html(card.answer)}' if card.answer is not None else ""
    return f'<div class="asked">{name}{turns}{answer}</div>'


def _response(generated: Generated, one: Excerpt) -> str:
    row = one.row
    reason, score = REASONS[int(generated.reason[row])], float(generated.score[row])
    return (
        f'<article class="response {_solved(score)}" data-ending="{reason}">'
        f'<h3>Response {one.sample} <span class="score">{_score(score)}</span></h3>'
        f'<p class="numbers">{_long(generated, row)}, ended by <span class="{reason}">{reason}</span>'
        f"{_certainty(generated, row)}</p>{block_html(one.text)}</article>"
    )


def _score(score: float) -> str:
    if np.isnan(score):
        return ""
    return f"{'solved, ' if score >= FULL else ''}score {score:.3g}"


def _long(generated: Generated, row: int) -> str:
    tokens = float(generated.tokens[row])
    return counted(int(generated.characters[row]), "character") if np.isnan(tokens) else counted(int(tokens), "token")


def _certainty(generated: Generated, row: int) -> str:
    """Return the entropy and the log-prob of a response, as far as they are known, on a line of their own."""
    values = {"entropy": float(generated.entropy[row]), "log-prob": float(generated.logprob[row])}
    told = ", ".join(f"{name} {number(value)}" for name, value in values.items() if not np.isnan(value))
    return f"<br>{told}" if told else ""


def block_html(clipped: Clipped) -> str:
    """Return a text as a block that scrolls by itself if it is long."""
    text = clipped.text
    if not text.strip():
        return f'<p class="none">{"empty" if not text else "only white space"}</p>'
    long = len(text) > LONG or text.count("\n") > 12
    left = clipped.length - len(text)
    rest = f'<p class="hint">{left:,} more characters are left out of this page.</p>' if left else ""
    focus = ' tabindex="0" role="group" aria-label="Long text"' if long else ""
    return f'<div class="text" dir="auto"{focus}>{text_html(text, keep=KEPT)}</div>{rest}'
