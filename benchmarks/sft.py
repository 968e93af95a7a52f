"""Fine-tuning one small Llama: what the way samples are batched does to speed and memory.

The same weights, data, optimizer (AdamW, fp32, clipped), threads and padded tokens per optimizer step for all.
Everybody batches a whole epoch and trains on some of its steps, which have its mean fill and its widths, behind a first
step to warm up: the largest of the epoch, so that the peak memory is that of a whole epoch. Each contender is a process
of its own; they take turns, and the best round counts. All but the two trainers go through one plain loop (forward,
cross entropy summed over the step's tokens, backward, clip, step).

    random padded batches   as many samples as fill the step on average, padded to the longest, with an attention mask
    HF group_by_length      the same with transformers' LengthGroupedSampler
    TRL packing             trl.pack_dataset (bfd) and TRL's collator without padding, with sdpa, its best here, given
                            a mask of length x length; once with all rows of a step in one, once row by row
    brim sorted windows     padded
    brim packed             flat batches and brim's attention, which needs no mask; in both ways too

`tokens/s` leaves padding out. `padding %`, `steps` and `largest` (tokens of the largest step) are those of the whole
epoch; `prepare s` is what planning or packing it took. Before training, the loss over the same samples, each contender
in its own layout, must be the same for all; `loss after` is that of these samples when as many steps are taken. TRL's
SFTTrainer also measures the entropy and accuracy of every token.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import Report, Row, lognormal, peak_memory

from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig
from brim.core.columns import write_columns
from brim.data.ids import Ids
from brim.data.token_store import FORMAT, TokenStore

SAMPLES, BUDGET, ROW, STEPS = 4_000, 8192, 2048, 5
VOCABULARY, HIDDEN, LAYERS, HEADS, PAD = 8192, 128, 4, 2, 0
RATE, CLIP, SEED, IGNORED = 1e-3, 1.0, 11, -100
PACKING = PackingConfig(max_length=ROW)
PATIENCE = 25.0  # one that needed more CPU seconds gets no further round
SOME = 24  # samples whose loss is compared
BASE = "random padded batches"
COLUMNS = {
    **{"tokens/s": ",.0f", "x random": ".2f", "padding %": ".1f", "steps": ",", "largest": ",", "peak MB": ",.0f"},
    **{"prepare s": ".3f", "loss before": ".4f", "loss after": ".3f"},
}

Micro = tuple[dict[str, Any], Any]  # the arguments of a forward pass, and the labels
Step = list[Micro]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="how many samples the epoch has")
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps are timed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, metavar="CONTENDER", help="some contenders only")
    parser.add_argument("--quick", action="store_true", help="one step of an epoch of 400 samples")
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with contextlib.redirect_stdout(sys.stderr):
            measured = measure(options.one[0], Path(options.one[1]), options.steps)
        print(json.dumps(measured))
        return
    samples, steps, rounds = (400, 1, 1) if options.quick else (options.samples, options.steps, options.rounds)
    report = Report("sft")
    rows = {name: Row(name) for name in options.only or CONTENDERS if report.peer(*peer_of(name))}
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder), lognormal(samples, longest=ROW))
        for _ in range(rounds):
            for name, row in rows.items():
                if row.rounds == 0 or row.cpu < PATIENCE:
                    take_turn(name, Path(folder), steps, row)
    check(rows.values())
    base = rows.get(BASE)
    for row in rows.values():
        row.columns["x random"] = row.columns["tokens/s"] / base.columns["tokens/s"] if base else None
    model = f"Llama of {LAYERS} layers of {HIDDEN}, vocabulary {VOCABULARY}"
    title = f"SFT: {samples:,} samples (lognormal), {steps} steps of {BUDGET} padded tokens; {model}"
    report.table(title, rows.values(), COLUMNS, subject="sft", n=samples, budget=BUDGET)
    print(f"written: {report.close()}")


def peer_of(name: str) -> tuple[str, str]:
    """The module without which there is no such contender, and its package."""
    return ("trl", "trl") if name.startswith("TRL") else ("transformers", "transformers")


def make_store(folder: Path, lengths: Any) -> None:
    """Every sample counts upwards by a step of its own among 512 of the tokens, so that there is something to learn."""
    rng = np.random.default_rng(4)
    steps, starts = rng.integers(1, 6, len(lengths)), rng.integers(0, 512, len(lengths))
    counted = (start + step * np.arange(length) for start, step, length in zip(starts, steps, lengths, strict=True))
    tokens = (np.concatenate(list(counted)) % 512 + 1).astype(np.uint16)
    noise = rng.random(len(tokens)) < 0.05
    tokens[noise] = rng.integers(1, VOCABULARY, int(noise.sum()), np.uint16)
    meta = {"pad_id": PAD, "dataset_hash": "", "tokenizer_hash": ""}
    write_columns(
        folder / "tokens.brim",
        FORMAT,
        meta,
        {"tokens": tokens, "learned": np.ones(len(tokens), np.uint8), "length": lengths},
    )
    sizes = {
        "random_size": size_of_step(lengths.tolist(), grouped=False),
        "grouped_size": size_of_step(lengths.tolist(), grouped=True),
    }
    (folder / "sizes.json").write_text(json.dumps(sizes))


def size_of_step(lengths: list[int], *, grouped: bool) -> int:
    """How many samples to a batch make the mean padded batch come closest to the budget."""

    def mean(size: int) -> float:
        batches = batches_of(lengths, size, SEED, grouped=grouped)
        return float(np.mean([len(batch) * max(lengths[row] for row in batch) for batch in batches]))

    return min(range(1, 33), key=lambda size: abs(mean(size) - BUDGET))


def batches_of(lengths: list[int], size: int, seed: int, *, grouped: bool) -> list[list[int]]:
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(seed)
    grouping = LengthGroupedSampler(size, lengths=lengths, generator=generator)
    order = grouping if grouped else torch.randperm(len(lengths), generator=generator)
    rows = [int(row) for row in order]
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def take_turn(name: str, folder: Path, steps: int, row: Row) -> None:
    command = [sys.executable, __file__, "--steps", str(steps), "--one", name, str(folder)]
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}  # a thread that waits takes no CPU seconds
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet, **passive})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    row.rounds += 1
    row.cpu = min(row.cpu, measured["cpu"])
    if measured["seconds"] < row.seconds:
        row.seconds = measured["seconds"]
        row.columns.update({key: value for key, value in measured.items() if key not in ("seconds", "cpu")})


def check(rows: Iterable[Row]) -> None:
    before = {row.name: row.columns["loss before"] for row in rows if row.columns["loss before"] is not None}
    assert max(before.values()) - min(before.values()) < 1e-4, f"the layouts do not agree on the loss: {before}"


# What follows runs in the contender's own process.


@dataclass(frozen=True)
class Data:
    """The samples, and how many of them the padded contenders put into a step."""

    store: TokenStore
    random_size: int
    grouped_size: int

    @property
    def lengths(self) -> list[int]:
        return self.store.lengths.tolist()

    @property
    def lists(self) -> list[list[int]]:
        return [self.store.sample(row).tokens.tolist() for row in range(len(self.store))]

    @cached_property
    def dataset(self) -> Any:
        """As a data set of Hugging Face."""
        from datasets import Dataset

        return Dataset.from_dict({"input_ids": self.lists})

    def some(self) -> "Data":
        return replace(self, store=self.store.take(np.arange(SOME), dataset_hash=""))


class Planned(NamedTuple):
    """One step of an epoch: how wide it is, its slots, how many tokens and samples are in them."""

    what: Any
    width: int
    slots: int
    tokens: int
    samples: int


@dataclass(frozen=True)
class Pipeline:
    """`plan` gives the steps of an epoch and what turns some of them into tensors; `segments` says that it wants brim's
    attention.
    """

    plan: Callable[[Data], tuple[list[Planned], Callable[[list[Any]], Iterable[Step]]]]
    reads_lists: bool = True
    segments: bool = False


def measure(name: str, folder: Path, steps: int) -> dict[str, Any]:
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    data = Data(TokenStore.load(folder / "tokens.brim"), **json.loads((folder / "sizes.json").read_text()))
    measured = TRAINERS[name](data, steps) if name in TRAINERS else train_plainly(PIPELINES[name], data, steps)
    unknown = dict.fromkeys(COLUMNS)
    return {**unknown, **measured, "tokens/s": measured.pop("tokens") / measured["seconds"], "peak MB": peak_memory()}


def train_plainly(pipeline: Pipeline, data: Data, steps: int) -> dict[str, Any]:
    import torch

    model = new_model()
    if pipeline.segments:
        from brim.batch.attention import register

        model.set_attn_implementation(register())
    few, load = pipeline.plan(data.some())
    before = loss_of(model, load([step.what for step in few]))
    if pipeline.reads_lists:
        assert data.dataset
    began = time.perf_counter()
    epoch, load = pipeline.plan(data)
    prepared = time.perf_counter() - began
    tokens, slots, largest = (
        sum(data.lengths),
        sum(step.slots for step in epoch),
        max(epoch, key=lambda step: step.slots),
    )
    assert sum(step.tokens for step in epoch) == tokens
    assert sum(step.samples for step in epoch) == len(data.store)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    chosen = spread(epoch, steps)
    for step in load([largest.what]):
        take_step(model, optimizer, step)
    clock = Clock()
    learned = [take_step(model, optimizer, step) for step in load([step.what for step in chosen])]
    spent = clock.read()
    assert learned == [step.tokens - step.samples for step in chosen]  # the first token of a sample is nobody's target
    return {
        **{
            **spent,
            "tokens": sum(step.tokens for step in chosen),
            "padding %": 100 * (1 - tokens / slots),
            "prepare s": prepared,
        },
        **{
            "steps": len(epoch),
            "largest": largest.slots,
            "loss before": before,
            "loss after": loss_one_by_one(model, data),
        },
    }


def spread(epoch: list[Planned], count: int) -> list[Planned]:
    """So many steps that are like the epoch: one of every range of widths; of many such draws, that with its mean slots
    and tokens.
    """
    rng = np.random.default_rng(SEED)
    ordered = sorted(epoch, key=lambda step: step.width)
    edges = np.linspace(0, len(ordered), count + 1).astype(int)
    means = [sum(step.slots for step in epoch) / len(epoch), sum(step.tokens for step in epoch) / len(epoch)]

    def unlike(steps: list[Planned]) -> float:
        sums = sum(step.slots for step in steps), sum(step.tokens for step in steps)
        return max(abs(found / (count * mean) - 1) for found, mean in zip(sums, means, strict=True))

    draws = [[ordered[rng.integers(first, last)] for first, last in pairwise(edges)] for _ in range(500)]
    best = min(draws, key=unlike)
    return [best[place] for place in rng.permutation(count)]


def new_model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=ROW,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


class Clock:
    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}


def take_step(model: Any, optimizer: Any, step: Step) -> int:
    """One optimizer step; returns how many tokens were learned."""
    import torch

    learned = sum(int((labels[:, 1:] != IGNORED).sum()) for _, labels in step)
    for inputs, labels in step:
        (summed_loss(model, inputs, labels) / learned).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return learned


def summed_loss(model: Any, inputs: dict[str, Any], labels: Any) -> Any:
    """Labels are shifted, not logits, which would be copied: as transformers does it."""
    from torch.nn.functional import cross_entropy, pad

    # With a cache, transformers lets packed samples see each other.
    logits = model(**{**inputs, "use_cache": False}).logits
    targets = pad(labels, (0, 1), value=IGNORED)[:, 1:].reshape(-1)
    return cross_entropy(logits.view(len(targets), -1), targets, ignore_index=IGNORED, reduction="sum")


def loss_of(model: Any, steps: Iterable[Step]) -> float:
    import torch

    with torch.no_grad():
        parts = [
            (summed_loss(model, *micro).item(), int((micro[1][:, 1:] != IGNORED).sum()))
            for step in steps
            for micro in step
        ]
    return sum(part for part, _ in parts) / sum(count for _, count in parts)


def loss_one_by_one(model: Any, data: Data) -> float:
    """Without anybody's batching."""
    import torch

    model.set_attn_implementation("sdpa")
    rows = (torch.tensor([row]) for row in data.some().lists)
    return loss_of(model, [[({"input_ids": row}, row)] for row in rows])


def padded(data: Data, *, grouped: bool) -> tuple[list[Planned], Callable[[list[Any]], Iterable[Step]]]:
    """Batches of so many samples through transformers' collator."""
    from torch.utils.data import DataLoader
    from transformers import DataCollatorForLanguageModeling

    collator, lengths = DataCollatorForLanguageModeling(tokenizer(), mlm=False), data.lengths

    def load(batches: list[Any]) -> Iterable[Step]:
        return ([micro(batch)] for batch in DataLoader(data.dataset, batch_sampler=batches, collate_fn=collator))

    epoch: list[Planned] = []
    for batch in batches_of(lengths, data.grouped_size if grouped else data.random_size, SEED, grouped=grouped):
        width = max(lengths[row] for row in batch)
        epoch.append(Planned(batch, width, width * len(batch), sum(lengths[row] for row in batch), len(batch)))
    return epoch, load


def tokenizer() -> Any:
    """For those who want one; nothing is tokenised here."""
    from transformers import PreTrainedTokenizerFast

    from brim.data.tokenizer.gpt2 import END_OF_TEXT, gpt2_backend

    found = PreTrainedTokenizerFast(tokenizer_object=gpt2_backend(), eos_token=END_OF_TEXT, pad_token="!")
    assert found.pad_token_id == PAD
    return found


def micro(batch: Mapping[str, Any]) -> Micro:
    return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]


def trl_packed(data: Data, *, at_once: bool) -> tuple[list[Planned], Callable[[list[Any]], Iterable[Step]]]:
    from torch.utils.data import DataLoader
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows, collator = BUDGET // ROW, DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=True)
    packed = pack_dataset(data.dataset, ROW, strategy="bfd")
    held = packed["seq_lengths"][:]
    order = np.random.default_rng(SEED).permutation(len(packed)).tolist()

    def planned(step: Sequence[int]) -> Planned:
        tokens = sum(sum(held[row]) for row in step)
        return Planned(step, ROW, tokens, tokens, sum(len(held[row]) for row in step))

    def load(steps: list[Any]) -> Iterable[Step]:
        batches = steps if at_once else [[row] for step in steps for row in step]
        made = iter(DataLoader(packed, batch_sampler=batches, collate_fn=collator))
        return ([micro(batch) for batch in islice(made, 1 if at_once else len(step))] for step in steps)

    return [planned(order[start : start + rows]) for start in range(0, len(order), rows)], load


def brim(
    data: Data, *, at_once: bool = True, **options: Any
) -> tuple[list[Planned], Callable[[list[Any]], Iterable[Step]]]:
    """A step is one microbatch of the whole budget; or several, of a packed row each."""
    from torch.utils.data import DataLoader

    from brim.batch.torch import PlanBatchSampler, TokenDataset, as_is

    table, rows = (
        LengthCache(Ids.rows(len(data.store)), np.asarray(data.store.lengths)),
        1 if at_once else BUDGET // ROW,
    )
    plan = BatchPlan.build(table, BatchingConfig(token_budget=BUDGET // rows, seed=SEED, **options))
    flat = plan.config.packing is not None

    def planned(step: Sequence[Any]) -> Planned:
        batches = [rows.microbatch for rows in step]
        tokens = sum(batch.token_count for batch in batches)
        slots = tokens if flat else sum(batch.padded_token_count for batch in batches)
        return Planned(
            step, max(batch.max_len for batch in batches), slots, tokens, sum(len(batch.samples) for batch in batches)
        )

    def load(steps: list[Any]) -> Iterable[Step]:
        batches = [rows for step in steps for rows in step]
        made = iter(DataLoader(TokenDataset(data.store, flat=flat), batch_sampler=batches, collate_fn=as_is))
        return ([(batch.inputs(), batch.labels) for batch in islice(made, len(step))] for step in steps)

    epoch = list(PlanBatchSampler(plan, rank=0, world_size=1))
    return [planned(epoch[start : start + rows]) for start in range(0, len(epoch), rows)], load


PIPELINES = {
    BASE: Pipeline(lambda data: padded(data, grouped=False)),
    "HF group_by_length": Pipeline(lambda data: padded(data, grouped=True)),
    "TRL packing, rows in one": Pipeline(lambda data: trl_packed(data, at_once=True)),
    "TRL packing, row by row": Pipeline(lambda data: trl_packed(data, at_once=False)),
    "brim sorted windows": Pipeline(brim, reads_lists=False),
    "brim packed, rows in one": Pipeline(lambda data: brim(data, packing=PACKING), reads_lists=False, segments=True),
    "brim packed, row by row": Pipeline(
        lambda data: brim(data, packing=PACKING, at_once=False), reads_lists=False, segments=True
    ),
}


class Watch:
    """The clock of a trainer: told of every step, it starts behind the first one."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.spent: dict[str, float] = {}

    def step(self) -> None:
        if self.clock is None:
            self.clock = Clock()
        else:
            self.spent = self.clock.read()


def trl_trainer(data: Data, steps: int) -> dict[str, Any]:
    """TRL's own loop, row by row, which is what is fast here."""
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    model, watch, seen = new_model(), Watch(), list[int]()
    rows = BUDGET // ROW

    class Told(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.step()

    with tempfile.TemporaryDirectory() as output:
        options = SFTConfig(
            output,
            packing=True,
            max_length=ROW,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=rows,
            max_steps=steps + 1,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_grad_norm=CLIP,
            seed=SEED,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model, options, train_dataset=data.dataset, processing_class=tokenizer(), callbacks=[Told()]
        )
        collate = trainer.data_collator

        def counting(rows: list[dict[str, Any]]) -> Any:
            seen.append(sum(sum(row["seq_lengths"]) for row in rows))
            return collate(rows)

        trainer.data_collator = counting
        trainer.train()
    tokens = sum(seen[rows : rows * (steps + 1)])  # it may have looked ahead
    return {**watch.spent, "tokens": tokens, "largest": max(seen), "loss after": loss_one_by_one(model, data)}


def brim_trainer(data: Data, steps: int) -> dict[str, Any]:
    """What `brim train sft --pack` runs."""
    from transformers import LlamaForCausalLM

    from brim.train.config import SftConfig
    from brim.train.sft import StepReport, train_sft

    watch, reports = Watch(), list[StepReport]()

    def on_step(report: StepReport) -> None:
        reports.append(report)
        watch.step()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        new_model().save_pretrained(folder / "model")
        (folder / "data.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in data.lists))
        config = SftConfig(
            model=str(folder / "model"),
            data=str(folder / "data.jsonl"),
            output=str(folder / "run"),
            batching=BatchingConfig(token_budget=BUDGET, packing=PACKING),
            max_steps=steps + 1,
            learning_rate=RATE,
            schedule="constant",
            warmup_steps=0,
            clip_norm=CLIP,
            seed=SEED,
            save_every=None,
            tensorboard=False,
        )
        result = train_sft(config, on_step=on_step)
        model = LlamaForCausalLM.from_pretrained(result.model)
    tokens, largest = sum(report.tokens for report in reports[1:]), max(report.fill.slots for report in reports)
    return {**watch.spent, "tokens": tokens, "largest": largest, "loss after": loss_one_by_one(model, data)}


TRAINERS: dict[str, Callable[[Data, int], dict[str, Any]]] = {
    "TRL SFTTrainer, packing": trl_trainer,
    "brim train sft, packed": brim_trainer,
}
CONTENDERS = (*PIPELINES, *TRAINERS)


if __name__ == "__main__":
    main()
