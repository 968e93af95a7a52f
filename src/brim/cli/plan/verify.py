"""`brim plan verify`: check that a plan belongs to lengths and options."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from brim.cli.batching import check_given, differences, overlaid_values
from brim.cli.options import planning_options
from brim.cli.show import counting_progress, json_option, show_json
from brim.core.errors import DamagedError, OptionError
from brim.plan.config import BatchingConfig

if TYPE_CHECKING:
    from brim.core.progress import Progress
    from brim.data.lengths import LengthCache
    from brim.plan.plan import BatchPlan
    from brim.plan.verify import Difference


@click.command()
@click.option("--plan", "path", "-p", required=True, metavar="DIR", help="Plan to verify.")
@click.option(
    "-l",
    "--lengths",
    metavar="FILE",
    help="Length cache that the plan should belong to.  [default: only check the files]",
)
@planning_options()
@json_option
@click.pass_context
def verify(ctx: click.Context, path: str, lengths: str | None, as_json: bool, **options: Any) -> None:
    """Check that a plan belongs to lengths and options, and list every difference.

    Files are checked against their checksums, and the epochs are planned again and compared. Only options that are
    given on the command line are compared.

    \b
    Examples:
      brim plan verify -p plan/ -l lengths.jsonl
      brim plan verify -p plan/ -l lengths.jsonl -b 16384 --seed 7

    Exit status: 0 it belongs to them, 1 it does not, 2 the options are wrong.
    """
    given = {name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    check_given(options, given)
    from brim.data.lengths import LengthCache
    from brim.plan.plan import BatchPlan
    from brim.plan.verify import Difference

    table = LengthCache.load(lengths) if lengths is not None else None
    try:
        plan = BatchPlan.load(path)
        with counting_progress("planning the epochs again") as progress:
            found = _differences(plan, table, overlaid_values(plan.config, options, given), progress.searched)
        name = plan.fingerprint
    except DamagedError as error:
        found, name = [Difference("damaged", str(error))], None
    if as_json:
        show_json(
            {
                "ok": not found,
                "plan": str(Path(path)),
                "fingerprint": name,
                "differences": [asdict(one) for one in found],
            }
        )
    elif found:
        click.echo(f"{path} does not match:")
        for difference in found:
            click.echo(f"  {difference.message}")
    else:
        against = f" and belongs to {lengths}" if lengths is not None else ""
        click.echo(f"{path} is whole{against} ({name})")
    ctx.exit(1 if found else 0)


def _differences(
    plan: "BatchPlan", table: "LengthCache | None", values: dict[str, Any], searched: "Progress"
) -> "list[Difference]":
    """Return how a plan differs from lengths and options; these are compared one by one.

    `searched` is called while patterns for packed rows are searched.
    """
    from brim.plan.verify import Difference, verify_plan

    try:
        expected = BatchingConfig.from_dict(values)
    except OptionError:  # what was given cannot go together with the plan's other options, so it is not the plan's
        expected = None
    found = [one for one in verify_plan(plan, table, expected, report=searched) if one.kind != "config"]
    return [*found, *(Difference("config", f"other {words}") for words in differences(plan.config.to_dict(), values))]
