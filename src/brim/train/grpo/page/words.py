"""The sentences, facts and tables of the page, with the numbers in them.

They say what happened, good or bad. A difference of less than two standard errors is called what it may be: chance.
The standard error of a difference is taken as if both evaluations had drawn their tasks anew. They attempt the same
tasks, so the true error is smaller, and the verdict is on the safe side.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from brim.analyze.page.forms import MISSING, counted, duration, large, length, number, share
from brim.analyze.page.parts import Fact
from brim.analyze.page.points import finite
from brim.train.grpo.page.runs import Evaluated, RunShown
from brim.train.grpo.page.stretch import Stretch, ends, rewarded

CHANCE = 2.0
"""Standard errors up to which a difference may be chance."""


class Change(NamedTuple):
    """A mean before and after, with their standard errors, where these are known."""

    first: float
    last: float
    first_error: float | None
    last_error: float | None
    error: float | None
    """Standard error of the difference."""

    @property
    def z(self) -> float | None:
        """The difference in standard errors; None if these are not known, or 0."""
        return (self.last - self.first) / self.error if self.error else None


def verdict(runs: Sequence[RunShown]) -> str:
    """Return the outcome in one or two sentences: the held-out reward, or that of training if there is none."""
    so_far = "" if all(run.is_over for run in runs) else "So far, "
    if not any(run.rollouts for run in runs):
        return "No rollout is finished yet, so there is nothing to see."
    pairs = [(run.name, *found) for run in runs if (found := _compared(run)) is not None]
    if not pairs:
        return _begun(so_far, f"{_one_evaluation(runs)}{training_words(runs)}")
    if len(pairs) == 1:
        _, first, last = pairs[0]
        told = _held_out(_change(first, last), _when(first), _when(last), last.evaluation.tasks)
        return _begun(so_far, told)
    return _begun(so_far, _several([(first, last) for _, first, last in pairs]))


def advice(runs: Sequence[RunShown]) -> str:
    """Return what follows the verdict: the reward in training, unless the verdict is about it, and how far runs are."""
    is_told = all(_compared(run) is None for run in runs)
    return " ".join(filter(None, ["" if is_told else training_words(runs), progress_words(runs)]))


def _begun(so_far: str, sentence: str) -> str:
    return f"{so_far}{sentence[0].lower()}{sentence[1:]}" if so_far else sentence


def _compared(run: RunShown) -> tuple[Evaluated, Evaluated] | None:
    """Return the first and the last evaluation with a reward; None if there are not two."""
    known = [one for one in run.evaluations if finite(one.evaluation.reward) is not None]
    return (known[0], known[-1]) if len(known) > 1 else None


def _change(first: Evaluated, last: Evaluated) -> Change:
    errors = [finite(one.evaluation.reward_error) for one in (first, last)]
    error = math.hypot(*(one or 0.0 for one in errors)) if None not in errors else None
    return Change(first.evaluation.reward or 0.0, last.evaluation.reward or 0.0, errors[0], errors[1], error)


def _when(one: Evaluated) -> str:
    return f"after {counted(one.step, 'step')}" if one.step else "before training"


def _held_out(change: Change, before: str, after: str, tasks: int) -> str:
    numbers = (
        f"from {with_error(change.first, change.first_error)} {before} to "
        f"{with_error(change.last, change.last_error)} {after}"
    )
    on = f"The mean reward on {counted(tasks, 'held-out task')}"
    return f"{on} {_moved(change)} {numbers}{_chance(change)}."


def _moved(change: Change) -> str:
    if number(change.first) == number(change.last):
        return "stayed the same,"
    if change.z is not None and abs(change.z) <= CHANCE:
        return "hardly changed,"
    return "rose" if change.last > change.first else "fell"


def _chance(change: Change) -> str:
    if number(change.first) == number(change.last):
        return ""
    if change.error is None:
        return "; one task says little"
    if change.z is None:
        return ""
    size = f"{abs(change.z):.1f} standard errors"
    if abs(change.z) <= CHANCE:
        return f". The difference is {size}: chance may explain it"
    return f". The difference is {size}, more than chance explains"


def with_error(value: float, error: float | None) -> str:
    """Format a mean with its standard error: 0.412 ± 0.020."""
    return number(value) if error is None else f"{number(value)} ± {number(error)}"


def _several(pairs: Sequence[tuple[Evaluated, Evaluated]]) -> str:
    """Put the change of several runs into words: their mean, and in how many of them the reward rose."""
    change = _mean_change([_change(first, last) for first, last in pairs])
    rose = sum((last.evaluation.reward or 0.0) > (first.evaluation.reward or 0.0) for first, last in pairs)
    tasks = pairs[0][1].evaluation.tasks
    starts, stops = {_when(first) for first, _ in pairs}, {_when(last) for _, last in pairs}
    before = starts.pop() if len(starts) == 1 else "in the first evaluation"
    after = stops.pop() if len(stops) == 1 else "in the last evaluation"
    told = _held_out(change, before, after, tasks).removesuffix(".")
    many = {0: "none", len(pairs): "both" if len(pairs) == 2 else "all"}.get(rose, f"{rose:,}")
    return f"{told}. These are means of {len(pairs):,} runs; the reward rose in {many} of them."


def _mean_change(changes: Sequence[Change]) -> Change:
    """Return the mean of the changes of several runs."""
    return Change(
        fmean(one.first for one in changes),
        fmean(one.last for one in changes),
        _mean_error([one.first for one in changes], [one.first_error for one in changes]),
        _mean_error([one.last for one in changes], [one.last_error for one in changes]),
        _mean_error([one.last - one.first for one in changes], [one.error for one in changes]),
    )


def _mean_error(values: Sequence[float], errors: Sequence[float | None]) -> float:
    """Return the standard error of a mean over runs.

    It is the larger one of two: by how much the runs differ, and what one run is uncertain by. The latter does not
    shrink with the number of runs, because all of them are evaluated on the same tasks.
    """
    return max(stdev(values) / math.sqrt(len(values)), fmean(error or 0.0 for error in errors))


def _one_evaluation(runs: Sequence[RunShown]) -> str:
    """Tell the held-out reward where it is known only once, and cannot be compared."""
    known = [one for run in runs for one in run.evaluations if finite(one.evaluation.reward) is not None]
    if len(known) != 1:
        return ""
    reward = with_error(known[0].evaluation.reward or 0.0, finite(known[0].evaluation.reward_error))
    return f"The mean held-out reward was {reward} {_when(known[0])}, and was not measured again. "


def training_words(runs: Sequence[RunShown]) -> str:
    """Say what became of the reward in training, from the first tenth of the rollouts to the last."""
    begun = [run for run in runs if run.rollouts]
    found = [change for run in begun if (change := _training(run)) is not None]
    where = "between the first and the last tenth of the rollouts"
    if any(len(run.rollouts) < 20 for run in begun):
        where = "between the first and the last rollout"
    if not found:
        known = [reward for run in begun if (reward := Stretch(run.rollouts).reward) is not None]
        if not known:
            return "No attempt in training has a reward."
        return f"The mean reward in training was {number(fmean(known))}; one rollout shows no trend."
    change = found[0] if len(found) == 1 else _mean_change(found)
    numbers = f"from {number(change.first)} to {number(change.last)} {where}"
    if number(change.first) == number(change.last):
        return f"The mean reward in training stayed at {number(change.last)} {where}."
    doubt = change.z is not None and abs(change.z) <= CHANCE
    return f"The mean reward in training {_moved(change).rstrip(',')} {numbers}" + (
        "; chance may explain the difference." if doubt else "."
    )


def _training(run: RunShown) -> Change | None:
    """Compare the rewards of both ends of a run; None if one of them has no reward, or there is only one rollout."""
    first, last = ends(run.rollouts)
    if len(run.rollouts) < 2 or first.reward is None or last.reward is None:
        return None
    errors = [_error(first), _error(last)]
    error = math.hypot(*(one or 0.0 for one in errors)) if None not in errors else None
    return Change(first.reward, last.reward, errors[0], errors[1], error)


def _error(stretch: Stretch) -> float | None:
    """Return the standard error of the mean of a stretch, judged by how much its rollouts differ."""
    rewards = [reward for one in stretch.rollouts if (reward := finite(one.reward)) is not None and rewarded(one)]
    return stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else None


def progress_words(runs: Sequence[RunShown]) -> str:
    """Say of runs that have not taken all of their steps how far they are; nothing if all have."""
    said: list[str] = []
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        far = f"{run.step:,} of {counted(run.steps, 'optimizer step')}"
        if not run.is_over:
            said.append(f"{name}{'the' if name else 'The'} run is not over; it has taken {far}.")
        elif run.step < run.steps:
            said.append(f"{name}{'the' if name else 'The'} run ended early, after {far}.")
    return " ".join(said)


def fact_list(runs: Sequence[RunShown]) -> list[Fact]:
    """Return the large numbers at the top of the page: sums over all runs, and means over them."""
    every = Stretch([one for run in runs for one in run.rollouts])
    attempts, trained = every.total("attempts"), every.total("trained")
    steps, planned = sum(run.step for run in runs), sum(run.steps for run in runs)
    rate = every.rate("rollout_tokens", "rollout_seconds")
    in_runs = f"in {counted(len(runs), 'run')}" if len(runs) > 1 else "generated, rewarded, trained on"
    evaluated = [run.evaluations[-1].evaluation for run in runs if run.evaluations]
    late = [ends(run.rollouts)[1] for run in runs if run.rollouts]
    reward = [finite(one.reward) for one in evaluated] or [one.reward for one in late]
    passed = [finite(one.pass_rate) for one in evaluated] or [one.pass_rate for one in late]
    where = "held out, last evaluation" if evaluated else "training, last tenth"
    lengths = every.over_attempts("length")
    return [
        Fact("rollouts", "Rollouts", f"{len(every.rollouts):,}", in_runs),
        Fact(
            "steps", "Optimizer steps", f"{steps:,}", "all that were planned" if steps >= planned else f"of {planned:,}"
        ),
        Fact("attempts", "Attempts", large(attempts), f"{share(trained, attempts)} trained on" if attempts else ""),
        Fact("reward", "Mean reward", number(_mean_of(reward)), where),
        Fact("passed", "Pass rate", _percent(_mean_of(passed)), where),
        Fact(
            "tokens", "Tokens drawn", large(every.total("rollout_tokens")), f"{large(rate)} per second" if rate else ""
        ),
        Fact("length", "Mean length", length(lengths), "tokens of an attempt"),
        Fact("time", "Time", duration(every.seconds), "of all runs together" if len(runs) > 1 else "wall clock"),
    ]


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _percent(value: float | None) -> str:
    return MISSING if value is None else share(value, 1)


def notes(runs: Sequence[RunShown], points: int) -> list[str]:
    """Return a sentence on what the charts merge, if anything."""
    longest = max((len(run.rollouts) for run in runs), default=0)
    if points >= longest:
        return []
    return [f"Curves show {points:,} means over stretches of the {longest:,} rollouts; other numbers are of all."]


def time_words(runs: Sequence[RunShown]) -> str:
    """Say where the wall-clock time went."""
    every = Stretch([one for run in runs for one in run.rollouts])
    if not every.seconds:
        return "No time was recorded."
    names = ("rollouts", "waiting for rewards", "training", "the rest")
    shares = ", ".join(
        f"{name} {value / every.seconds:.0%}" for name, value in zip(names, every.times.values(), strict=True)
    )
    rates = [
        f"{large(rate)} tokens a second {what}"
        for what, rate in (
            ("were drawn in rollouts", every.rate("rollout_tokens", "rollout_seconds")),
            ("went through the model in training", every.rate("train_tokens", "train_seconds")),
        )
        if rate is not None
    ]
    said = f"Of {duration(every.seconds)}: {shares}."
    return f"{said} {' and '.join(rates)}." if rates else said


def dead_words(runs: Sequence[RunShown]) -> str:
    """Say how many groups could teach nothing, and why."""
    every = Stretch([one for run in runs for one in run.rollouts])
    groups, dead, low = every.total("groups"), every.total("dead"), every.total("dead_low")
    if not groups:
        return "No group was played."
    if not dead:
        return f"The rewards of all {counted(groups, 'group')} differ, so that something can be learned from each."
    replaced = every.total("replaced")
    return (
        f"In {dead:,} of {counted(groups, 'group')} ({share(dead, groups)}) the rewards do not differ: nothing can be "
        f"learned from them. In {low:,} of them no attempt passed, in {dead - low:,} some or all did."
        + (
            f" {counted(replaced, 'group')} {'was' if replaced == 1 else 'were'} played to replace such groups."
            if replaced
            else ""
        )
    )


def fine(value: float | None) -> str:
    """Format a number of training, which may be tiny: 0.412, 2.1e-05."""
    value = finite(value)
    return f"{value:.1e}".replace("-", "−") if value and abs(value) < 0.001 else number(value)


def ends_table(run: RunShown) -> list[list[str]]:
    """Return what is known of the first and the last tenth of a run: rows of a name and two numbers."""
    both = ends(run.rollouts)
    rows = [
        ["mean reward in training", *(number(one.reward) for one in both)],
        ["pass rate in training", *(_percent(one.pass_rate) for one in both)],
        ["median length, tokens", *(length(one.quartile(2)) for one in both)],
        ["dead groups", *(_percent(one.dead) for one in both)],
        ["cut off attempts", *(_percent(one.truncated) for one in both)],
        ["entropy, nats", *(fine(one.mean("entropy")) for one in both)],
        ["KL to the reference, nats", *(fine(one.mean("kl")) for one in both)],
        ["KL of an update, nats", *(fine(one.mean("policy_kl")) for one in both)],
        ["clipped, ratio too small", *(_percent(one.mean("clipped_low")) for one in both)],
        ["clipped, ratio too large", *(_percent(one.mean("clipped_high")) for one in both)],
        ["gradient norm", *(fine(one.mean("grad_norm")) for one in both)],
        ["mismatch, nats", *(fine(one.mean("mismatch")) for one in both)],
    ]
    return [row for row in rows if row[1:] != [MISSING, MISSING]]
