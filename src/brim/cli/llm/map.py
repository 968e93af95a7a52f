"""`brim llm map`: ask a model about every row of a file."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.llm.flags import check_cache, server_flags, template_flags
from brim.cli.show import json_option
from brim.core.options import to_dict

if TYPE_CHECKING:
    from brim.llm.answers.ask import Outcome
    from brim.llm.answers.journal import AnswerJournal
    from brim.llm.answers.rows import Input, Row
    from brim.llm.answers.template import Prompts
    from brim.llm.answers.write import Lines
    from brim.llm.call import Call, Sampling

MAY_CHANGE = ("response_field", "details", "order")
"""Options that only concern the output: a run that was interrupted can be resumed with others."""


@click.command("map")
@click.option(
    "-i", "--input", "data", required=True, metavar="PATH", help="JSONL, Parquet, or a Hugging Face data set on disk."
)
@click.option("-o", "--output", required=True, metavar="FILE", help="JSONL to write: each row with its answer.")
@click.option("-m", "--model", required=True, help="Name of the model.")
@server_flags
@template_flags
@click.option(
    "--prompt-field", metavar="FIELD", help="Field of the prompt.  [default: messages, prompt or text, as found]"
)
@click.option("--system", metavar="TEXT", help="System message before every prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Upper limit of the tokens of an answer.")
@click.option("--temperature", type=float, help="Sampling temperature.  [default: the server's]")
@click.option("--top-p", type=float, help="Probability mass that is sampled from.  [default: the server's]")
@click.option("--seed", type=int, help="Seed of the sampling, on the server.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends an answer. Can be repeated.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Number of answers to each row."
)
@click.option(
    "--order",
    type=click.Choice(["input", "ready"]),
    default="input",
    show_default=True,
    help="Order of the output. ready appends answers as they come.",
)
@click.option("--response-field", default="response", show_default=True, metavar="FIELD", help="Field for the answer.")
@click.option("--details", is_flag=True, help="Add model, tokens, latency, server and attempts to every answer.")
@click.option(
    "--force", is_flag=True, help="Replace an output that brim did not write, or that was made with other options."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def map_rows(ctx: click.Context, **options: Any) -> None:
    """Ask a model about every row of a file.

    The prompt of a row is made by a template, or is its field messages, prompt or text. Answers are stored as they
    come: a run that was killed asks for what is missing when it is started again, and for nothing else. Rows that
    failed are written to answers.failed.jsonl with the reason, and are asked again by the next start.

    \b
    Examples:
      brim llm map -i prompts.jsonl -o answers.jsonl --model llama3.2
      brim llm map -i qa.parquet -o answers.jsonl -m llama3.2 \\
        --template "In one word: {question}"
      brim llm map -i rows.jsonl -o answers.jsonl -m qwen3 \\
        --server http://a:80 --server http://b:80
      brim llm map -i prompts.jsonl -o samples.jsonl -m qwen3 \\
        --samples 8 --temperature 1 --seed 7

    Exit status: 0 everything is answered, 1 some rows failed, 2 the options, the data or the servers are wrong,
    130 interrupted.
    """
    check_cache(options)
    from brim.cli.llm.answering import (
        ask,
        check_files,
        check_servers,
        finish,
        open_pool,
        read_template,
        resumed,
        show,
    )
    from brim.llm.answers.ask import ask_missing, servers_lost
    from brim.llm.answers.journal import has_journal
    from brim.llm.answers.record import finished
    from brim.llm.answers.rows import read_input
    from brim.llm.answers.template import Prompts
    from brim.llm.answers.write import Lines, count_tokens, write_answers
    from brim.llm.call import Call, Sampling

    prompts = Prompts(template=read_template(options), field=options["prompt_field"], system=options["system"])
    lines = Lines(response_field=options["response_field"], details=options["details"], samples=options["samples"])
    sampling = Sampling(**{name: options[name] for name in ("max_tokens", "temperature", "top_p", "seed", "stop")})
    output = check_files(options["data"], options["output"], force=options["force"], suffixes=(".jsonl",))
    rows = read_input(options["data"], check=prompts.check, reserved=lines.added)
    asked = _identity(rows, prompts, sampling, options)
    if not has_journal(output) and (record := finished(output, asked, force=options["force"])):
        click.echo(f"nothing is missing in {output}; remove it to ask again", err=True)
        show({**record, "written": str(output), "failed_rows": None}, None, as_json=options["as_json"])
        return

    def question(row: "Row", sample: int) -> "Call":
        return Call(
            model=options["model"],
            messages=prompts.messages(row),
            sampling=sampling.numbered(sample),
            sample=sample,
        )

    with resumed(
        output, rows, asked, samples=options["samples"], force=options["force"], may_change=MAY_CHANGE
    ) as journal:
        with open_pool(options) as pool:
            if options["cache_mode"] != "replay" and journal.answered < journal.questions:
                check_servers(pool, options["model"])
            with _each(output, rows, journal, lines, options) as each:
                lost = servers_lost(pool.stats, options["attempts"])
                outcomes = ask_missing(rows, journal, pool.as_ready, question, lost=lost)
                tally = ask(outcomes, journal, pool.stats, quiet=options["quiet"], each=each)
            stats = pool.stats()
        if options["order"] == "ready":
            totals = count_tokens(journal)
        else:
            journal.note_writing(True)
            totals = write_answers(output, rows, journal, lines, order="input")
        facts = finish(output, rows, journal, asked, tally, stats, totals)
    show(facts, stats, as_json=options["as_json"])
    ctx.exit(1 if facts["failed"] else 0)


@contextmanager
def _each(
    output: Path, rows: "Input", journal: "AnswerJournal", lines: "Lines", options: dict[str, Any]
) -> "Generator[Callable[[Outcome], None], None, None]":
    """Yield what is done with every outcome: it is appended to the output, if that is in the order of arrival."""
    from brim.llm.answers.write import following

    if options["order"] == "input":
        yield lambda outcome: None
        return
    journal.note_writing(True)
    with following(output, rows, journal, lines) as append:
        yield append


def _identity(rows: "Input", prompts: "Prompts", sampling: "Sampling", options: dict[str, Any]) -> dict[str, Any]:
    """Return everything that decides the output, by the names of the options."""
    return {
        "input": rows.fingerprint,
        "model": options["model"],
        "template": prompts.template and prompts.template.text,
        "prompt_field": prompts.field,
        "system": prompts.system,
        **to_dict(sampling),
        **{name: options[name] for name in ("samples", *MAY_CHANGE)},
    }
