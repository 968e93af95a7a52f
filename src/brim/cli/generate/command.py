"""`brim generate`: responses to prompts, with log-probs, from a model of this machine or from a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.generate.flags import GROUPS, ONLY_DATASET, ONLY_HERE, ONLY_SAMPLED, ONLY_SERVED, generate_flags
from brim.cli.output import check_output, marked
from brim.cli.show import show_facts, show_json
from brim.cli.train.flags import GroupedCommand
from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts
from brim.generate.config import GenerationConfig, Stop
from brim.generate.output.prompts import Prompts
from brim.generate.prompts.example import Example
from brim.plan.distributed import DistributedConfig

is_report = marked(b'<meta name="generator" content="brim ')
DRAWING = (*ONLY_SAMPLED, "max_new_tokens", "seed")
"""Options of `GenerationConfig` that decide the responses, beside the stops."""
ABOUT_REPORT = {"output", "report", "force", "quiet", "as_json"}
"""Options of a command that only writes a report about an output that is finished."""


@click.command("generate", cls=GroupedCommand, groups=GROUPS)
@generate_flags
@click.pass_context
def generate(ctx: click.Context, **options: Any) -> None:
    """Generate responses to prompts, with log-probs.

    Writes one line of JSON for each response, in the order of the prompts. Each response is stored as soon as it ends:
    a run that was killed generates only what is missing when it is started again, and ends with the same file. The
    responses depend on the seed, and neither on batch sizes nor on the number of ranks (in float32, the default).

    \b
    Examples:
      brim generate -m tiny --dataset arithmetic --num-prompts 8 -o out.jsonl
      brim generate -m MODEL -p prompts.jsonl -G 8 --logprobs -o out.jsonl
      brim generate -m MODEL -p prompts.jsonl -o out.jsonl --report page.html
      brim generate --report page.html -o out.jsonl
      brim generate -m NAME --server URL -p prompts.jsonl --chat -o out.jsonl
      torchrun --nproc-per-node 4 -m brim generate -m MODEL -p prompts.jsonl \\
          -o out.jsonl

    Exit status: 0 everything is generated, 1 a server gave no response to some prompts, 2 the options, the data or the
    servers are wrong, 130 interrupted.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    main = DistributedConfig.from_env().is_main
    if options["output"] is None:
        raise click.UsageError("-o FILE is missing")
    page = _page(options)
    if page is not None and given <= ABOUT_REPORT:
        _only_report(Path(options["output"]), page, as_json=options["as_json"])
        return
    _refuse_contradictions(options, given)
    check_counts(G=options["samples"])
    _config(options, ())  # refuses what cannot work before anything is read
    from brim.cli.generate.curves import load_wandb
    from brim.cli.generate.run import show, warnings_told
    from brim.cli.llm.answering import check_files

    if options["wandb"] is not None:
        load_wandb()
    source = options["prompts"] or options["dataset"]
    output = check_files(source, options["output"], force=options["force"], suffixes=(".jsonl",))
    with warnings_told():
        facts = _generated(output, options)
    if facts is None:
        return
    if main and page is not None:
        facts["report"] = str(_written(output, page))
    if main:
        show(facts, as_json=options["as_json"])
    ctx.exit(1 if facts["failed"] else 0)


def _generated(output: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    """Generate what is missing, and return the figures of the run; None on ranks other than the main one."""
    from brim.cli.generate.here import find_model, generate_here
    from brim.cli.generate.run import Asked, finished_before
    from brim.cli.generate.served import generate_served, served_identity
    from brim.plan.distributed import DistributedConfig

    prompts = Prompts(_examples(options), chat=options["chat"])
    model = None if options["server"] else find_model(options)
    identity = served_identity(options) if model is None else model.identity
    config = _config(options, prompts.stop)
    asked = Asked(
        output=output,
        prompts=prompts,
        samples=options["samples"],
        config=config,
        logprobs=options["logprobs"],
        options=identity | _identity(prompts, config, options),
        force=options["force"],
        quiet=options["quiet"],
        wandb=options["wandb"],
    )
    if (facts := finished_before(asked)) is not None:
        if DistributedConfig.from_env().is_main:
            click.echo(f"nothing is missing in {output}; remove it to generate again", err=True)
        return facts
    return generate_served(asked, options) if model is None else generate_here(asked, model)


def _refuse_contradictions(options: dict[str, Any], given: set[str]) -> None:
    """Refuse options that are missing, that contradict each other, or that would have no effect."""
    if options["model"] is None:
        raise click.UsageError("-m MODEL is missing")
    if options["prompts"] is None and options["dataset"] is None:
        raise click.UsageError("there are no prompts: give -p FILE or --dataset NAME")
    if options["prompts"] is not None and options["dataset"] is not None:
        raise click.UsageError("-p and --dataset exclude each other")
    without = "without --server" if not options["server"] else "with --server"
    _refuse_useless(given, ONLY_HERE if options["server"] else ONLY_SERVED, without)
    if options["dataset"] is None:
        _refuse_useless(given, ONLY_DATASET, "without --dataset")
    if options["greedy"]:
        _refuse_useless(given, ONLY_SAMPLED, "with --greedy")
    if options["server"] and DistributedConfig.from_env().is_distributed:
        raise click.UsageError(
            "--server needs one process, which sends many requests at once; start it without torchrun"
        )


def _refuse_useless(given: set[str], names: Sequence[str], when: str) -> None:
    if useless := [name for name in names if name in given]:
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect {when}")


def _examples(options: dict[str, Any]) -> Sequence[Example]:
    """Read the prompts."""
    if options["prompts"] is not None:
        from brim.generate.prompts import files

        return files.build(options["prompts"])
    from brim.generate.prompts.registry import sample_examples

    return sample_examples(
        options["dataset"], options["split"], options["num_prompts"], options["seed"], replace=options["replace"]
    )


def _config(options: dict[str, Any], asked_for: tuple[str, ...]) -> GenerationConfig:
    """Return the options of the generation. `asked_for` are the stops of the prompts, for want of others."""
    stops: tuple[Stop, ...] = (*options["stop"], *options["stop_tokens"])
    return GenerationConfig(
        **{name: options[name] for name in (*DRAWING, "gen_batch_size", "gen_token_budget", "memory_budget")},
        do_sample=not options["greedy"],
        stop=stops or asked_for,
    )


def _identity(prompts: Prompts, config: GenerationConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the responses and the output beside the model, by the names of the options."""
    return {
        "prompts": prompts.fingerprint,
        **{
            name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "seed")
        },
        "greedy": options["greedy"],
        "stop": list(config.stop or ()),
        **{name: options[name] for name in ("samples", "chat", "logprobs")},
    }


def _page(options: dict[str, Any]) -> Path | None:
    """Return the page of --report, if it can be written."""
    if options["report"] is None:
        return None
    page = Path(options["report"])
    if page.suffix.lower() not in (".html", ".htm"):
        raise OptionError(f"the name of the report must end in .html, got {page}")
    check_output(page, force=options["force"], what="a report", ours=is_report)
    return page


def _only_report(output: Path, page: Path, *, as_json: bool) -> None:
    if not output.is_file():
        raise DataError(f"{output} does not exist; generate it first, with -m MODEL and -p FILE")
    facts = {"written": str(_written(output, page))}
    show_json(facts) if as_json else show_facts(facts)


def _written(output: Path, page: Path) -> Path:
    from brim.generate.report import write_report

    write_report(output, page)
    return page
