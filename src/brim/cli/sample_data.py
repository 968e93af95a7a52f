"""`brim sample-data`: a sample data set."""

import re
from pathlib import Path

import click

from brim.cli.output import check_output, force_option
from brim.data.synthetic import write_sample_data

ROW = re.compile(rb'\{"id":"[a-z]+-(\d{7,})","prompt":".*","response":".*","answer":".*","task":"[a-z]+"\}\n')


@click.command("sample-data")
@click.option("-n", "--num-samples", "count", type=int, default=2000, show_default=True, help="Number of rows.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The JSONL file to write.")
@click.option("-s", "--seed", type=int, default=0, show_default=True, help="Seed of the rows.")
@force_option
def sample_data(count: int, output: str, seed: int, force: bool) -> None:
    """Write a sample data set.

    Instruction and response pairs with checkable answers and a long tail of lengths. The bytes are the same on every
    machine. An existing file is replaced only if this command wrote it.

    \b
    Examples:
      brim sample-data -n 2000 -o train.jsonl

    Exit status: 0 written, 2 the options are wrong.
    """
    check_output(output, force=force, what="sample data", ours=is_sample_data)
    write_sample_data(output, count, seed=seed)
    click.echo(f"{count:,} rows written to {output}", err=True)


def is_sample_data(path: Path) -> bool:
    """Return whether every line of the file is a row of this command: one line of the user's own must not be lost."""
    with open(path, "rb") as file:
        rows = (ROW.fullmatch(line) for line in file)
        return all(row is not None and int(row[1]) == number for number, row in enumerate(rows))
