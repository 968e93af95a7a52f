"""Warnings of the page: signs that a run does not learn, learns something else than was meant, or is broken.

Nothing is said where there is nothing to say.
"""

from collections.abc import Callable, Sequence

from brim.analyze.page.forms import counted, named, number, share
from brim.train.grpo.page.runs import RunShown
from brim.train.grpo.page.stretch import Stretch, ends
from brim.train.grpo.page.words import fine

NAMED_FAILURES = 4
MANY_DEAD, MORE_DEAD = 0.5, 0.15
"""Share of dead groups at the end that is remarked on, if it has grown by at least the second number."""
MANY_TRUNCATED = 0.2
COLLAPSED = 0.1
"""Share of its first value below which the entropy is said to have collapsed."""
LARGE_MISMATCH = 0.02
"""Nats."""
LARGE_KL = 0.5
"""Nats for a token: so far from the reference, little may be left of what the model could do before."""
LARGE_POLICY_KL = 0.1
"""Nats for a token: so much in one rollout is more than clipped updates are made for."""


def remarks(runs: Sequence[RunShown]) -> list[str]:
    """Return the warnings: what failed in all runs together, then the rest.

    Of several runs, each has its warnings in one paragraph behind its name.
    """
    found = [_failures(runs), _evaluation_failures(runs)]
    for run in runs:
        said = [text for check in CHECKS if run.rollouts and (text := check(run))]
        found += [f"{run.name}: {' '.join(said)}"] if said and len(runs) > 1 else said
    return [text for text in found if text]


def _failures(runs: Sequence[RunShown]) -> str:
    every = Stretch([one for run in runs for one in run.rollouts])
    failures, attempts = every.counts("failures"), every.total("attempts")
    if not failures:
        return ""
    count = sum(failures.values())
    return (
        f"{counted(count, 'attempt')} of {attempts:,} ({share(count, attempts)}) "
        f"{'has' if count == 1 else 'have'} no reward and {'was' if count == 1 else 'were'} not trained on: "
        f"{_listed(failures)}."
    )


def _listed(failures: dict[str, int]) -> str:
    names = list(failures)[:NAMED_FAILURES]
    more = len(failures) - len(names)
    listed = [f"{named(name)} {failures[name]:,}" for name in names]
    return ", ".join(listed + ([f"and {counted(more, 'other kind')}"] if more else []))


def _evaluation_failures(runs: Sequence[RunShown]) -> str:
    every = [one.evaluation for run in runs for one in run.evaluations]
    count = sum(sum(one.failures.values()) for one in every)
    if not count:
        return ""
    attempts = sum(one.attempts for one in every)
    return f"{count:,} of {counted(attempts, 'attempt')} in evaluations have no reward and count in no mean."


def _dead(run: RunShown) -> str:
    first, last = ends(run.rollouts)
    before, after = first.dead, last.dead
    if before is None or after is None or after < MANY_DEAD or after < before + MORE_DEAD:
        return ""
    low = (last.dead_low or 0.0) / after
    why = "in some all attempts fail, in others all pass"
    if low > 0.8:
        why = "in most of them no attempt passes, so the tasks are too hard for the model, or the reward is wrong"
    elif low < 0.2:
        why = "in most of them all attempts pass, so the tasks have become too easy"
    return (
        f"Dead groups grew from {share(before, 1)} in the first tenth of the rollouts to {share(after, 1)} in the "
        f"last: {why}. Nothing is learned from them."
    )


def _no_steps(run: RunShown) -> str:
    count = sum(one.loss is None for one in run.rollouts)
    if not count:
        return ""
    return f"On {counted(count, 'rollout')} of {len(run.rollouts):,} no step was taken: no group had anything to learn."


def _truncated(run: RunShown) -> str:
    last = ends(run.rollouts)[1]
    cut = last.truncated or 0.0
    if cut < MANY_TRUNCATED:
        return ""
    trained = "not trained on" if last.total("masked") else "trained on as they are"
    return (
        f"{share(cut, 1)} of the attempts in the last tenth of the rollouts were cut off, and {trained}; allow more "
        "tokens."
    )


def _entropy(run: RunShown) -> str:
    known = [one.entropy for one in run.rollouts if one.entropy is not None]
    last = ends(run.rollouts)[1].mean("entropy")
    if not known or last is None or not known[0] > 0 or last >= COLLAPSED * known[0]:
        return ""
    return (
        f"The entropy fell to {fine(last)} nats, {share(last, known[0])} of what it began with ({fine(known[0])}): the "
        "model hardly explores any more."
    )


def _mismatch(run: RunShown) -> str:
    high = [one.mismatch for one in run.rollouts if one.mismatch is not None and one.mismatch > LARGE_MISMATCH]
    if not high:
        return ""
    return (
        f"Log-probabilities from drawing and from training differ by more than {LARGE_MISMATCH:g} nats a token in "
        f"{counted(len(high), 'rollout')} (up to {number(max(high))}): the two compute something different."
    )


def _kl(run: RunShown) -> str:
    last = ends(run.rollouts)[1].mean("kl")
    if last is None or last < LARGE_KL:
        return ""
    return (
        f"The KL divergence to the reference is {number(last)} nats a token at the end: the model is far from where it "
        "began."
    )


def _policy_kl(run: RunShown) -> str:
    high = [one.policy_kl for one in run.rollouts if one.policy_kl is not None and one.policy_kl > LARGE_POLICY_KL]
    if not high:
        return ""
    return (
        f"In {counted(len(high), 'rollout')} the steps moved the policy by more than {LARGE_POLICY_KL:g} nats a token "
        f"(up to {number(max(high))}): they may be too large."
    )


CHECKS: tuple[Callable[[RunShown], str], ...] = (
    _dead,
    _no_steps,
    _truncated,
    _entropy,
    _mismatch,
    _kl,
    _policy_kl,
)
