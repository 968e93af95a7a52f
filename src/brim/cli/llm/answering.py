"""The common part of `brim llm map` and `brim llm embed`: checks before the start, and the run."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brim.cli.llm.flags import named_servers
from brim.cli.llm.progress import Tally, asking
from brim.cli.output import check_output
from brim.cli.show import show_facts, show_json
from brim.core.errors import OptionError
from brim.llm.answers.ask import Outcome
from brim.llm.answers.journal import AnswerJournal, has_journal
from brim.llm.answers.models import check_model
from brim.llm.answers.record import RUN, failed_path, file_digest, record_path, wrote
from brim.llm.answers.rows import Input, same_file
from brim.llm.answers.template import Template
from brim.llm.answers.write import Totals, is_failed_file, write_failed
from brim.llm.call import Reply
from brim.llm.config import PoolConfig
from brim.llm.failures import Failure

AS_WRITTEN = "an output of this command as it was written"


def read_template(options: dict[str, Any]) -> Template | None:
    """Return the template of --template or --template-file."""
    text, file = options["template"], options["template_file"]
    if text is not None and file is not None:
        raise click.UsageError("--template and --template-file exclude each other")
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
            raise OptionError(f"cannot read the template {file}: {reason}") from None
    return None if text is None else Template(text)


def check_files(data: str, output: str, *, force: bool, suffixes: tuple[str, ...]) -> Path:
    """Check that writing the output and the files beside it destroys nothing of the user's.

    Raises:
        OptionError: Something else is at one of these places, or the output is the input.
    """
    target = Path(output)
    if target.suffix.lower() not in suffixes:
        raise OptionError(f"the name of the output must end in {' or '.join(suffixes)}, got {output}")
    if same_file(Path(data), target):
        raise OptionError(f"{output} is the input; choose another output")
    # If an earlier run left a journal, that tells more about the output: `resumed` checks it again.
    check_output(target, force=force, what=AS_WRITTEN, ours=lambda path: has_journal(path) or wrote(path))
    check_output(failed_path(target), force=force, what="a list of failed rows", ours=is_failed_file)
    check_output(record_path(target), force=force, what="the record of a run", ours=_is_record)
    return target


def _is_record(path: Path) -> bool:
    return RUN.format.split("/")[0].encode() in path.read_bytes()[:200]


def open_pool(options: dict[str, Any]) -> Any:
    """Return an `LLMPool` with these options."""
    from brim.llm.pool import LLMPool

    bounds = {name: options[name] for name in ("limit", "max_limit", "rpm", "tpm")}
    servers = [
        replace(server, **bounds)
        for server in named_servers(options["servers"], options["protocol"], options["key_env"])
    ]
    batch = {"embed_batch": options["batch"]} if options.get("batch") is not None else {}
    config = PoolConfig(**{name: options[name] for name in ("timeout", "attempts", "patience", "hedge")}, **batch)
    return LLMPool(
        servers,
        model=options["model"],
        config=config,
        cache=options["cache"],
        cache_mode=options["cache_mode"] or "write",
        trace=options["trace"],
    )


def check_servers(pool: Any, model: str) -> None:
    """Check that a server answers and has the model, and print which ones do not answer."""
    for failure in check_model(pool.models(), model):
        click.echo(f"a server does not answer, the others are used: {failure}", err=True)


@contextmanager
def resumed(
    output: Path, rows: Input, options: dict[str, Any], *, samples: int, force: bool, may_change: tuple[str, ...] = ()
) -> Generator[AnswerJournal, None, None]:
    """Open the journal of an output with what an earlier run answered. It is removed when everything is answered.

    Raises:
        MismatchError: The earlier run had other options.
        OptionError: The output is not the one that the earlier run wrote.
    """
    journal = AnswerJournal(output, rows=rows.rows, samples=samples)
    try:
        if answered := journal.recover(options, may_change=may_change, force=force):
            click.echo(f"resuming: {answered} of {journal.questions} are answered already", err=True)
        if journal.discarded:
            click.echo(f"{journal.path} ended in a damaged record: discarded {journal.discarded} bytes", err=True)
        check_output(output, force=force, what=AS_WRITTEN, ours=lambda path: journal.writing or wrote(path))
        yield journal
    except BaseException:  # Ctrl-C too: what was answered is kept
        journal.close(keep=True)
        raise
    journal.close(keep=journal.answered < journal.questions)


def ask(
    outcomes: Iterable[Outcome],
    journal: AnswerJournal,
    stats: Callable[[], Any] | None,
    *,
    quiet: bool,
    each: Callable[[Outcome], None] = lambda outcome: None,
) -> Tally:
    """Ask for what is missing, with progress. `each` is called with every outcome.

    `stats` returns the `PoolStats` of the moment; None if there is no pool.

    Raises:
        Failure: The servers are lost. The message says what is kept.
        KeyboardInterrupt: After a message about what is kept.
    """
    tally = Tally(total=journal.questions, before=journal.answered)
    try:
        with asking(tally, stats, quiet=quiet):
            for outcome in outcomes:
                if isinstance(outcome.result, Reply):
                    tally.answered += 1
                    tally.tokens += outcome.result.completion_tokens or outcome.result.prompt_tokens or 0
                else:
                    tally.failed += 1
                each(outcome)
    except Failure as failure:
        raise type(failure)(f"{failure}; {_kept(journal)}") from None
    except KeyboardInterrupt:
        click.echo(_kept(journal), err=True)
        raise
    return tally


def finish(
    output: Path,
    rows: Input,
    journal: AnswerJournal,
    asked: dict[str, Any],
    tally: Tally,
    stats: Any,
    totals: Totals | None,
) -> dict[str, Any]:
    """Write the failed rows and the record of the run, and return the facts of the run.

    `totals` is None if the output was not written, because rows failed; then there is no record either.
    """
    failed = write_failed(output, rows, journal)
    counts = {
        "rows": rows.rows,
        "answered": journal.answered,
        "failed": journal.failed,
        "prompt_tokens": totals.prompt_tokens if totals else 0,
        "completion_tokens": totals.completion_tokens if totals else 0,
    }
    if totals is not None:
        record = {
            "output": {"name": output.name, "bytes": output.stat().st_size, "digest": file_digest(output)},
            "options": asked,
            "servers": [] if stats is None else [server.name for server in stats.servers],
            **counts,
            "seconds": round(tally.seconds, 3),
        }
        RUN.write(record_path(output), record)
        journal.note_writing(False)
    return {
        "written": None if totals is None else str(output),
        "failed_rows": None if failed is None else str(failed),
        **counts,
        "answered_before": tally.before,
        "seconds": round(tally.seconds, 3),
        "pool": None if stats is None else stats.to_dict(),
    }


def show(facts: dict[str, Any], stats: Any, *, as_json: bool) -> None:
    """Print the facts of a run; with `as_json` all of them."""
    if as_json:
        show_json(facts)
        return
    lines = {
        "written": facts["written"] or "nothing, because rows failed; the answers so far are kept",
        "rows": facts["rows"],
        "answered": facts["answered"],
        "answered before": facts.get("answered_before"),
        "failed": facts["failed"] and f"{facts['failed']}, see {facts['failed_rows']}",
        "tokens of prompts": facts["prompt_tokens"],
        "tokens of answers": facts["completion_tokens"],
        "seconds": facts["seconds"],
    }
    if stats is not None:
        lines["requests"] = stats.requests
        lines["retries"] = stats.retries
        lines["from the cache"] = stats.cached
        for server in stats.servers:
            median = "" if server.latency_p50 is None else f", median {1000 * server.latency_p50:.0f} ms"
            lines[server.name] = f"{server.replies} answers, limit {server.limit}{median}"
    show_facts({name: value for name, value in lines.items() if value})


def _kept(journal: AnswerJournal) -> str:
    if not journal.answered:
        return "nothing was answered yet"
    return f"{journal.answered} of {journal.questions} answers are kept, and the same command resumes"
