"""`brim demo`: the pipeline, end to end, on data that comes with brim."""

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from brim.analyze.plan_report.report import check_report, create_plan_report
from brim.analyze.strategies import compare_strategies
from brim.cli.show import measuring_progress, show_table
from brim.data.lengths import LengthCache
from brim.data.measure import build_lengths
from brim.data.synthetic import write_sample_data
from brim.plan.config import BatchingConfig
from brim.plan.packing import PackingConfig
from brim.plan.plan import BatchPlan
from brim.plan.verify import verify_plan

WORLD_SIZE = 8
TRAIN_BUDGET = 2048
RANDOM = 8


@click.command()
@click.option("-n", "--num-samples", "count", type=int, default=5000, show_default=True, help="How many samples.")
@click.option("-b", "--token-budget", "budget", type=int, default=16384, show_default=True, help="Tokens in a microbatch.")
@click.option("--steps", type=int, default=300, show_default=True, help="How many steps to train; 0 for none.")
@click.option("-o", "--output", metavar="DIR", help="Keep what it writes here.  [default: a temporary directory]")
@click.option(
    "--report", metavar="FILE", help="Where the report about the plan goes.  [default: brim-demo.html, or report.html in --output]"
)
@click.pass_context
def demo(ctx: click.Context, count: int, budget: int, steps: int, output: str | None, report: str | None) -> None:
    """Run the whole pipeline on bundled data: sample data, lengths, a plan, its shards, a model trained by it, and a report to look at.

    \b
    Examples:
      brim demo
      brim demo -n 50000 -o demo-output/

    Exit status: 0 every check held, 1 one did not, 2 the options are wrong.
    """
    if report:
        check_report(report)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(output or scratch)
        shown = folder if output else Path("DIR")
        held = _run(folder, shown, count, budget) and (not steps or _train(folder, shown, steps))
        _report(folder, shown, Path(report) if report else (folder / "report.html" if output else Path("brim-demo.html")))
    ctx.exit(0 if held else 1)


def _run(folder: Path, shown: Path, count: int, budget: int) -> bool:
    """`shown` is what the folder is called in what is printed."""
    click.echo(f"$ brim sample-data -n {count} -o {shown / 'train.jsonl'}")
    write_sample_data(folder / "train.jsonl", count)
    click.echo(f"$ brim lengths build -d {shown / 'train.jsonl'} -t byte -o {shown / 'lengths.brim'}")
    with measuring_progress(quiet=False) as progress:
        build_lengths(folder / "train.jsonl", folder / "lengths.brim", "byte", progress=progress)
    table = LengthCache.load(folder / "lengths.brim")
    tokens = int(table.lengths.sum(dtype="int64"))
    click.echo(f"  {len(table):,} samples, {tokens:,} tokens, the longest has {int(table.lengths.max()):,}")

    click.echo(f"$ brim plan build -l {shown / 'lengths.brim'} -b {budget} -e 2 --pack --overflow split -o {shown / 'plan'}")
    width = min(2048, budget)
    config = BatchingConfig(token_budget=budget, packing=PackingConfig(max_length=width, pad_to_max=False), overflow="split")
    BatchPlan.build(table, config, num_epochs=2).save(folder / "plan")
    plan = BatchPlan.load(folder / "plan")
    click.echo(f"  {plan}")

    click.echo(f"$ brim plan verify -p {shown / 'plan'} -l {shown / 'lengths.brim'}")
    whole = not verify_plan(plan, table)
    click.echo(f"  the plan {'belongs' if whole else 'DOES NOT BELONG'} to the lengths")

    once, equal = _deal(plan)
    click.echo(f"  on {WORLD_SIZE} ranks every sample is seen {'exactly once' if once else 'NOT EXACTLY ONCE'} in each epoch")
    click.echo(f"  and every rank takes {'equally many' if equal else 'NOT EQUALLY MANY'} microbatches")

    strategies = compare_strategies(table, budget)
    before = strategies[0].fill.slots
    click.echo(f"\nPadding before and after, {len(table):,} samples, budget {budget:,}:")
    show_table(
        ["batching", "padding", "slots paid for", "of before", "batches", "shapes"],
        [
            [one.name, f"{one.fill.waste:.1%}", one.fill.slots, f"{one.fill.slots / before:.0%}", one.batches, one.shapes]
            for one in strategies
        ],
    )
    return whole and once and equal


def _report(folder: Path, shown: Path, page: Path) -> None:
    click.echo(f"\n$ brim plan report -p {shown / 'plan'} -l {shown / 'lengths.brim'} -o {page}")
    create_plan_report(BatchPlan.load(folder / "plan"), lengths=LengthCache.load(folder / "lengths.brim")).save(page)
    click.echo(f"  to look at in a browser: {page.resolve()}")


def _train(folder: Path, shown: Path, steps: int) -> bool:
    """Train the built-in model on random batches and on packed ones. Whether the loss went down."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        click.echo("\nTraining is left out: it needs torch and transformers; run: pip install 'brim[train]'")
        return True
    from brim.cli.train.sft import training_progress
    from brim.train.config import SftConfig
    from brim.train.sft import SftResult, train_sft

    lengths = LengthCache.load(folder / "lengths.brim").lengths
    width, tokens = int(lengths.max()), int(lengths.sum(dtype="int64"))
    ways = {
        f"random batches of {RANDOM}": BatchingConfig(token_budget=RANDOM * width, max_sequences=RANDOM, window=RANDOM),
        f"packed into {TRAIN_BUDGET}": BatchingConfig(
            token_budget=TRAIN_BUDGET, packing=PackingConfig(max_length=TRAIN_BUDGET, pad_to_max=False), overflow="split"
        ),
    }
    options = f"-b {TRAIN_BUDGET} --pack --overflow split --max-steps {steps}"
    click.echo(f"\n$ brim train sft --model tiny --data {shown / 'train.jsonl'} {options}")
    results: dict[str, SftResult] = {}
    for (name, batching), many in zip(ways.items(), (max(steps // 10, 1), steps), strict=True):
        output = folder / name.replace(" ", "-")
        shutil.rmtree(output, ignore_errors=True)  # of an earlier demo
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
        with training_progress(quiet=False, every=max(steps // 5, 1)) as on_step:
            results[name] = train_sft(config, on_step=on_step)
    last = list(results.values())[-1]
    click.echo(f"  the loss went from {last.first_loss:.2f} to {last.last_loss:.2f} in {last.steps} steps")
    click.echo(f"  the model is in {shown / last.model.relative_to(folder)}")
    before = next(iter(results.values())).tokens_per_second
    click.echo("\nTraining before and after:")
    show_table(
        ["batching", "padding", "tokens/s without padding", "of before", "steps", "seconds"],
        [
            [
                name,
                f"{one.fill.waste:.1%}",
                round(one.tokens_per_second),
                f"{one.tokens_per_second / before:.1f}x",
                one.steps,
                round(one.seconds),
            ]
            for name, one in results.items()
        ],
    )
    return last.first_loss is not None and last.last_loss is not None and last.last_loss < last.first_loss


def _deal(plan: BatchPlan) -> tuple[bool, bool]:
    """Whether every sample is seen once in each epoch, and whether all ranks take equally many microbatches."""
    once = equal = True
    for epoch in range(plan.num_epochs):
        views = [plan.shard(rank, WORLD_SIZE).get_epoch(epoch) for rank in range(WORLD_SIZE)]
        taken = sorted((int(row), int(start)) for view in views for one in view for row, start in zip(one.indices, one.starts, strict=True))
        once &= len(taken) == len(set(taken)) and {row for row, _ in taken} == set(range(plan.counts.samples))
        equal &= len({len(view) for view in views}) == 1
    return once, equal
