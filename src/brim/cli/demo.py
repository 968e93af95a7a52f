"""`brim demo`: the pipeline, end to end, on data that comes with brim."""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.output import check_output, force_option
from brim.cli.plan.report import is_report
from brim.cli.sample_data import is_sample_data
from brim.cli.show import measuring_progress, show_table
from brim.core.options import check_counts
from brim.plan.config import BatchingConfig, PackingConfig

if TYPE_CHECKING:
    from brim.plan.plan import BatchPlan

WORLD_SIZE = 8
TRAIN_BUDGET = 2048
RANDOM = 8
RANDOM_SHARE = 0.4
"""Share of the training time for the run on random batches, with which packed batches are compared."""
ENOUGH = 10
"""Steps after which the loss must be lower than at first: fewer can differ by the samples alone."""
SECONDS_BETWEEN_LINES = 3.0


@click.command()
@click.option("-n", "--num-samples", "count", type=int, default=5000, show_default=True, help="How many samples.")
@click.option(
    "-b", "--token-budget", "budget", type=int, default=16384, show_default=True, help="Tokens in a microbatch."
)
@click.option(
    "--steps", type=click.IntRange(min=0), default=300, show_default=True, help="Training steps; 0 leaves training out."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=40,
    show_default=True,
    help="Upper limit of the training time. Training that takes longer stops with a checkpoint.",
)
@click.option("-o", "--output", metavar="DIR", help="Keep what it writes here.  [default: a temporary directory]")
@click.option(
    "--report",
    metavar="FILE",
    help="Where the report about the plan goes.  [default: brim-demo.html, or report.html in --output]",
)
@force_option
@click.pass_context
def demo(
    ctx: click.Context,
    count: int,
    budget: int,
    steps: int,
    seconds: float,
    output: str | None,
    report: str | None,
    force: bool,
) -> None:
    """Run the whole pipeline on bundled data, in about a minute.

    Writes sample data, measures it, plans its batches, checks the plan, deals it to eight ranks, trains a small model
    by it, and writes a report to look at in a browser.

    \b
    Examples:
      brim demo
      brim demo -n 50000 -o demo-output/

    Exit status: 0 every check held, 1 one did not, 2 the options are wrong.
    """
    check_counts(num_samples=count, token_budget=budget)
    from brim.analyze.plan_report.report import check_report

    page = Path(report or ("brim-demo.html" if output is None else Path(output, "report.html")))
    check_report(page)
    check_output(page, force=force, what="a report about a plan", ours=is_report)
    if output is not None:
        check_output(Path(output, "train.jsonl"), force=force, what="sample data", ours=is_sample_data)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(output or scratch)
        shown = folder if output else Path("DIR")
        held = _run(folder, shown, count, budget) and (not steps or _train(folder, shown, steps, seconds))
        _report(folder, shown, page)
    ctx.exit(0 if held else 1)


def _run(folder: Path, shown: Path, count: int, budget: int) -> bool:
    """Make data, lengths and a plan. Return whether the checks of the plan held.

    The folder is printed as `shown`.
    """
    from brim.analyze.strategies import compare_strategies
    from brim.data.lengths import LengthCache
    from brim.data.measure import build_lengths
    from brim.data.synthetic import write_sample_data
    from brim.plan.plan import BatchPlan
    from brim.plan.verify import verify_plan

    click.echo(f"$ brim sample-data -n {count} -o {shown / 'train.jsonl'}")
    write_sample_data(folder / "train.jsonl", count)
    click.echo(f"$ brim lengths build -d {shown / 'train.jsonl'} -t byte -o {shown / 'lengths.brim'}")
    with measuring_progress(quiet=False) as progress:
        build_lengths(folder / "train.jsonl", folder / "lengths.brim", "byte", progress=progress)
    table = LengthCache.load(folder / "lengths.brim")
    tokens = int(table.lengths.sum(dtype="int64"))
    click.echo(f"  {len(table):,} samples, {tokens:,} tokens, the longest has {int(table.lengths.max()):,}")

    options = f"-b {budget} -e 2 --pack --overflow split"
    click.echo(f"$ brim plan build -l {shown / 'lengths.brim'} {options} \\\n    -o {shown / 'plan'}")
    width = min(2048, budget)
    config = BatchingConfig(
        token_budget=budget, packing=PackingConfig(max_length=width, pad_to_max=False), overflow="split"
    )
    BatchPlan.build(table, config, num_epochs=2).save(folder / "plan")
    plan = BatchPlan.load(folder / "plan")
    click.echo(f"  {plan}")

    click.echo(f"$ brim plan verify -p {shown / 'plan'} -l {shown / 'lengths.brim'}")
    whole = not verify_plan(plan, table)
    click.echo(f"  the plan {'belongs' if whole else 'DOES NOT BELONG'} to the lengths")

    once, equal = _deal(plan)
    click.echo(
        f"  on {WORLD_SIZE} ranks every sample is seen {'exactly once' if once else 'NOT EXACTLY ONCE'} in each epoch"
    )
    click.echo(f"  and every rank takes {'equally many' if equal else 'NOT EQUALLY MANY'} microbatches")

    strategies = compare_strategies(table, budget)
    before = strategies[0].fill.slots
    click.echo(f"\nPadding before and after, {len(table):,} samples, budget {budget:,}:")
    show_table(
        ["batching", "padding", "slots paid for", "of before", "batches", "shapes"],
        [
            [
                one.name,
                f"{one.fill.waste:.1%}",
                one.fill.slots,
                f"{one.fill.slots / before:.0%}",
                one.batches,
                one.shapes,
            ]
            for one in strategies
        ],
    )
    return whole and once and equal


def _report(folder: Path, shown: Path, page: Path) -> None:
    from brim.analyze.plan_report.report import create_plan_report
    from brim.data.lengths import LengthCache
    from brim.plan.plan import BatchPlan

    click.echo(f"\n$ brim plan report -p {shown / 'plan'} -l {shown / 'lengths.brim'} -o {page}")
    create_plan_report(BatchPlan.load(folder / "plan"), lengths=LengthCache.load(folder / "lengths.brim")).save(page)
    click.echo(f"  to look at in a browser: {page.resolve()}")


def _train(folder: Path, shown: Path, steps: int, seconds: float) -> bool:
    """Train the built-in model on random batches and on packed ones. Return False if the loss did not go down."""
    from brim.data.lengths import LengthCache

    if find_spec("torch") is None or find_spec("transformers") is None:
        click.echo("\nTraining is left out: it needs torch and transformers; run: pip install 'brim[train]'")
        return True
    click.echo(f"\nTraining takes at most {seconds:.0f} seconds. Loading torch.")
    from brim.cli.train.progress import training_progress
    from brim.train.config import SftConfig
    from brim.train.sft import SftResult, train_sft

    lengths = LengthCache.load(folder / "lengths.brim").lengths
    width = int(lengths.max())
    tokens = int(lengths.sum(dtype="int64"))
    random = BatchingConfig(token_budget=RANDOM * width, max_sequences=RANDOM, window=RANDOM)
    packing = PackingConfig(max_length=TRAIN_BUDGET, pad_to_max=False)
    packed = BatchingConfig(token_budget=TRAIN_BUDGET, packing=packing, overflow="split")
    ways = [
        (f"random batches of {RANDOM}", random, max(steps // 10, 1), seconds * RANDOM_SHARE),
        (f"packed into {TRAIN_BUDGET}", packed, steps, seconds * (1 - RANDOM_SHARE)),
    ]
    results: dict[str, SftResult] = {}
    for name, batching, many, limit in ways:
        output = folder / name.replace(" ", "-")
        shutil.rmtree(output, ignore_errors=True)  # left by an earlier demo
        config = SftConfig(
            model="tiny",
            data=str(folder / "train.jsonl"),
            output=str(output),
            batching=batching,
            max_steps=many,
            epochs=1 + many * batching.token_budget // tokens,
            save_every=None,
            tensorboard=False,
        )
        if batching is packed:
            options = f"-b {TRAIN_BUDGET} --pack --overflow split --max-steps {steps}"
            click.echo(f"$ brim train sft --model tiny --data {shown / 'train.jsonl'} \\\n    {options}")
        click.echo(f"  {name}: tokenizing, then up to {many} steps or {limit:.0f} seconds")
        with training_progress(quiet=False, every=1) as show:
            results[name] = train_sft(config, on_step=_within(limit, show))
    return _compare(results, folder, shown)


def _within(seconds: float, show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a callback that shows a step every `SECONDS_BETWEEN_LINES`, and stops the run after `seconds`.

    The run is stopped by SIGTERM, as the scheduler of a cluster would stop it: it ends after its next step, with a
    checkpoint.
    """
    began = time.monotonic()
    shown = 0.0
    stopping = False

    def on_step(report: Any) -> None:
        nonlocal shown, stopping
        now = time.monotonic()
        if now - shown >= SECONDS_BETWEEN_LINES or report.step == report.steps:
            show(report)
            shown = now
        if now - began > seconds and not stopping and report.step < report.steps - 1:
            stopping = True
            signal.raise_signal(signal.SIGTERM)

    return on_step


def _compare(results: dict[str, Any], folder: Path, shown: Path) -> bool:
    """Print a comparison of the runs. Return False if the loss of the last one did not go down in `ENOUGH` steps."""
    first, *_, last = results.values()
    place = shown / last.model.relative_to(folder)
    click.echo(f"  the loss went from {last.first_loss:.2f} to {last.last_loss:.2f} in {last.taken} steps")
    if last.stopped:
        click.echo(f"  the time was up after {last.taken} of {last.steps} steps; the checkpoint is in\n  {place}")
    else:
        click.echo(f"  the model is in {place}")
    click.echo("\nTraining before and after:")
    show_table(
        ["batching", "padding", "tokens/s", "of before", "steps", "seconds"],
        [
            [
                name,
                f"{one.fill.waste:.1%}",
                round(one.tokens_per_second),
                f"{one.tokens_per_second / first.tokens_per_second:.1f}x",
                one.taken,
                round(one.seconds),
            ]
            for name, one in results.items()
        ],
    )
    click.echo("tokens/s counts tokens without padding")
    return last.taken < ENOUGH or last.last_loss < last.first_loss


def _deal(plan: "BatchPlan") -> tuple[bool, bool]:
    """Return whether every sample is seen once in each epoch, and whether all ranks take equally many microbatches."""
    once = equal = True
    for epoch in range(plan.num_epochs):
        views = [plan.shard(rank, WORLD_SIZE).get_epoch(epoch) for rank in range(WORLD_SIZE)]
        taken = sorted(
            (int(row), int(start))
            for view in views
            for one in view
            for row, start in zip(one.indices, one.starts, strict=True)
        )
        once &= len(taken) == len(set(taken)) and {row for row, _ in taken} == set(range(plan.counts.samples))
        equal &= len({len(view) for view in views}) == 1
    return once, equal
