"""The runs that a page is about, and what several of them have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from brim.train.grpo.report import Evaluation, RolloutReport

OWN = ("seed", "output")
"""Options in which runs may differ that are averaged: they repeat the same experiment."""


@dataclass(frozen=True)
class RunShown:
    """One run, as far as it has come."""

    name: str
    rollouts: Sequence[RolloutReport]
    before: Evaluation | None
    """The evaluation before the first step."""
    options: Mapping[str, Any]
    """Shown as they are: they must not contain secrets. A mapping among the values becomes a section of its own."""
    is_over: bool

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.rollouts[-1].step if self.rollouts else 0

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run; 0 if that is not known yet."""
        return self.rollouts[-1].steps if self.rollouts else 0

    @property
    def evaluations(self) -> list["Evaluated"]:
        """All evaluations, the one before the first step included."""
        found = [Evaluated(0, self.before)] if self.before is not None else []
        return found + [Evaluated(one.step, one.evaluation) for one in self.rollouts if one.evaluation is not None]


@dataclass(frozen=True)
class Evaluated:
    """An evaluation, and the optimizer steps that its weights had seen."""

    step: int
    evaluation: Evaluation


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` positions out of `count`, evenly apart, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // (most - 1) for at in range(most)] if most > 1 else [count - 1]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without the directory that all of them are in; numbered where they are still equal."""
    split = [name.split("/") for name in names]
    deepest = min((len(parts) for parts in split), default=1) - 1
    shared = next((at for at in range(deepest) if len({parts[at] for parts in split}) > 1), deepest)
    shorter = ["/".join(parts[shared:]) or name for name, parts in zip(names, split, strict=True)]
    if len(names) == 1:
        return list(names)
    return [f"{name} ({at + 1})" if shorter.count(name) > 1 else name for at, name in enumerate(shorter)]


def are_alike(runs: Sequence[RunShown]) -> bool:
    """Say whether runs differ in nothing but their seed and their output, so that a mean over them has a meaning."""
    return not differences(runs)


def differences(runs: Sequence[RunShown]) -> dict[str, list[Any]]:
    """Return the options that differ between runs, with dotted names, and the value of each run."""
    flat = [_flat(run.options, "") for run in runs]
    names = dict.fromkeys(name for options in flat for name in options)
    values = {name: [options.get(name) for options in flat] for name in names}
    return {
        name: found
        for name, found in values.items()
        if name.split(".")[-1] not in OWN and any(value != found[0] for value in found)
    }


def _flat(options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(cast(Mapping[str, Any], value), f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
