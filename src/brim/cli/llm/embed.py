"""`brim llm embed`: the vector of every row of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from brim.cli.llm.flags import check_cache, server_flags, template_flags
from brim.cli.show import json_option

if TYPE_CHECKING:
    from brim.llm.answers.rows import Input, Row
    from brim.llm.answers.template import Prompts

SERVER_ONLY = (
    "servers",
    "protocol",
    "key_env",
    "limit",
    "max_limit",
    "rpm",
    "tpm",
    "timeout",
    "attempts",
    "patience",
    "hedge",
    "cache",
    "cache_mode",
    "trace",
    "batch",
)


@click.command("embed")
@click.option(
    "-i", "--input", "data", required=True, metavar="PATH", help="JSONL, Parquet, or a Hugging Face data set on disk."
)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="NPY (float32, a row for each) or Parquet (id, vector) to write.",
)
@click.option(
    "-m", "--model", required=True, help="Model of the server; or, without --server, hash or a model directory."
)
@server_flags
@click.option("--batch", type=click.IntRange(min=1), help="Upper limit of the texts in one request.  [default: 64]")
@click.option("--device", help="Device of a model directory, such as cpu or cuda.")
@template_flags
@click.option("--text-field", metavar="FIELD", help="Field of the text.  [default: text or prompt, as found]")
@click.option("--id-field", metavar="FIELD", help="Field of the ids in Parquet.  [default: id, or row numbers]")
@click.option(
    "--allow-missing", is_flag=True, help="Write the output although rows failed: NaN in NPY, null in Parquet."
)
@click.option(
    "--force", is_flag=True, help="Replace an output that brim did not write, or that was made with other options."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def embed(ctx: click.Context, **options: Any) -> None:
    """Compute the vector of every row of a file.

    Vectors are stored as they come: a run that was killed asks for what is missing when it is started again. Unless
    --allow-missing is given, the output is written only when every row has its vector. Rows that failed are written to
    vectors.npy.failed.jsonl with the reason, and are asked again by the next start.

    \b
    Examples:
      brim llm embed -i texts.jsonl -o vectors.npy --model nomic-embed-text
      brim llm embed -i texts.jsonl -o vectors.parquet \\
        --model all-MiniLM-L6-v2/ --device cpu
      brim llm embed -i texts.jsonl -o vectors.npy --model hash

    Exit status: 0 every row has its vector, 1 some rows failed, 2 the options, the data or the servers are wrong,
    130 interrupted.
    """
    here = not options["servers"] and (_is_built_in(options["model"]) or Path(options["model"]).is_dir())
    _refuse_useless(ctx, options, here=here)
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
    from brim.llm.answers.template import TEXT_FIELDS, Prompts
    from brim.llm.answers.vectors import Judge, embed_missing, stored_dim, write_vectors
    from brim.llm.answers.write import Totals

    prompts = Prompts(
        template=read_template(options), field=options["text_field"], usual=TEXT_FIELDS, option="--text-field"
    )
    output = check_files(options["data"], options["output"], force=options["force"], suffixes=(".npy", ".parquet"))
    rows = read_input(options["data"], check=prompts.check_text)
    embedder = _embedder(options) if here else None
    model = options["model"] if embedder is None else embedder.name
    asked = _identity(rows, prompts, model, options)
    if not has_journal(output) and (record := finished(output, asked, force=options["force"])):
        click.echo(f"nothing is missing in {output}; remove it to compute it again", err=True)
        show({**record, "written": str(output), "failed_rows": None}, None, as_json=options["as_json"])
        return

    def question(row: "Row", sample: int) -> str:
        return prompts.text(row)

    with resumed(output, rows, asked, samples=1, force=options["force"], may_change=("id_field",)) as journal:
        stats = None
        if embedder is not None:
            tally = ask(embed_missing(rows, journal, prompts, embedder), journal, None, quiet=options["quiet"])
        else:
            with open_pool(options) as pool:
                if options["cache_mode"] != "replay" and journal.answered < journal.questions:
                    check_servers(pool, model)
                lost = servers_lost(pool.stats, options["attempts"])
                judge = Judge(stored_dim(journal))
                outcomes = ask_missing(rows, journal, pool.embed_as_ready, question, judge=judge, lost=lost)
                tally = ask(outcomes, journal, pool.stats, quiet=options["quiet"])
                stats = pool.stats()
        totals = None
        if journal.answered and (not journal.failed or options["allow_missing"]):
            journal.note_writing(True)
            write_vectors(output, rows, journal, id_field=options["id_field"])
            totals = Totals(answered=journal.answered)
        facts = finish(output, rows, journal, asked, tally, stats, totals)
    show(facts, stats, as_json=options["as_json"])
    ctx.exit(1 if facts["failed"] else 0)


def _is_built_in(model: str) -> bool:
    return model == "hash" or model.startswith("hash-")


def _refuse_useless(ctx: click.Context, options: dict[str, Any], *, here: bool) -> None:
    given = {name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    useless = sorted(given & set(SERVER_ONLY if here else ("device",)))
    if useless:
        where = "in this process" if here else "on a server"
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect on a model that runs {where}")
    if options["id_field"] is not None and not options["output"].lower().endswith(".parquet"):
        raise click.UsageError("--id-field has no effect on NPY, which holds no ids; write Parquet")


def _embedder(options: dict[str, Any]) -> Any:
    from brim.llm.embed.open import open_embedder

    return open_embedder(options["model"], device=options["device"])


def _identity(rows: "Input", prompts: "Prompts", model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return everything that decides the output, by the names of the options."""
    return {
        "input": rows.fingerprint,
        "model": model,
        "template": prompts.template and prompts.template.text,
        "text_field": prompts.field,
        "id_field": options["id_field"],
    }
