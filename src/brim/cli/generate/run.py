"""A run of `brim generate`, whichever backend generates: its journal, its output, its record and its figures."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from brim.cli.generate.curves import curves
from brim.cli.generate.progress import Tally
from brim.cli.llm.answering import AS_WRITTEN
from brim.cli.llm.progress import asking
from brim.cli.output import check_output
from brim.cli.show import human, show_facts, show_json
from brim.core.errors import BrimError
from brim.generate.config import GenerationConfig
from brim.generate.output.journal import ResponseJournal
from brim.generate.output.lines import Totals, fields_of
from brim.generate.output.prompts import Prompts
from brim.generate.output.write import write_responses
from brim.generate.prompts.check import score_response
from brim.generate.rollouts import Ids, Response
from brim.llm.answers.journal import has_journal
from brim.llm.answers.record import RUN, file_digest, finished, record_path, wrote
from brim.llm.answers.write import write_failed


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The contents of a command line."""

    output: Path
    prompts: Prompts
    samples: int
    """Number of responses to each prompt."""
    config: GenerationConfig
    """With the seed, and with the stops that the prompts ask for if no others are given."""
    logprobs: bool
    """Whether the numbers for each token are written."""
    options: dict[str, Any]
    """Everything that decides the output, by the names of the options."""
    force: bool
    quiet: bool
    wandb: str | None
    """Project of Weights & Biases."""


def finished_before(asked: Asked) -> dict[str, Any] | None:
    """Return the figures of an earlier run that generated everything with these options.

    Raises:
        MismatchError: The output is complete, but was made with other options.
    """
    if has_journal(asked.output):
        return None
    record = finished(asked.output, asked.options, force=asked.force)
    if record is None:
        return None
    figures = {name: record[name] for name in Totals().to_dict()}
    now = {"resumed": record["responses"], "seconds": None, "tokens_per_second": None}
    return {"written": str(asked.output), **figures, "failed": 0, "failed_responses": None, **now}


@contextmanager
def opened(asked: Asked) -> Generator[ResponseJournal, None, None]:
    """Open the journal of the output with what earlier runs generated, on one rank or several.

    It is removed when everything is there.

    Raises:
        MismatchError: The earlier run had other options.
        OptionError: The output is not the one that the earlier run wrote.
    """
    journal = ResponseJournal(asked.output, prompts=len(asked.prompts), samples=asked.samples)
    try:
        journal.recover(asked.options, force=asked.force)
        journal.take_over(asked.options, force=asked.force)
        if journal.answered:
            click.echo(f"resuming: {journal.answered} of {journal.questions} responses are finished already", err=True)
        if journal.discarded:
            click.echo(f"{journal.path} ended in a damaged record: discarded {journal.discarded} bytes", err=True)
        check_output(asked.output, force=asked.force, what=AS_WRITTEN, ours=lambda path: journal.writing or wrote(path))
        yield journal
    except BaseException:  # Ctrl-C too: what was generated is kept
        journal.close(keep=True)
        raise
    journal.close(keep=journal.answered < journal.questions)


@contextmanager
def opened_by_rank(asked: Asked, rank: int) -> Generator[ResponseJournal, None, None]:
    """Open the journal of a rank other than the main one, which takes it over later."""
    journal = ResponseJournal(asked.output, prompts=len(asked.prompts), samples=asked.samples, rank=rank)
    try:
        journal.recover(asked.options)
        yield journal
    finally:
        journal.close(keep=True)


def collect(
    asked: Asked,
    journal: ResponseJournal,
    responses: Iterable[Any],
    tally: Tally,
    *,
    quiet: bool,
    written: Callable[[Response], Response] = lambda response: response,
    servers: Callable[[], Any] | None = None,
    project: str | None = None,
) -> None:
    """Write each response to the journal as soon as it ends, with progress.

    Args:
        responses: `Response`s, and `FailedResponse`s where a server gave none.
        written: Returns a response with the numbers that are written.
        servers: Returns the `PoolStats` of the moment.
        project: Project of Weights & Biases.

    Raises:
        BrimError: It cannot go on. The message says what is kept.
        KeyboardInterrupt: After a message about what is kept.
    """
    try:
        with (
            curves(project, name=asked.output.name, options=asked.options, tally=tally) as drawn,
            asking(tally, servers, quiet=quiet),
        ):
            for response in responses:
                if isinstance(response, Response):
                    score = score_response(asked.prompts.examples[response.prompt], response.text)
                    journal.append_fields(response.prompt, response.sample, fields_of(written(response), score))
                    tally.add(fields_of(response, score))
                else:
                    journal.append(response.prompt, response.sample, response.failure)
                    tally.failed += 1
                drawn.log(tally)
    except BrimError as error:
        if not journal.answered:
            raise
        raise type(error)(f"{error}; {_kept(journal, tally)}") from None
    except KeyboardInterrupt:
        click.echo(_kept(journal, tally), err=True)
        raise


def finish(
    asked: Asked,
    journal: ResponseJournal,
    tally: Tally,
    *,
    before: int,
    tokens: int,
    prompt_ids: Sequence[Ids] | None = None,
) -> dict[str, Any]:
    """Write the output, the list of failed responses and the record of the run, and return the figures of the run.

    Args:
        before: Responses that earlier runs finished.
        tokens: Tokens that this run generated, over all ranks.
    """
    journal.take_over(asked.options)
    lost = journal.questions - journal.answered - journal.failed
    if lost:
        raise BrimError(
            f"{lost} of {journal.questions} responses are missing: the journals of other ranks are not beside "
            f"{asked.output}; write to a directory that all ranks share"
        )
    seconds = round(tally.seconds, 3)
    journal.note_writing(True)
    totals = write_responses(asked.output, asked.prompts, journal, per_token=asked.logprobs, prompt_ids=prompt_ids)
    failed = write_failed(asked.output, asked.prompts, journal)
    figures = {**totals.to_dict(), "failed": journal.failed}
    written = {
        "name": asked.output.name,
        "bytes": asked.output.stat().st_size,
        "digest": file_digest(asked.output),
    }
    RUN.write(record_path(asked.output), {"output": written, "options": asked.options, **figures, "seconds": seconds})
    journal.note_writing(False)
    return {
        "written": str(asked.output),
        **figures,
        "failed_responses": None if failed is None else str(failed),
        "resumed": before,
        "seconds": seconds,
        "tokens_per_second": round(tokens / max(seconds, 1e-3), 1) if tokens else None,
    }


def show(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print the figures of a run; with `as_json` all of them."""
    if as_json:
        show_json(facts)
        return
    lines = {
        "written": facts["written"],
        "responses": facts["responses"],
        "finished before": facts["resumed"],
        "failed": facts["failed"] and f"{facts['failed']}, see {facts['failed_responses']}",
        "tokens": facts["tokens"],
        "mean length": facts["mean_length"] and f"{facts['mean_length']:.1f} tokens",
        "finish reasons": ", ".join(f"{reason} {count:,}" for reason, count in facts["finish_reasons"].items()),
        "pass rate": facts["checked"] and f"{facts['pass_rate']:.1%} of {facts['checked']:,} checked responses",
        "mean score": facts["checked"] and facts["mean_score"] != facts["pass_rate"] and f"{facts['mean_score']:.3f}",
        "seconds": facts["seconds"],
        "tokens/s": facts["tokens_per_second"] and human(facts["tokens_per_second"]),
        "report": facts.get("report"),
    }
    show_facts({name: value for name, value in lines.items() if value})


def _kept(journal: ResponseJournal, tally: Tally) -> str:
    if not journal.answered:
        return f"{tally.name}no response was finished yet"
    kept = tally.totals.responses if tally.name else journal.answered
    of = tally.total if tally.name else journal.questions
    return f"{tally.name}{kept} of {of} responses are kept, and the same command resumes"


@contextmanager
def warnings_told() -> Generator[None, None, None]:
    """Print warnings, such as about a model that is slow to generate with, as one line each."""

    def tell(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield
