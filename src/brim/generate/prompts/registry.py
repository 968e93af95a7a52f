"""Data sets of prompts by name, and seeded draws from them.

A data set is a function from a split to examples. Modules of the built-in ones are imported when they are built.

Example:
    >>> from brim.generate.prompts.example import Example
    >>> DATASET_REGISTRY["mine"] = lambda split="train": [Example("1 + 1 = 2", "1 + 1 =", "2")]
    >>> build_dataset("mine")[0].question
    '1 + 1 ='
    >>> del DATASET_REGISTRY["mine"]
"""

import os
import secrets
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.options import check_counts
from brim.core.rng import below, permutation, raw_bits
from brim.generate.prompts.example import Example

PREFIXES = ("reasoning-gym:", "reasoning-gym/")
ARC = "arc:"
SUFFIX = ".jsonl"


class Builder(Protocol):
    """A function that returns the examples of a split."""

    def __call__(self, split: str = "train") -> Sequence[Example]: ...


@dataclass(frozen=True)
class BuiltIn:
    """A builder whose module is imported when it is called."""

    module: str
    function: str

    def __call__(self, split: str = "train") -> Sequence[Example]:
        return getattr(import_module(f"brim.generate.prompts.{self.module}"), self.function)(split)


DATASET_REGISTRY: MutableMapping[str, Builder] = {
    "arc": BuiltIn("arc.build", "build"),
    "arithmetic": BuiltIn("arithmetic", "build"),
    "arithmetic_r1_template": BuiltIn("arithmetic", "build_tagged"),
    "gsm8k_r1_template": BuiltIn("gsm8k", "build"),
}
"""The builder of each data set. Assign to a name to add your own."""


def build_dataset(name: str | os.PathLike[str], split: str = "train") -> list[Example]:
    """Return all examples of a data set.

    `name` is one in `DATASET_REGISTRY`, or `reasoning-gym:TASK`, or `arc:DATA,OPTION=VALUE,...`, or the path of a JSONL
    file.

    Raises:
        OptionError: There is no such data set or split.
        DataError: Its file is not readable, or its builder did not return examples with prompts.
        MissingExtraError: It needs a package that is not installed.
    """
    examples = _built(name, split)
    return _checked(name, range(len(examples)), examples)


def sample_examples(
    name: str | os.PathLike[str],
    split: str = "train",
    num_prompts: int | None = None,
    seed: int | None = None,
    *,
    replace: bool = False,
) -> list[Example]:
    """Draw examples of a data set at random, or return all of them in their order if `num_prompts` is None.

    The draw is a function of the seed and of the number of examples in the split; without a seed it is new each time.
    The first k examples do not depend on `num_prompts`. With `replace`, an example can be drawn repeatedly.

    Raises:
        OptionError: There is no such data set or split, an option is out of range, or more examples are asked for than
            there are.
        DataError: As for `build_dataset`.
        MissingExtraError: As for `build_dataset`.
    """
    check_counts(num_prompts=num_prompts)
    if seed is not None and (type(seed) is not int or seed < 0):
        raise OptionError(f"seed must be an integer that is not negative, got {seed!r}")
    if num_prompts is None:
        if replace:
            raise OptionError("replace=True needs num_prompts, got None: draws with replacement have no natural end")
        return build_dataset(name, split)
    examples = _built(name, split)
    if num_prompts > len(examples) and not replace:
        raise OptionError(
            f"{num_prompts} prompts were asked for, but split {split!r} of {os.fspath(name)} has {len(examples)}; ask "
            "for fewer, or draw with replacement: replace=True (--replace on the command line)"
        )
    if seed is None:
        seed = secrets.randbits(63)
    if replace:
        words = raw_bits(num_prompts, seed=seed, purpose="generate/prompts with replacement")
        chosen: list[int] = below(words, len(examples)).tolist()
    else:
        chosen = permutation(len(examples), seed=seed, purpose="generate/prompts")[:num_prompts].tolist()
    return _checked(name, chosen, examples)


def _built(name: str | os.PathLike[str], split: str) -> Sequence[Example]:
    """Build a data set that is not empty."""
    examples: Any = _find(name)(split)
    if isinstance(examples, str) or not isinstance(examples, Sequence):
        raise DataError(
            f"the builder of {os.fspath(name)} returned {_described(examples)}; it must return a sequence of Example"
        )
    if not examples:
        raise DataError(f"split {split!r} of {os.fspath(name)} has no examples")
    found = cast(Sequence[Example], examples)
    if isinstance(found, list | tuple):
        # A mistake must not show only for the seeds that draw it. Items that are generated when read are checked then.
        _checked(name, range(len(found)), found)
    return found


def _find(name: str | os.PathLike[str]) -> Builder:
    text = str(os.fspath(name))
    if text in DATASET_REGISTRY:
        return DATASET_REGISTRY[text]
    for prefix in PREFIXES:
        if text.startswith(prefix):
            from brim.generate.prompts import reasoning

            return lambda split="train": reasoning.build(text.removeprefix(prefix), split)
    if text.startswith(ARC):
        from brim.generate.prompts.arc import build as arc

        return lambda split="train": arc.build(split, text)
    if text.endswith(SUFFIX):
        from brim.generate.prompts import files

        return lambda split="train": files.build(text, split)
    known = sorted(DATASET_REGISTRY)
    raise OptionError(
        f"unknown data set {text!r}; it must be one of {', '.join(known)}, or {PREFIXES[0]}TASK, or {ARC}DATA, or the "
        f"path of a {SUFFIX} file.{did_you_mean(text, [*known, PREFIXES[0] + 'chain_sum', ARC + 'arcagi'])}"
    )


def _checked(name: str | os.PathLike[str], chosen: Iterable[int], examples: Sequence[Any]) -> list[Example]:
    """Return the chosen examples after checking them."""
    found: list[Example] = []
    for index in chosen:
        example = examples[index]
        if not isinstance(example, Example):
            raise DataError(
                f"item {index} of {os.fspath(name)} is {_described(example)}; a builder must return a sequence of "
                "Example"
            )
        if not isinstance(cast(object, example.question), str) or not example.question.strip():
            raise DataError(f"item {index} of {os.fspath(name)} has no prompt: its question is {example.question!r}")
        found.append(example)
    return found


def _described(value: object) -> str:
    if value is None:
        return "None"
    return f"a {type(value).__name__}, {' '.join(repr(value).split())[:60]}"
