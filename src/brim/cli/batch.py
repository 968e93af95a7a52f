"""`brim batch`: the batches of a plan as files."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.options import check_rank
from brim.cli.show import counting_progress, json_option, show_facts, show_json, show_table
from brim.core.errors import OptionError
from brim.core.fill import Fill

if TYPE_CHECKING:
    from brim.batch.batch import Batch
    from brim.batch.files.reader import BatchReader
    from brim.batch.files.writer import BatchWriter
    from brim.data.samples import Samples
    from brim.data.tokenizer.base import Tokenizer
    from brim.plan.plan import BatchPlan

FIRST_TOKENS = 6


@click.command()
@click.option("-p", "--plan", "path", required=True, metavar="DIR", help="Plan, or the share of a rank.")
@click.option(
    "-d", "--data", "--dataset", "data", required=True, metavar="PATH", help="Data set that the plan was built for."
)
@click.option("-t", "--tokenizer", help="Tokenizer of the lengths.  [default: the one that the plan names, else byte]")
@click.option("-o", "--output", required=True, metavar="DIR", help="Directory for the batches.")
@click.option(
    "-e", "--epoch", "epochs", type=int, multiple=True, help="Epoch to write. Can be repeated.  [default: all]"
)
@click.option("-r", "--rank", type=int, help="Write the share of this rank; needs --world-size.")
@click.option("-w", "--world-size", type=int, help="Number of ranks; needs --rank.")
@click.option(
    "--tokens",
    metavar="FILE",
    help="Token store to write or reuse, for example by other ranks.  [default: a temporary one]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@json_option
def write(
    path: str,
    data: str,
    tokenizer: str | None,
    output: str,
    epochs: tuple[int, ...],
    rank: int | None,
    world_size: int | None,
    tokens: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the batches of a plan as NPZ files.

    The data set is tokenized once, on all cores, and every row is compared with the plan before the first batch is
    written. When it is started again after a kill, it writes the missing files. A directory with the batches of another
    plan is refused.

    \b
    Examples:
      brim batch write -p plan/ -d train.jsonl -o batches/
      brim batch write -p plan/ -d train.jsonl -t gpt2 -o batches/ -e 0
      brim batch write -p plan/ -d train.jsonl --tokens tokens.brim \\
        -r 0 -w 4 -o rank_0/

    Exit status: 0 written, 2 the options or the data are wrong.
    """
    if (rank is None) != (world_size is None):
        raise OptionError("--rank and --world-size are given together or not at all")
    check_rank(rank, world_size)
    from brim.batch.files.manifest import TOKENS
    from brim.batch.files.writer import BatchWriter
    from brim.plan.plan import BatchPlan

    plan = BatchPlan.load(path)
    if rank is not None and world_size is not None:
        plan = plan.shard(rank, world_size)
    samples = _samples(plan, data, tokenizer)
    writer = BatchWriter(plan, samples, output)
    chosen = sorted(set(epochs)) or range(plan.num_epochs)
    for epoch in chosen:
        plan.deal(epoch)  # raises for an epoch that does not exist
    with writer.claim():
        written = _write(writer, samples, chosen, Path(tokens) if tokens else Path(output, TOKENS), quiet)
        Path(output, TOKENS).unlink(missing_ok=True)
    fill = sum((plan.get_epoch(epoch).fill for epoch in chosen), Fill())
    facts = {
        "written": output,
        "epochs": len(chosen),
        "batches": sum(writer.manifest.batches[epoch] for epoch in chosen),
        "written now": written,
        "tokens": fill.used,
        "padding": f"{fill.waste:.2%}",
        **({"rank": f"{plan.rank} of {plan.world_size}"} if plan.world_size > 1 else {}),
        "plan": plan.fingerprint,
        "data": writer.manifest.dataset_hash,
        "tokenizer": writer.manifest.tokenizer_hash,
    }
    show_json(facts) if as_json else show_facts(facts)


def _samples(plan: "BatchPlan", data: str, tokenizer: str | None) -> "Samples":
    """Open the data set with the settings it was measured with, which the length table of the plan records."""
    from brim.data.measure import open_as_measured
    from brim.data.samples import Samples

    source, layout = open_as_measured(data, plan.table)
    return Samples(source, _tokenizer(tokenizer, plan.table.source.get("tokenizer")), layout)


def _tokenizer(name: str | None, recorded: str | None) -> "Tokenizer":
    from brim.data.tokenizer.base import load_tokenizer

    if name is not None or recorded is None:
        return load_tokenizer(name if name is not None else "byte")
    try:
        return load_tokenizer(recorded)
    except OptionError as error:
        raise OptionError(f"{error} (the plan names this tokenizer; where it is, -t has to say)") from None


def _write(writer: "BatchWriter", samples: "Samples", epochs: "list[int] | range", tokens: Path, quiet: bool) -> int:
    """Write the missing batches and return their number.

    A token store is used even for one epoch: the rows of a batch are spread over the data set, and tokenising batch by
    batch would use one core, and might not detect a changed row before the last batch.
    """
    from brim.data.tokenize import build_tokens

    if not any(writer.missing(epoch) for epoch in epochs):
        # No batch is missing, but the plan may have to be written again.
        return sum(writer.write_epoch(epoch).written for epoch in epochs)
    with _bar("tokenising", quiet) as progress:
        writer.source = build_tokens(
            samples.source, tokens, samples.tokenizer, samples.layout, writer.plan.table, progress=progress
        )
    written = 0
    for epoch in epochs:
        with _bar(f"writing epoch {epoch}", quiet) as progress:
            written += writer.write_epoch(epoch, progress).written
    return written


def _bar(what: str, quiet: bool) -> "AbstractContextManager[Callable[[int, int], None] | None]":
    return nullcontext() if quiet else counting_progress(what)


@click.command()
@click.option("-b", "--batches", "path", required=True, metavar="DIR", help="Directory that brim batch write wrote.")
@click.option("-e", "--epoch", type=int, help="Epoch to show.  [default: all; with --index the first]")
@click.option("-i", "--index", "number", type=int, help="Show this batch of the epoch.")
@json_option
@click.pass_context
def show(ctx: click.Context, path: str, epoch: int | None, number: int | None, as_json: bool) -> None:
    """Show the contents of a directory of batches, or of one batch.

    \b
    Examples:
      brim batch show -b batches/
      brim batch show -b batches/ -e 0 -i 17

    Exit status: 0 shown, 1 batches are missing or files do not belong there, 2 there are none, or the one asked for is
    damaged.
    """
    from brim.batch.files.reader import BatchReader

    reader = BatchReader(path)
    if number is not None:
        _show_batch(reader.get_batch(epoch or 0, number), number, as_json)
        return
    epochs = [_epoch(reader, at) for at in (range(reader.num_epochs) if epoch is None else [epoch])]
    manifest = reader.manifest
    facts: dict[str, Any] = {
        "batches": len(reader),
        "epochs": reader.num_epochs,
        "rank": f"{manifest.rank} of {manifest.world_size}",
        "microbatches per step": manifest.microbatches_per_step,
        "pad id": str(manifest.pad_id),
        "plan": reader.fingerprint,
        "data": manifest.dataset_hash or "unknown",
        "tokenizer": manifest.tokenizer_hash or "unknown",
    }
    whole = not any(row["missing"] or row["strangers"] for row in epochs)
    if as_json:
        show_json({**facts, "whole": whole, "per_epoch": epochs})
    else:
        show_facts(facts)
        click.echo()
        show_table(list(epochs[0]), [list(row.values()) for row in epochs])
        if not whole:
            click.echo(
                f"{path} is not whole: write the batches again for what is missing, remove what does not belong there",
                err=True,
            )
    ctx.exit(0 if whole else 1)


def _epoch(reader: "BatchReader", epoch: int) -> dict[str, Any]:
    from brim.batch.files.manifest import batch_file

    files, view = reader.files(epoch), reader.iter_epoch_specs(epoch)
    folder = batch_file(reader.directory, epoch, 0).parent
    return {
        "epoch": epoch,
        "batches": reader.num_batches(epoch),
        "missing": len(files.missing),
        "strangers": len(files.strangers),
        "sequences": view.total_samples,
        "tokens": view.total_tokens,
        "padding": f"{view.fill.waste:.2%}",
        "bytes": sum(path.stat().st_size for path in folder.glob("batch_*.npz")),
    }


def _show_batch(batch: "Batch", number: int, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "epoch": batch.epoch,
        "batch": number,
        "index in the plan": "none: it is empty" if batch.is_null else batch.index,
        "shape": f"{batch.batch_size} x {batch.max_len}",
        "bucket": batch.bucket_id,
        "packed": batch.packed,
        "segments": len(batch.ids),
        "tokens": batch.fill.used,
        "learned": batch.num_loss_tokens,
        "padding": f"{batch.fill.waste:.2%}",
        "ends a step": batch.ends_step,
    }
    segments = _segments(batch)
    if as_json:
        show_json(
            {**facts, "shape": batch.shape, "after": asdict(batch.after) if batch.after else None, "samples": segments}
        )
        return
    show_facts(facts)
    if segments:
        click.echo()
        rows = [[*list(one.values())[:-1], " ".join(map(str, one["begins with"]))] for one in segments]
        show_table(list(segments[0]), rows)


def _segments(batch: "Batch") -> list[dict[str, Any]]:
    """Return the facts of each segment, in the order of the ids."""
    import numpy as np

    kept = np.flatnonzero(batch.segment_ids)  # the positions of the tokens, segment after segment
    tokens, learned = batch.tokens.ravel()[kept], batch.loss_mask.ravel()[kept]
    found: list[dict[str, Any]] = []
    for id, start, end in zip(batch.ids, batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        at = int(kept[start]) if end > start else 0
        found.append(
            {
                "row": at // max(batch.max_len, 1),
                "segment": int(batch.segment_ids.flat[at]) if end > start else 0,
                "sample": id,
                "tokens": end - start,
                "learned": int(np.count_nonzero(learned[start:end])),
                "begins with": tokens[start : min(end, start + FIRST_TOKENS)].tolist(),
            }
        )
    return found
