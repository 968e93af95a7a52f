"""The options that several commands have in common, as flags: above all those that decide a plan."""

from collections.abc import Callable
from typing import Any

import click

from brim.plan.config import BatchingConfig, PadPolicy
from brim.plan.packing import PackingConfig, PackingMode

attention_option = click.option(
    "--attention",
    type=click.Choice(["auto", "brim", "sdpa", "eager", "flex_attention", "flash_attention_2"]),
    default="auto",
    show_default=True,
    help="How the model attends.",
)


def edges_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--bucket-edges", callback=_edges, metavar="N,N,...", help=help)


def _edges(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """ "128,256,512" as numbers."""
    if value is None:
        return None
    try:
        return tuple(int(edge) for edge in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 128,256,512", ctx, param) from None


_OPTIONS = (
    click.option("-b", "--token-budget", type=int, default=4096, show_default=True, help="Tokens in a microbatch, padding included."),
    edges_option("Where length buckets end.  [default: no buckets, sorted windows]"),
    click.option("--num-buckets", type=int, help="Choose this many buckets so that padding wastes least."),
    click.option("--overflow-max", type=int, help="The longest sample.  [default: the token budget]"),
    click.option(
        "--overflow",
        type=click.Choice(["error", "skip", "truncate", "split"]),
        default="error",
        show_default=True,
        help="What to do with longer ones.",
    ),
    click.option("--pack", is_flag=True, help="Pack samples into rows first."),
    click.option("--pack-max-len", type=int, help="Tokens in a packed row.  [default: 2048, or the token budget if that is less]"),
    click.option(
        "--pack-mode",
        type=click.Choice([str(mode) for mode in PackingMode]),
        default="best_fit",
        show_default=True,
        help="How rows are packed.",
    ),
    click.option("--pack-max-sequences", type=int, help="At most so many samples in a packed row."),
    click.option("--pad-to-multiple", type=int, default=1, show_default=True, help="Round widths up to a multiple of this."),
    click.option("--max-sequences", type=int, help="At most so many rows in a microbatch."),
    click.option("--window", type=int, help="Rows sorted together.  [default: 8192, or half of them if they are fewer]"),
    click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Or keep the order of the data."),
    click.option("--drop-last", is_flag=True, help="Leave out microbatches that stay short."),
    click.option("--microbatches-per-step", type=int, help="In an optimizer step, over all ranks.  [default: one for each rank]"),
    click.option(
        "--remainder",
        type=click.Choice(["null", "drop", "repeat"]),
        default="null",
        show_default=True,
        help="When the last step is short: empty microbatches, drop it, or repeat some.",
    ),
    click.option("-s", "--seed", type=int, default=42, show_default=True, help="Another seed, another order."),
)
_SAME_NAME = (
    "token_budget",
    "overflow_max",
    "overflow",
    "pad_to_multiple",
    "max_sequences",
    "window",
    "shuffle",
    "drop_last",
    "microbatches_per_step",
    "remainder",
    "seed",
)


PLANNING = frozenset({*_SAME_NAME, "bucket_edges", "num_buckets", "pack", "pack_max_len", "pack_mode", "pack_max_sequences", "predictable"})
"""The names of the flags."""


def planning_options(predictable: tuple[str, ...] = ("--predictable",)) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags to a command, in the order of the list above. `predictable` are the names of that flag: -p is taken elsewhere."""
    help = "Pad to the bucket: few distinct shapes.  [8 buckets are chosen unless given]"
    options = (*_OPTIONS, click.option(*predictable, is_flag=True, help=help))

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def config_from(options: dict[str, Any]) -> BatchingConfig:
    """The config that the flags say."""
    pack_only = [name for name in ("pack_max_len", "pack_max_sequences") if options[name] is not None]
    if pack_only and not options["pack"]:
        raise click.UsageError(f"--{pack_only[0].replace('_', '-')} needs --pack")
    values = {name: options[name] for name in _SAME_NAME}
    edges, num_buckets = options["bucket_edges"], options["num_buckets"]
    if options["predictable"] and edges is None and num_buckets is None and not options["pack"]:
        num_buckets = 8
    return BatchingConfig(
        **values,
        bucket_edges=edges,
        num_buckets=num_buckets,
        pad_policy=PadPolicy.PAD_TO_BUCKET if options["predictable"] and not options["pack"] else PadPolicy.PAD_TO_MAX,
        packing=_packing(options) if options["pack"] else None,
    )


def _packing(options: dict[str, Any]) -> PackingConfig:
    return PackingConfig(
        max_length=options["pack_max_len"] or min(2048, options["token_budget"]),
        mode=PackingMode(options["pack_mode"]),
        max_sequences=options["pack_max_sequences"],
        pad_to_max=options["predictable"],
    )


def overlaid(config: BatchingConfig, options: dict[str, Any], given: set[str]) -> BatchingConfig:
    """A config with those flags of `options` that were given on the command line."""
    asked, values = config_from(options).to_dict(), config.to_dict()
    touched = given & values.keys()
    if "predictable" in given:
        touched |= {"pad_policy", "num_buckets", "bucket_edges"}
    if any(name.startswith("pack") for name in given):
        touched |= {"packing"}
    return BatchingConfig.from_dict({**values, **{name: asked[name] for name in touched}})
