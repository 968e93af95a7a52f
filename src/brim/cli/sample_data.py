"""`brim sample-data`: a data set to try things on."""

import click

from brim.data.synthetic import write_sample_data


@click.command("sample-data")
@click.option("-n", "--num-samples", "count", type=int, default=2000, show_default=True, help="How many rows.")
@click.option("-o", "--output", required=True, metavar="FILE", help="A JSONL file.")
@click.option("-s", "--seed", type=int, default=0, show_default=True, help="Another seed, other rows.")
def sample_data(count: int, output: str, seed: int) -> None:
    """Write a data set to try things on.

    Instruction and response pairs with checkable answers and a long tail of lengths. The same bytes on every machine.

    \b
    Examples:
      brim sample-data -n 2000 -o train.jsonl

    Exit status: 0 written, 2 the options are wrong.
    """
    write_sample_data(output, count, seed=seed)
    click.echo(f"{count:,} rows written to {output}", err=True)
