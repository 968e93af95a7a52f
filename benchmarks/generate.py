"""Generating responses and scoring them: `SequenceProcessor` beside transformers, TRL, and the way of the original.

One small model for all (Qwen2, 4 layers of 256, vocabulary 32,000, 19.3 million random weights, float32, one thread).
Lengths are log-normal and clipped: prompts with median 80 and sigma 0.5 to 16-320 tokens, responses with median 48 and
sigma 0.7 to 4-192. The length of every response is fixed beforehand, and everybody ends it there, so that all generate
the same number of tokens. What the others do is described in `generate_peers.py`.

    generation   64 prompts, 8 responses each
    scoring      log-probabilities and entropies of the tokens of 512 given responses, without gradients
    gradients    the same for 8 prompts with 8 responses of at most 96 tokens, and the gradient of
                 sum(log-probabilities) + 0.1 * sum(entropies)

Every measurement is a process of its own, after a call with little work to warm up; contenders take turns, and the
median of the repeats counts. `x brim` and the targets compare CPU seconds; `system s` is the part of them that the
kernel took. `peak MB` is the peak of the resident memory above what it was just before the call. `max diff` is the
largest difference of a log-probability: in generation from those of a padded forward pass over the generated tokens (of
the first four prompts), else from the padded way's. `grad diff` is the norm of the difference from the padded way's
gradient, divided by its norm.
"""

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import generate_peers as peers
import numpy as np
from generate_peers import LONGEST, PAD, SEED, VOCABULARY, Generated, Scored, Work, flat
from harness import Report, Row, peak_memory, print_table
from llm import Target

from brim.analyze.capacity.memory import resident_memory
from brim.core.fingerprint import fingerprint

BRIM, ORIGINAL, PADDED = "brim", "original", "padded, full logits"
CONTINUOUS, SELECTIVE, FUSED = "continuous batching", "TRL selective", "TRL fused head"
COLUMNS = {
    **{"system s": ".1f", "tokens / CPU s": ",.0f", "x brim": ".2f", "peak MB": ",.0f"},
    **{"max diff": ".1e", "max entropy diff": ".1e", "grad diff": ".1e"},
}
CHECKED = 4
"""Prompts whose generated log-probabilities are checked."""
TOLERANCE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 prompts with 4 responses each")
    parser.add_argument("--repeats", type=int, default=1, help="how often everything is measured")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--one", nargs=3, metavar=("PART", "CONTENDER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, contender, file = options.one
        with contextlib.redirect_stdout(sys.stderr):
            measured = measure(PARTS[name], contender, Path(file), quick=options.quick)
        print(json.dumps(measured))
        return
    report = Report("generate")
    targets: list[Target] = []
    for name in options.only:
        rows = run_part(report, name, repeats=options.repeats, quick=options.quick)
        targets += TARGETS[name](rows)
    words = {True: "holds", False: "missed", None: "not measured"}
    report.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in targets]})
    print_table("Targets", ["", "target", "reached", ""], [(*one[:3], words[one.holds]) for one in targets])
    print(f"written: {report.close()}")


def run_part(report: Report, name: str, *, repeats: int, quick: bool) -> dict[str, Row]:
    """Measure all contenders of a part in turn, and show the table."""
    part = PARTS[name]
    contenders = [one for one, how in part.contenders.items() if report.peer(how.module, how.module)]
    measured: dict[str, list[dict[str, float]]] = {one: [] for one in contenders}
    results: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for number, one in enumerate(contenders):
                file = Path(folder) / f"{number}.npz"
                measured[one].append(measure_in_child(name, one, file, quick=quick))
                results[one] = dict(np.load(file))
    rows = {one: row_of(one, measured[one]) for one in contenders}
    for one, row in rows.items():
        row.columns["tokens / CPU s"] = row.columns["tokens"] / row.cpu
        row.columns["x brim"] = row.cpu / rows[BRIM].cpu
        if PADDED in results:
            row.columns.update(differences(results[one], results[PADDED]))
    work = part.work(quick=quick)
    title = (
        f"{name}: {len(work.prompts)} prompts, {work.group} responses each, {work.tokens:,} response tokens; CPU "
        f"seconds, median of {repeats}"
    )
    known = {key for row in rows.values() for key in row.columns}
    columns = {key: spec for key, spec in COLUMNS.items() if key in known}
    report.table(title, rows.values(), columns, subject=name, repeats=repeats, quick=quick)
    return rows


def measure_in_child(part: str, contender: str, file: Path, *, quick: bool) -> dict[str, float]:
    command = [sys.executable, __file__, *(["--quick"] if quick else ()), "--one", part, contender, str(file)]
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **alone})
    if done.returncode:
        raise SystemExit(f"{part}, {contender} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def row_of(name: str, measured: Sequence[Mapping[str, float]]) -> Row:
    middle = {key: median(one[key] for one in measured) for key in measured[0]}
    row = Row(name, middle.pop("seconds"), middle.pop("cpu"), len(measured))
    row.columns.update(middle)
    return row


def differences(found: Mapping[str, Any], padded: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Compare scores, and gradients if there are any, with those of the padded way."""
    yield "max diff", float(np.abs(found["logprobs"] - padded["logprobs"]).max())
    yield "max entropy diff", float(np.abs(found["entropies"] - padded["entropies"]).max())
    if "gradient" in padded:
        distance = np.linalg.norm(found["gradient"] - padded["gradient"])
        yield "grad diff", float(distance / np.linalg.norm(padded["gradient"]))


def generation_targets(rows: Mapping[str, Row]) -> Iterator[Target]:
    yield faster("generation", rows, ORIGINAL, 4)
    yield faster("generation", rows, CONTINUOUS, 1.4)
    yield quarter("generation", rows, ORIGINAL)
    yield exact("generation", rows, "max diff")


def scoring_targets(rows: Mapping[str, Row]) -> Iterator[Target]:
    yield faster("scoring", rows, PADDED, 5)
    yield faster("scoring", rows, FUSED, 5)
    yield faster("scoring", rows, SELECTIVE, 3)
    yield quarter("scoring", rows, PADDED)
    yield exact("scoring", rows, "max diff")
    yield exact("scoring", rows, "max entropy diff")


def gradient_targets(rows: Mapping[str, Row]) -> Iterator[Target]:
    yield faster("with gradients", rows, PADDED, 2.5)
    yield faster("with gradients", rows, SELECTIVE, 1.5)
    yield quarter("with gradients", rows, PADDED)
    yield exact("with gradients", rows, "max diff")
    yield exact("with gradients", rows, "grad diff")


TARGETS: dict[str, Callable[[Mapping[str, Row]], Iterable[Target]]] = {
    "generation": generation_targets,
    "scoring": scoring_targets,
    "gradients": gradient_targets,
}


def faster(what: str, rows: Mapping[str, Row], peer: str, least: float) -> Target:
    title, target = f"{what}, beside {peer}", f">= {least}x"
    if peer not in rows:
        return Target(title, target, "-", None)
    ratio = rows[peer].cpu / rows[BRIM].cpu
    reached = f"{ratio:.2f}x ({rows[BRIM].cpu:.1f} and {rows[peer].cpu:.1f} CPU s)"
    return Target(title, target, reached, ratio >= least)


def quarter(what: str, rows: Mapping[str, Row], peer: str) -> Target:
    title, target = f"{what}, peak memory beside {peer}", "<= 1/4"
    if peer not in rows:
        return Target(title, target, "-", None)
    brim, other = rows[BRIM].columns["peak MB"], rows[peer].columns["peak MB"]
    return Target(title, target, f"1/{other / brim:.1f} ({brim:,.0f} and {other:,.0f} MB)", 4 * brim <= other)


def exact(what: str, rows: Mapping[str, Row], column: str) -> Target:
    found = rows[BRIM].columns[column]
    return Target(f"{what}, {column} from the padded way", f"<= {TOLERANCE:.0e}", f"{found:.1e}", found <= TOLERANCE)


# What follows runs in the contender's own process.


@dataclass(frozen=True)
class Contender:
    """`run` does the work; `prepare` changes the model for it, off the clock."""

    run: Callable[[Any, Work], Generated | Scored]
    module: str = "transformers"
    """Without this module there is no such contender."""
    prepare: Callable[[Any], None] = lambda model: None


@dataclass(frozen=True)
class Part:
    contenders: Mapping[str, Contender]
    full: tuple[int, int] = (64, 8)
    """Prompts, and responses to each."""
    quick: tuple[int, int] = (16, 4)
    longest: int = LONGEST

    def work(self, *, quick: bool) -> Work:
        return Work.draw(*(self.quick if quick else self.full), self.longest)


def measure(part: Part, name: str, file: Path, *, quick: bool) -> dict[str, float]:
    """Do the work, write what came out to `file`, and return what it took."""
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    contender, work = part.contenders[name], part.work(quick=quick)
    model = peers.new_model()
    contender.prepare(model)
    contender.run(model, Work.draw(2, work.group, 4))
    model.zero_grad()
    gc.collect()
    before = resident_memory(os.getpid()) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    wall, cpu, system = time.perf_counter(), time.process_time(), os.times().system
    result = contender.run(model, work)
    spent = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    spent["system s"] = os.times().system - system
    measured = {**spent, "peak MB": peak_memory() - before, "tokens": work.tokens}
    if isinstance(result, Generated):
        measured.update(check_generated(result, work))
        np.savez(file)
        return measured
    assert len(result.logprobs) == len(result.entropies) == work.tokens
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    gradient = {"gradient": torch.cat(found).numpy()} if found else {}
    np.savez(file, logprobs=result.logprobs, entropies=result.entropies, **gradient)
    return measured


def check_generated(generated: Generated, work: Work) -> Iterator[tuple[str, float]]:
    """Check that every response has its length, and compare log-probabilities with those of a padded forward pass."""
    group = work.group
    assert [len(ids) for ids in generated.ids] == flat(work.limits)
    if generated.logprobs is None:
        return
    responses = [generated.ids[b * group : (b + 1) * group] for b in range(CHECKED)]
    some = replace(work, prompts=work.prompts[:CHECKED], limits=work.limits[:CHECKED], responses=responses)
    scored = peers.score_padded(peers.new_model(), some)
    found = np.concatenate(generated.logprobs[: CHECKED * group])
    yield "max diff", float(np.abs(found - scored.logprobs).max())


class RandomTokenizer:
    """Every id is one character, so any ids can be decoded."""

    name = "random"
    vocab_size, pad_id, bos_id, eos_id = VOCABULARY, PAD, None, None
    adds_bos = has_chat_template = False
    fingerprint = fingerprint(tokenizer="random")
    first = 0x3400
    """The character of id 0. There are no surrogates among the 32,000 from here on."""

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        return [np.array([ord(one) - self.first for one in text], np.int32) for text in texts]

    def count_batch(self, texts: Sequence[str]) -> Any:
        return np.array([len(text) for text in texts], np.int32)

    def encode_ends(self, texts: Sequence[str]) -> list[tuple[Any, Any]]:
        return [(ids, np.arange(1, len(ids) + 1, dtype=np.int32)) for ids in self.encode_batch(texts)]

    def render_chat(self, messages: Any, *, reply: bool = False) -> str:
        raise NotImplementedError("there is no chat template")

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(chr(self.first + int(id)) for id in ids)


def new_processor(model: Any) -> Any:
    from brim.generate.config import GenerationConfig
    from brim.generate.processor import SequenceProcessor

    config = GenerationConfig(max_new_tokens=LONGEST, gen_batch_size=peers.GENERATED_ROWS, seed=SEED)
    return SequenceProcessor(model, RandomTokenizer(), config)


def generate_brim(model: Any, work: Work) -> Generated:
    from brim.generate.rollouts import Rollouts

    responses = new_processor(model).stream(work.prompts, work.group, seed=SEED, limits=work.limits)
    prompts = [np.array(prompt, np.int32) for prompt in work.prompts]
    rollouts = Rollouts.collect(prompts, responses, G=work.group, seed=SEED)
    ids = [rollouts.response(index).tolist() for index in range(len(rollouts))]
    return Generated(ids, [part.tolist() for part in rollouts.split(rollouts.logprobs)])


def sequences_of(work: Work) -> Any:
    """The given responses as if they had been generated."""
    from brim.generate.rollouts import Response, Rollouts
    from brim.generate.sequences import BatchedSequences

    responses = [
        Response(prompt=b, sample=g, text="", finish_reason="length", token_ids=np.array(ids, np.int32))
        for b, row in enumerate(work.responses)
        for g, ids in enumerate(row)
    ]
    prompts = [np.array(prompt, np.int32) for prompt in work.prompts]
    rollouts = Rollouts.collect(prompts, responses, G=work.group, seed=SEED)
    return BatchedSequences.of(rollouts, pad_id=PAD, device="cpu")


def score_brim(model: Any, work: Work) -> Scored:
    import torch

    results = new_processor(model).teacher_force_logprobs(sequences_of(work), with_grad=False)
    return Scored(torch.cat(flat(results.logprobs)).numpy(), np.concatenate(flat(results.entropies)))


def train_brim(model: Any, work: Work) -> Scored:
    logprobs: dict[int, Any] = {}
    entropies: dict[int, Any] = {}
    for part in new_processor(model).microbatches(sequences_of(work)):
        (part.logprobs.sum() + peers.ENTROPY_WEIGHT * part.entropies.sum()).backward()
        for found, column in ((logprobs, part.logprobs), (entropies, part.entropies)):
            found.update(zip(part.responses, part.split(column.detach()), strict=True))
    ordered = range(len(logprobs))
    return Scored(*(np.concatenate([column[index].numpy() for index in ordered]) for column in (logprobs, entropies)))


PARTS = {
    "generation": Part(
        {
            ORIGINAL: Contender(peers.generate_original),
            CONTINUOUS: Contender(peers.generate_continuously),
            BRIM: Contender(generate_brim),
        }
    ),
    "scoring": Part(
        {
            PADDED: Contender(peers.score_padded),
            FUSED: Contender(peers.score_trl_fused, "trl", peers.add_trl_head),
            SELECTIVE: Contender(peers.score_trl_selective, "trl"),
            BRIM: Contender(score_brim),
        }
    ),
    "gradients": Part(
        {
            PADDED: Contender(peers.train_padded),
            SELECTIVE: Contender(peers.train_trl_selective, "trl"),
            BRIM: Contender(train_brim),
        },
        full=(8, 8),
        quick=(4, 4),
        longest=96,
    ),
}


if __name__ == "__main__":
    main()
