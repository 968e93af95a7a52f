"""The options of a plan that flags describe; `brim.cli.options` declares the flags.

A new plan takes the default of every flag that was not given (`config_from`). A plan or a run that exists keeps its own
options, and only what was given takes their place (`overlaid`): a default of today must not be compared with a plan
that another one was the default of.

Flags that have no effect beside others are refused for a new plan only: an old one may have been made with them.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from brim.core.errors import DataError, OptionError
from brim.core.options import LONGEST, check_counts
from brim.plan.config import WINDOW_PADDING, BatchingConfig, PackingConfig, PackingMode, PadPolicy
from brim.plan.cost import CostModel

SAME_NAME = (
    "token_budget",
    "bucket_edges",
    "num_buckets",
    "overflow_max",
    "overflow",
    "pad_to_multiple",
    "max_sequences",
    "window",
    "window_padding",
    "shuffle",
    "drop_last",
    "microbatches_per_step",
    "remainder",
    "seed",
)
"""Flags that are called as the option of a plan that they set."""

PACKING = {
    "pack_max_len": "max_length",
    "pack_mode": "mode",
    "pack_max_sequences": "max_sequences",
    "pack_time_limit": "time_limit",
}
"""Flags of packing, and the options of `PackingConfig` that they set."""

PLANNING = frozenset({*SAME_NAME, *PACKING, "pack", "predictable", "cost", "measured"})
"""Names of the flags that decide a plan."""

BUCKETS = 8
"""Number of buckets that --predictable chooses by itself."""

CAPACITY = 2048
"""Tokens in a packed row, unless given."""


def config_from(options: Mapping[str, Any]) -> BatchingConfig:
    """Return the options of a new plan.

    Raises:
        OptionError: A value is out of range, or an option has no effect beside the others.
    """
    _check(options)
    _refuse_useless(options)
    values = {name: options[name] for name in SAME_NAME}
    if values["window_padding"] is None:
        values["window_padding"] = WINDOW_PADDING
    padded = options["predictable"] and not options["pack"]
    if padded and options["bucket_edges"] is None and options["num_buckets"] is None:
        values["num_buckets"] = BUCKETS
    return BatchingConfig(
        **values,
        pad_policy=PadPolicy.PAD_TO_BUCKET if padded else PadPolicy.PAD_TO_MAX,
        packing=_packing(options) if options["pack"] else None,
        cost=_cost(options["cost"], options["measured"]),
    )


def check_given(options: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse given options that no plan can have, whatever its other options are, before a plan is read.

    Raises:
        OptionError: A value is out of range, or two of them cannot go together.
    """
    overlaid(BatchingConfig(token_budget=LONGEST), options, given)


def overlaid(config: BatchingConfig, options: Mapping[str, Any], given: Collection[str]) -> BatchingConfig:
    """Return `config` with those of the `options` that were given on the command line.

    Raises:
        OptionError: A value is out of range, or it cannot go together with an option of `config`.
    """
    return BatchingConfig.from_dict(overlaid_values(config, options, given))


def overlaid_values(config: BatchingConfig, options: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return the values of `config` with those of the `options` that were given; they may not go together.

    Of two options that exclude each other, the one that was given takes the place of the other.
    """
    _check(options)
    values = config.to_dict()
    if "window" in given:
        values["window_padding"] = WINDOW_PADDING
    if "window_padding" in given:
        values["window"] = None
    if bucketed := {"bucket_edges", "num_buckets"} & set(given):
        values |= {"bucket_edges": None, "num_buckets": None, "packing": None}
    if options["pack"] and not bucketed:
        values |= {"bucket_edges": None, "num_buckets": None, "pad_policy": PadPolicy.PAD_TO_MAX}
    values |= {name: options[name] for name in SAME_NAME if name in given}
    if options["pack"]:
        values["packing"] = _overlaid_packing(config, options, values["token_budget"])
    if options["predictable"]:
        values |= _predictable(values)
    if {"cost", "measured"} & set(given):
        cost = _cost(options["cost"], options["measured"])
        values["cost"] = None if cost is None else asdict(cost)
    return values


def _overlaid_packing(config: BatchingConfig, options: Mapping[str, Any], budget: int) -> dict[str, Any]:
    if config.packing is None:
        return asdict(_packing({**options, "token_budget": budget}))
    chosen = {name: options[flag] for flag, name in PACKING.items() if options[flag] is not None}
    return {**asdict(config.packing), **chosen}


def _predictable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that --predictable sets beside these."""
    if values["packing"] is not None:
        return {"packing": {**values["packing"], "pad_to_max": True}}
    bucketed = values["bucket_edges"] is not None or values["num_buckets"] is not None
    return {"pad_policy": PadPolicy.PAD_TO_BUCKET, **({} if bucketed else {"num_buckets": BUCKETS})}


def _packing(options: Mapping[str, Any]) -> PackingConfig:
    """Return the options of packing for a plan that was not packed before."""
    given = {name: options[flag] for flag, name in PACKING.items() if options[flag] is not None}
    chosen: dict[str, Any] = {"max_length": min(CAPACITY, options["token_budget"]), "mode": PackingMode.AUTO, **given}
    return PackingConfig(**chosen, pad_to_max=options["predictable"])


def _check(options: Mapping[str, Any]) -> None:
    """Refuse values that are out of range, and flags that need or exclude each other."""
    packing = [name for name in PACKING if options[name] is not None]
    if packing and not options["pack"]:
        raise OptionError(f"{_flag(packing[0])} needs --pack")
    for name in ("pack_max_len", "pack_max_sequences"):
        check_counts(**{_flag(name): options[name]})
    check_counts(token_budget=options["token_budget"])
    seconds = options["pack_time_limit"]
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise OptionError(f"--pack-time-limit must be at least 0 and finite, got {seconds:g}")
    if seconds is not None and options["pack_mode"] not in (None, "optimal", "auto"):
        raise OptionError("--pack-time-limit needs --pack-mode optimal or auto; the others do not search")
    if options["window"] is not None and options["window_padding"] is not None:
        raise OptionError(
            f"give --window or --window-padding, not both: got {options['window']} and {options['window_padding']:g}"
        )
    if options["cost"] is not None and options["measured"]:
        raise OptionError("give --cost or --measured, not both")


def _refuse_useless(options: Mapping[str, Any]) -> None:
    """Refuse flags that would change nothing."""
    if not options["shuffle"]:
        for name in ("window", "window_padding", "cost", "measured"):
            if options[name] not in (None, ()):
                raise OptionError(f"{_flag(name)} has no effect with --no-shuffle, which keeps the order of the data")
    if options["predictable"]:
        for name in ("window", "window_padding"):
            if options[name] is not None:
                what = "all rows" if options["pack"] else "all rows of a bucket"
                raise OptionError(f"{_flag(name)} has no effect with --predictable: {what} have one width")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _cost(cost: str | None, measured: tuple[str, ...]) -> CostModel | None:
    """Return the cost model of two numbers, of a model, or of two measurements."""
    if measured:
        from brim.analyze.capacity.costs import measured_costs

        return measured_costs(measured)
    if cost is None:
        return None
    if not cost.strip():
        raise OptionError("--cost is empty; give two numbers such as 1,8e-5, or the directory of a model")
    numbers = _numbers(cost)
    if numbers is None and not os.path.exists(cost):
        raise OptionError(
            f"--cost {cost}: neither two numbers such as 1,8e-5 nor the directory of a model (there is no {cost})"
        )
    try:
        if numbers is None:
            return CostModel.of_model(cost)
        return CostModel(per_token=numbers[0], per_square=numbers[1])
    except (OptionError, DataError) as error:
        raise type(error)(f"--cost: {error}") from None


def _numbers(text: str) -> tuple[float, float] | None:
    """Read two numbers such as 1,8e-5; None if the text is something else."""
    try:
        first, second = (float(number) for number in text.split(","))
    except ValueError:
        return None
    return first, second


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return how the options of two plans differ, in words; those of packing and of the cost one by one.

    Example:
        >>> differences(BatchingConfig().to_dict(), BatchingConfig(window=500, seed=7).to_dict())
        ['window (default -> 500)', 'seed (42 -> 7)']
    """
    found: list[str] = []
    for name in old:
        before, after = option_facts(name, old[name]), option_facts(name, new[name])
        if name == "packing" and not (before and after):  # the options of one side are no news
            capacity = "packing max length"
            before, after = ({"packing": f"rows of {facts[capacity]}"} if facts else {} for facts in (before, after))
        missing = "none" if name == "packing" else "default"
        found += [
            f"{fact} ({before.get(fact, missing)} -> {after.get(fact, missing)})"
            for fact in {**before, **after}
            if before.get(fact) != after.get(fact)
        ]
    return found


def option_facts(name: str, value: Any) -> dict[str, Any]:
    """Return an option of a plan as facts for people: several for packing and for the cost, none if these are None."""
    if name not in ("packing", "cost"):
        return {name.replace("_", " "): _shown(value)}
    if value is None:
        return {}
    words = {"per_square": "per squared length"}
    return {f"{name} {words.get(key, key.replace('_', ' '))}": _shown(one) for key, one in value.items()}


def _shown(value: Any) -> Any:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return ",".join(str(one) for one in value) if isinstance(value, tuple) else value
