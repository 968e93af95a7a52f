"""Questions before and after, and single steps, as HTML cards.

All of it is text that models wrote: it is escaped, characters that cannot be seen are made visible, and long text is
clipped, with the rest behind an expander that needs no JavaScript.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape

from brim.analyze.page.forms import named, number
from brim.analyze.page.parts import clipped_html
from brim.train.query.report import Evaluation, Example, Pair

MOST_PAIRS = 200
MOST_EXAMPLES = 12
"""Upper limit of the steps shown of an update."""
SAME = 1e-9
"""Rewards that differ by no more than this are the same."""
CHANGES = ("better", "worse", "same", "unrated")
ARROWS = {"better": "▲", "worse": "▼", "same": "=", "unrated": "?"}


def change_of(pair: Pair) -> float | None:
    """The reward of the rewritten question minus that of the original; None if one of them is missing."""
    return None if pair.reward is None or pair.new_reward is None else pair.new_reward - pair.reward


def named_change(pair: Pair) -> str:
    """Return one of `CHANGES`."""
    change = change_of(pair)
    if change is None:
        return "unrated"
    if abs(change) <= SAME:
        return "same"
    return "better" if change > 0 else "worse"


def leading_pairs(evaluation: Evaluation) -> list[Pair]:
    """Return the pairs to show: the largest changes first, pairs without a reward last."""

    def size(pair: Pair) -> float:
        change = change_of(pair)
        return -1.0 if change is None else abs(change)

    return sorted(evaluation.pairs, key=size, reverse=True)[:MOST_PAIRS]


def pair_words(evaluation: Evaluation, shown: Sequence[Pair]) -> str:
    """Say in which order pairs are shown, and how many are left out."""
    words = (
        "Each question as it stands in the data, beside the question as the trained policy rewrites it, with the most "
        "probable mutator at every step. The largest changes of the reward come first."
    )
    left = len(evaluation.pairs) - len(shown)
    if left:
        counts = Counter(map(named_change, evaluation.pairs)) - Counter(map(named_change, shown))
        names = ", ".join(f"{counts[name]:,} {_label(name)}" for name in CHANGES if counts[name])
        words += f" {len(shown):,} of {len(evaluation.pairs):,} pairs are shown; {left:,} are left out ({names})."
    return words


def filters_html(shown: Sequence[Pair]) -> str:
    """Return the choices by which pairs are filtered: by change and, where there are several, by kind."""
    counts, kinds = Counter(map(named_change, shown)), _kinds(shown)
    radios = [("all", f"all {len(shown):,}")]
    radios += [(name, f"{_label(name)} {counts[name]:,}") for name in CHANGES if counts[name] or name != "unrated"]
    labels = "".join(
        f'<label><input type="radio" name="change" value="{value}"{" checked" if value == "all" else ""}>'
        f"<span>{label}</span></label>"
        for value, label in radios
    )
    options = "".join(
        f'<option value="{at}">{_kind(kind)} ({count:,})</option>' for at, (kind, count) in enumerate(kinds.items())
    )
    select = (
        f'<label class="by">Kind <select id="kind"><option value="all">all</option>{options}</select></label>'
        if len(kinds) > 1
        else ""
    )
    return f'<fieldset class="switch"><legend>Show</legend>{labels}</fieldset>{select}'


def pairs_html(shown: Sequence[Pair]) -> str:
    """Return the pairs as cards. Attributes carry the change and the number of the kind, for the filters."""
    kinds = list(_kinds(shown))
    return "".join(_pair(pair, kinds.index(pair.kind)) for pair in shown)


def examples_html(examples: Sequence[Example]) -> str:
    """Return steps as cards."""
    cards = "".join(map(_example, examples[:MOST_EXAMPLES]))
    left = len(examples) - MOST_EXAMPLES
    return cards + (f'<p class="hint">{left:,} more were recorded and are not shown.</p>' if left > 0 else "")


def _kinds(shown: Sequence[Pair]) -> dict[str, int]:
    """Return the kinds of the pairs with their numbers, the most frequent first."""
    return dict(Counter(pair.kind for pair in shown).most_common())


def _kind(kind: str) -> str:
    return escape(named(kind, "kind"))


def _label(change: str) -> str:
    return "not rated" if change == "unrated" else change


def _pair(pair: Pair, kind: int) -> str:
    change, name = change_of(pair), named_change(pair)
    size = f"{number(abs(change))} " if change is not None and name != "same" else ""
    route = " → ".join(f"<b>{escape(named(mutator))}</b>" for mutator in pair.mutators) or "not rewritten"
    reference = _labelled("Reference", pair.reference) if pair.reference is not None else ""
    return (
        f'<article class="card" data-change="{name}" data-kind="{kind}">'
        f'<div class="head"><h3>{_kind(pair.kind)} <span class="id">{escape(named(pair.id, "id"))}</span></h3>'
        f'<p class="change {name}"><span aria-hidden="true">{ARROWS[name]}</span> {size}{_label(name)}</p></div>'
        f'<div class="sides"><div><h4>As asked {_reward(pair.reward)}</h4>{_labelled("Question", pair.question)}'
        f"{_answer(pair.answer, pair.reward)}</div>"
        f"<div><h4>Rewritten {_reward(pair.new_reward)}</h4>"
        f'{_labelled("Question", pair.query)}<p class="route">{route}</p>'
        f"{_answer(pair.new_answer, pair.new_reward)}</div></div>{reference}</article>"
    )


def _example(one: Example) -> str:
    asked = _labelled("Question in the data", one.question) if one.before != one.question else ""
    return (
        f'<article class="card step"><h4>{_kind(one.kind)} {_reward(one.reward)}</h4>{asked}'
        f'<div class="sides"><div>{_labelled("Before", one.before)}</div>'
        f'<div>{_labelled("After", one.query)}<p class="route"><b>{escape(named(one.mutator))}</b></p></div></div>'
        f"{_answer(one.answer, one.reward)}</article>"
    )


def _reward(reward: float | None) -> str:
    text = "no reward" if reward is None else f"reward {number(reward)}"
    return f'<span class="reward">{text}</span>'


def _answer(answer: str, reward: float | None) -> str:
    if not answer and reward is None:
        return '<p class="label">Answer</p><p class="none">none: a call failed</p>'
    return _labelled("Answer", answer)


def _labelled(label: str, text: str) -> str:
    return f'<p class="label">{label}</p>{clipped_html(text)}'
