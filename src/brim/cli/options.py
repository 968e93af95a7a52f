"""Flags that several commands share: those that describe the rows of a data set, and those that decide a plan.

`brim.cli.batching` turns the latter into the options of a plan. Those that can be useless, or exclude each other, have
no default here, so that it is known which were given.
"""

from collections.abc import Callable
from typing import Any

import click

from brim.core.errors import OptionError
from brim.plan.config import WINDOW_PADDING, PackingMode

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def flags(*options: Decorator) -> Decorator:
    """Add flags to a command, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def names_callback(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read a comma-separated list of names."""
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


ROWS = ("shape", "text_field", "prompt_field", "response_field", "id_field", "group_field")
"""Names of the flags that describe a row."""

row_flags = flags(
    click.option(
        "--shape",
        default="auto",
        show_default=True,
        help="Shape of the rows, if they could have several: tokens, messages, prompt, instruction or text.",
    ),
    click.option("--text-field", help="Field that holds the text."),
    click.option("--prompt-field", help="Field that holds the prompt."),
    click.option("--response-field", help="Field that holds the response."),
    click.option("--id-field", help="Field that holds the id.  [default: id or sample_id, else the row number]"),
)
group_flag = click.option("--group-field", help="Rows that differ in this field never share a microbatch.")

attention_option = click.option(
    "--attention",
    type=click.Choice(["auto", "brim", "sdpa", "eager", "flex_attention", "flash_attention_2"]),
    default="auto",
    show_default=True,
    help="Attention implementation of the model.",
)


def edges_option(help: str) -> Decorator:
    """Return the flag for bucket edges, with the help of a command: each uses the edges slightly differently."""
    return click.option("--bucket-edges", callback=_edges, metavar="N,N,...", help=help)


def _edges(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read numbers such as 128,256,512."""
    if value is None:
        return None
    try:
        return tuple(int(edge) for edge in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 128,256,512", ctx, param) from None


_OPTIONS = (
    click.option(
        "-b",
        "--token-budget",
        type=int,
        default=4096,
        show_default=True,
        help="Upper limit of the tokens in a microbatch, padding included.",
    ),
    edges_option("Widths at which length buckets end.  [default: no buckets, sorted windows]"),
    click.option("--num-buckets", type=int, help="Number of buckets, at the edges with the least padding."),
    click.option("--overflow-max", type=int, help="Longest sample that is kept whole.  [default: the token budget]"),
    click.option(
        "--overflow",
        type=click.Choice(["error", "skip", "truncate", "split"]),
        default="error",
        show_default=True,
        help="What to do with samples that are longer.",
    ),
    click.option("--pack", is_flag=True, help="Pack several samples into each row."),
    click.option(
        "--pack-max-len", type=int, help="Tokens in a packed row.  [default: 2048, or the token budget if that is less]"
    ),
    click.option(
        "--pack-mode",
        type=click.Choice([str(mode) for mode in PackingMode]),
        help="Packing algorithm. optimal: nearly the fewest rows, by a search; auto: best_fit, and the search where "
        "that may save more than 0.5% of the rows.  [default: auto]",
    ),
    click.option(
        "--pack-time-limit",
        type=float,
        help="Upper limit of the search's work, in seconds of a typical core.  [default: 10]",
    ),
    click.option("--pack-max-sequences", type=int, help="Upper limit of the samples in a packed row."),
    click.option(
        "--pad-to-multiple", type=int, default=1, show_default=True, help="Round widths up to a multiple of this."
    ),
    click.option("--max-sequences", type=int, help="Upper limit of the rows in a microbatch."),
    click.option(
        "--window",
        type=int,
        help="Upper limit of the rows that are sorted together.  [default: see --window-padding]",
    ),
    click.option(
        "--window-padding",
        type=float,
        help="Padding that sorted windows may have, as a share. Larger: samples share microbatches with other samples "
        f"in each epoch.  [default: {WINDOW_PADDING}]",
    ),
    click.option(
        "--shuffle/--no-shuffle",
        default=True,
        show_default=True,
        help="Shuffle the samples, or keep the order of the data.",
    ),
    click.option("--drop-last", is_flag=True, help="Drop microbatches that stay short."),
    click.option(
        "--microbatches-per-step",
        type=int,
        help="Microbatches in an optimizer step, over all ranks. If given, steps are whole where there are enough rows "
        "(not with --drop-last), and their microbatches cost nearly the same (not with --no-shuffle).  [default: one "
        "for each rank]",
    ),
    click.option(
        "--cost",
        metavar="COSTS",
        help="Cost model that balances steps: the costs of a token and of a squared length (1,8e-5), or the "
        "directory of a model.  [default: a model of width 1024]",
    ),
    click.option(
        "--measured",
        "measured",
        multiple=True,
        metavar="FILE",
        help="Cost model from measurements: give two files of brim bench batch-size, made with different --length.",
    ),
    click.option(
        "--remainder",
        type=click.Choice(["null", "drop", "repeat"]),
        default="null",
        show_default=True,
        help="What to do when the last step is short: add empty microbatches, drop it, or repeat some.",
    ),
    click.option("-s", "--seed", type=int, default=42, show_default=True, help="Seed of the order."),
)


def planning_options(predictable: tuple[str, ...] = ("--predictable",)) -> Decorator:
    """Add the flags that decide a plan.

    `predictable` has the names of the flag --predictable: some commands use its short form -p for the plan.
    """
    help = "Pad to the width of a bucket, for few distinct shapes.  [chooses 8 buckets unless they are given]"
    return flags(*_OPTIONS, click.option(*predictable, is_flag=True, help=help))


def check_rank(rank: int | None, world_size: int | None) -> None:
    """Refuse ranks that cannot be, before a plan is read.

    Raises:
        OptionError: There is no such rank.
    """
    if world_size is not None and world_size < 1:
        raise OptionError(f"world_size must be at least 1, got {world_size}")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise OptionError(f"rank must lie between 0 and {world_size - 1}, got {rank}")
