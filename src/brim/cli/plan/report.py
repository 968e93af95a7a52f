"""`brim plan report`: a report about a plan, as one page or one picture."""

from pathlib import Path

import click

from brim.cli.output import check_output, force_option, marked
from brim.cli.show import counting_progress, json_option, show_facts, show_json, show_prose
from brim.core.errors import OptionError
from brim.core.options import check_counts

FORMATS = ("html", "png")
is_report = marked(b'<meta name="generator" content="brim ', b"Software\0brim")


@click.command()
@click.option("-p", "--plan", "path", required=True, metavar="DIR", help="Plan, or the share of a rank.")
@click.option(
    "-l", "--lengths", metavar="FILE", help="Length cache that the plan should belong to.  [default: the plan's own]"
)
@click.option("-o", "--output", metavar="FILE", help="Report to write.  [default: report.html or report.png]")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="Page or picture.  [default: from the name of the output]"
)
@click.option(
    "-w",
    "--world-size",
    "world_sizes",
    type=int,
    multiple=True,
    help="Number of ranks to show the plan for. Can be repeated.  [default: 1, 2, 4, 8]",
)
@force_option
@json_option
def report(
    path: str,
    lengths: str | None,
    output: str | None,
    kind: str | None,
    world_sizes: tuple[int, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Write a report about a plan: lengths, padding, shapes, order, ranks, and other ways of batching.

    The page is one file that works offline and can be kept with the run. The picture needs brim[plot].

    \b
    Examples:
      brim plan report -p plan/
      brim plan report -p plan/ -l lengths.brim -w 4 -w 6 -o report.html
      brim plan report -p plan/ --format png

    Exit status: 0 written, 2 the options are wrong, the lengths do not belong to the plan, or it is damaged.
    """
    for world_size in world_sizes:
        check_counts(world_size=world_size)
    target = _target(output, kind)
    check_output(target, force=force, what="a report about a plan", ours=is_report)
    from brim.analyze.plan_report.report import create_plan_report
    from brim.data.lengths import LengthCache
    from brim.plan.plan import BatchPlan

    with counting_progress("reading the plan") as progress:
        plan = BatchPlan.load(path, report=progress.searched)
        table = LengthCache.load(lengths) if lengths is not None else None
        made = create_plan_report(plan, world_sizes=world_sizes or None, lengths=table, name=path)
    made.save(target)
    if as_json:
        show_json({"written": str(target), **made.to_dict()})
        return
    facts = made.facts
    shown = {"written": str(target), "fill": f"{facts['fill']:.2%}", "microbatches in epoch 0": facts["microbatches"]}
    show_facts({**shown, "steps in epoch 0": facts["steps"], "shapes": facts["shapes"]})
    click.echo()
    show_prose(made.verdict, made.advice)


def _target(output: str | None, kind: str | None) -> Path:
    """Return the path of the report; a name and a format that contradict each other are an error."""
    if output is None:
        return Path(f"report.{kind or 'html'}")
    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise OptionError(f"cannot write {output}: a report ends in .html or .png")
    if kind is not None and kind != suffix:
        raise OptionError(
            f"--format {kind} cannot be written to {output}; name it {Path(output).with_suffix('.' + kind)}"
        )
    return Path(output)
