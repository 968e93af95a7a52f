"""`brim sample-data`: a sample data set."""

import re
from pathlib import Path

import click
from click.core import ParameterSource

from brim.cli.output import check_output, force_option
from brim.core.options import check_counts

ROW = re.compile(rb'\{"id":"[a-z]+-(\d{7,})","prompt":".*","response":".*","answer":".*","task":"[a-z]+"\}\n')


@click.command("sample-data")
@click.option("-n", "--num-samples", "count", type=int, default=2000, show_default=True, help="Number of rows.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The JSONL file to write.")
@click.option("-s", "--seed", type=int, default=0, show_default=True, help="Seed of the rows.")
@click.option(
    "--dataset",
    metavar="NAME",
    help="Write the worked solutions of a data set of prompts instead, such as arithmetic.",
)
@force_option
@click.pass_context
def sample_data(ctx: click.Context, count: int, output: str, seed: int, dataset: str | None, force: bool) -> None:
    """Write a sample data set.

    Instruction and response pairs with checkable answers and a long tail of lengths. The bytes are the same on every
    machine. An existing file is replaced only if this command wrote it.

    With --dataset, the rows are the prompts of that data set with their solutions, for a model to learn from before it
    is trained on the same prompts by `brim train grpo`.

    \b
    Examples:
      brim sample-data -n 2000 -o train.jsonl
      brim sample-data --dataset arithmetic -o worked.jsonl

    Exit status: 0 written, 2 the options are wrong.
    """
    if dataset is not None:
        for name in ("count", "seed"):
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise click.UsageError("--dataset writes all prompts in their order; leave out -n and -s")
        return _write_solutions(dataset, output, force=force)
    check_counts(num_samples=count)
    check_output(output, force=force, what="sample data", ours=is_sample_data)
    from brim.data.synthetic import write_sample_data

    write_sample_data(output, count, seed=seed)
    click.echo(f"{count:,} rows written to {output}", err=True)


def _write_solutions(dataset: str, output: str, *, force: bool) -> None:
    """Write the training prompts of a data set with their solutions, as rows of {id, text}."""
    import orjson

    from brim.core.atomic import atomic_file
    from brim.generate.prompts.registry import build_dataset

    rows: list[bytes] = []
    for example in build_dataset(dataset):
        if example.text == example.question:
            raise click.UsageError(f"the prompts of {dataset} have no worked solutions")
        text = example.text if example.text.endswith(example.stop) else example.text + "".join(example.stop[:1])
        rows.append(orjson.dumps({"id": example.id, "text": text}, option=orjson.OPT_APPEND_NEWLINE))
    content = b"".join(rows)
    check_output(output, force=force, what="these solutions", ours=lambda path: path.read_bytes() == content)
    with atomic_file(output) as file:
        file.write(content)
    click.echo(f"{len(rows):,} rows written to {output}", err=True)


def is_sample_data(path: Path) -> bool:
    """Return whether every line of the file is a row of this command: one line of the user's own must not be lost."""
    with open(path, "rb") as file:
        rows = (ROW.fullmatch(line) for line in file)
        return all(row is not None and int(row[1]) == number for number, row in enumerate(rows))
