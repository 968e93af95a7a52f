"""The sentences and facts of the page, with the numbers in them.

They say what happened, good or bad. A change that is smaller than two standard errors is called what it may be: chance.
"""

import math
from collections.abc import Sequence
from statistics import stdev

from brim.analyze.page.forms import MISSING, counted, duration, named, number
from brim.analyze.page.parts import Fact, brief
from brim.analyze.page.points import finite
from brim.train.query.page.choices import Choices
from brim.train.query.page.pairs import SAME, change_of
from brim.train.query.page.stretch import Stretch
from brim.train.query.report import Evaluation

NAMED_KINDS = 4
"""Kinds of questions whose favourite mutator is named in a sentence."""


def verdict(run: Stretch, first: Stretch, last: Stretch, evaluation: Evaluation | None, best: float | None) -> str:
    """Return what was learned: the reward early and late in training, and of questions before and after rewriting."""
    return f"{_training(run, first, last)}{_of_best(last, best)} {_comparison(evaluation)}"


def remarks(run: Stretch, evaluation: Evaluation | None) -> str:
    """Return what else must be known: invalid steps, fallbacks, questions without a reward, a run that was stopped."""
    said = [_invalid(run)]
    if run.fallbacks:
        said.append(f"In {counted(run.fallbacks, 'step')} a fallback took the place of a failed call.")
    unrated = len(evaluation.pairs) - len(evaluation.rated) if evaluation is not None else 0
    if evaluation is not None and unrated:
        said.append(
            f"{unrated:,} of the {counted(len(evaluation.pairs), 'question')} compared lack a reward, because a call "
            f"failed{_named(evaluation.invalid)}; they count in neither mean."
        )
    if run.updates and run.last < run.updates[-1].updates:
        said.append(f"The run stopped after {run.last:,} of {run.updates[-1].updates:,} updates.")
    return " ".join(said)


def _training(run: Stretch, first: Stretch, last: Stretch) -> str:
    if not run.updates:
        return "No update was finished, so nothing was learned."
    if not run.valid or run.reward is None:
        return f"Nothing was learned: none of the {counted(run.steps, 'step')} was valid."
    if len(run.updates) == 1:
        return f"One update shows no trend: the mean reward of its steps was {number(run.reward)}."
    early, late = _where("first", first), _where("last", last)
    if first.reward is None or last.reward is None:
        known, other = (last, early) if first.reward is None else (first, late)
        where = late if first.reward is None else early
        return f"The mean reward of a step was {number(known.reward)} in the {where}; the {other} had no valid step."
    change = last.reward - first.reward
    numbers = f"{number(first.reward)} in the {early} to {number(last.reward)} in the {late}"
    if number(first.reward) == number(last.reward):
        return f"The mean reward of a step did not change: {number(first.reward)} in the {early} and in the {late}."
    error = _error_of_change(first, last)
    if error is not None and abs(change) <= 2 * error:
        return f"The mean reward of a step hardly changed, from {numbers}: chance may explain the difference."
    return f"The mean reward of a step {'rose' if change > 0 else 'fell'} from {numbers}."


def _where(end: str, stretch: Stretch) -> str:
    many = len(stretch.updates)
    return f"{end} update" if many == 1 else f"{end} tenth of updates ({many:,})"


def _error_of_change(first: Stretch, last: Stretch) -> float | None:
    """Return the standard error of the difference of two mean rewards, estimated from updates; None if unknown."""
    samples = [[value for one in part.updates if (value := finite(one.reward)) is not None] for part in (first, last)]
    if min(map(len, samples)) < 2:
        return None
    return math.sqrt(sum(stdev(rewards) ** 2 / len(rewards) for rewards in samples))


def _of_best(last: Stretch, best: float | None) -> str:
    if best is None or best <= 0 or last.reward is None:
        return ""
    return f" The best possible is {number(best)}, so the end is at {last.reward / best:.0%} of it."


def _comparison(evaluation: Evaluation | None) -> str:
    if evaluation is None or not evaluation.pairs:
        return "Questions were not compared before and after rewriting."
    pairs, before, after = evaluation.rated, evaluation.before, evaluation.after
    if before is None or after is None:
        return f"Before and after cannot be compared: none of {counted(len(evaluation.pairs), 'question')} was rated."
    changes = [change_of(pair) or 0.0 for pair in pairs]
    better, worse = sum(change > SAME for change in changes), sum(change < -SAME for change in changes)
    counts = f"{better:,} better, {worse:,} worse, {len(pairs) - better - worse:,} the same"
    if evaluation.held_out:
        on = f"On {counted(len(pairs), 'question')} outside of the training data"
    else:
        on = f"On {counted(len(pairs), 'question')} of the training data"
    if not better and not worse:
        return f"{on}, rewriting by the trained policy changed no reward: the mean is {number(before)} either way."
    if number(before) == number(after):
        return f"{on}, rewriting by the trained policy left the mean reward at {number(before)} ({counts})."
    moved = "raised" if after > before else "lowered"
    return (
        f"{on}, rewriting by the trained policy {moved} the mean reward of the answer from {number(before)} to "
        f"{number(after)} ({counts}){_doubt(changes)}."
    )


def _doubt(changes: Sequence[float]) -> str:
    if len(changes) < 2:
        return "; one question says little"
    error = stdev(changes) / math.sqrt(len(changes))
    return "; chance may explain the difference" if abs(sum(changes) / len(changes)) <= 2 * error else ""


def _invalid(run: Stretch) -> str:
    bad = sum(run.invalid.values())
    if not run.steps:
        return ""
    if not bad:
        return f"All {counted(run.steps, 'step')} were valid." if run.steps > 1 else "The only step was valid."
    if bad == run.steps:
        return f"All {counted(bad, 'step')} were invalid{_named(run.invalid)}."
    were = "was" if bad == 1 else "were"
    return (
        f"{bad:,} of {counted(run.steps, 'step')} ({_share(bad / run.steps)}) {were} invalid, and nothing was learned "
        f"from {'it' if bad == 1 else 'them'}{_named(run.invalid)}."
    )


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _named(failures: dict[str, int]) -> str:
    if not failures:
        return ""
    name = named(max(failures, key=lambda name: failures[name]))
    return f" ({name})" if len(failures) == 1 else f" (mostly {name})"


def fact_list(run: Stretch, evaluation: Evaluation | None) -> list[Fact]:
    """Return the large numbers at the top of the page."""
    bad, planned = sum(run.invalid.values()), run.updates[-1].updates if run.updates else 0
    rate = f"{run.steps / run.seconds:,.1f}" if run.seconds else MISSING
    after = evaluation.seconds if evaluation is not None else 0.0
    compared = f"and {duration(after)} for the comparison" if after else "rollouts and learning"
    stopped = f"of {planned:,}, then stopped" if run.last < planned else "all that were planned"
    speedup, fill = run.speedup, run.fill
    return [
        Fact("steps", "Steps", f"{run.steps:,}", f"{counted(run.episodes, 'episode')} ended"),
        Fact("updates", "Updates", f"{len(run.updates):,}", stopped),
        Fact("calls", "Model calls", f"{run.calls:,}" if run.calls < 1e7 else brief(run.calls), _cached(run)),
        Fact(
            "invalid",
            "Invalid steps",
            _share(bad / run.steps) if bad else "0%",
            counted(bad, "step") if bad else "none",
        ),
        Fact("rate", "Steps per second", rate, "learning included"),
        Fact("speedup", "Speed-up", MISSING if speedup is None else f"{speedup:,.1f}×", "against one call at a time"),
        Fact("fill", "Slots' fill", MISSING if fill is None else f"{fill:.0%}", "of the servers, in rollouts"),
        Fact("wall", "Wall-clock time", duration(run.seconds), compared),
    ]


def _cached(run: Stretch) -> str:
    return f"{run.cached:,} of them cached ({run.cached / run.calls:.0%})" if run.cached else "none of them cached"


def notes(run: Stretch, points: int) -> list[str]:
    """Return a sentence on what the charts merge, if anything."""
    if points >= len(run.updates):
        return []
    return [
        f"Curves show {points:,} means over stretches of the {len(run.updates):,} updates; other numbers are of all."
    ]


def choice_words(choices: Choices) -> str:
    """Describe the favourite mutator of each kind at the end, and whether it is the best rewarded one."""
    late = len(choices.periods) - 1
    said: list[str] = []
    agree = compared = 0
    for kind, name in enumerate(choices.kinds[: choices.known]):
        favourite = choices.favourite(late, kind)
        if favourite is None:
            continue
        compared += choices.best[kind] is not None
        agree += choices.best[kind] == favourite
        before = choices.share(0, kind, favourite) if late else None
        early = f"from {before:.0%} to " if before is not None else ""
        share = choices.share(late, kind, favourite) or 0.0
        said.append(f"{name}: {choices.mutators[favourite]} ({early}{share:.0%} of its steps)")
    if not said:
        return "There was no valid step, so there are no choices to show."
    more = f"; and {len(said) - NAMED_KINDS:,} more kinds below" if len(said) > NAMED_KINDS else ""
    sentence = f"Chosen most often {'late in the run' if late else 'in the run'}, by kind of question: "
    sentence += "; ".join(said[:NAMED_KINDS]) + more + "."
    if compared:
        most = "the mutator with the highest mean reward over the run"
        of = f"For {agree:,} of {compared:,} kinds, that is also {most}."
        alone = f"That is {'also' if agree else 'not'} {most}."
        sentence += f" {of if compared > 1 else alone}"
    return sentence


def time_words(run: Stretch) -> str:
    """Say where the wall-clock time went, and what the sums over calls mean."""
    if not run.seconds:
        return "No time was recorded."
    parts = {"waiting for calls": run.waiting, "policy": run.policy, "learning": run.learning, "other": run.other}
    shares = ", ".join(f"{name} {value / run.seconds:.0%}" for name, value in parts.items() if value or name != "other")
    calls = (
        f" All calls together spent {duration(run.server)} with the servers and {duration(run.queue)} in the queue for "
        "a free slot. Calls run side by side, so these sums are not parts of the wall-clock time, and can exceed it."
    )
    return f"Of {duration(run.seconds)} of wall-clock time: {shares}.{calls}"


def invalid_words(run: Stretch) -> str:
    """Name the failures, and the stretch of the run in which they happened."""
    hit = [one.update for one in run.updates if sum(one.invalid.values())]
    if not hit:
        return ""
    where = f"update {hit[0]:,}" if len(hit) == 1 else f"{len(hit):,} updates, from {hit[0]:,} to {hit[-1]:,}"
    types = ", ".join(f"{named(name)} {count:,}" for name, count in run.invalid.items())
    return f"Invalid steps have no reward and are left out of learning. They happened in {where}: {types}."
