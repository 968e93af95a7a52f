"""GRPO beside TRL's `GRPOTrainer`: what a step costs, whether it is the same step, and what is learned.

One small Llama for all (4 layers of 128, float32, one thread, random weights), 16 prompts with 8 responses each in a
step, one optimizer step for each rollout, no KL. What TRL does is described in `grpo_peers.py`.

    small vocabulary   260 tokens; prompts of 6-9 tokens, responses of 14 on average and 32 at most
    large vocabulary   32,000 tokens; the same lengths
    longer responses   32,000 tokens; prompts of 24-96 tokens, responses of 58 on average and 128 at most; half an hour,
                       so only if asked for
    gradient           the same responses go through both: gradient and loss of the step on them
    learning           sums of two numbers below 100, from the same warm start (`train_sft`), by an exact-match reward

A cost is measured with a frozen policy: the learning rate is 1e-30, so that nothing is skipped and no weight moves. The
length of every response is fixed beforehand, and the reward is a hash of its text, so that no group is without variance
and both sides compute the same tokens in every step. A measurement is a process of its own that trains a little to warm
up, then takes a step that does not count and some that do; contenders take turns, and the median of the repeats counts.
CPU seconds are those of a whole step; `rollout s` and `training s` are its parts. `spread %` is the difference between
the slowest and the fastest repeat. `peak MB` is the peak of the resident memory above what it was when the model had
been loaded: gradients and the optimizer's moments are part of it. `x brim` compares response tokens per CPU second.

In the part on learning, the learning rate is chosen for each side by its sampled accuracy on validation problems, with
one seed; then both sides train with three other seeds, and are tested on problems that played no part in training or
tuning. TRL divides the loss by the tokens of all groups, brim by those of groups whose rewards differ.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import grpo_peers as peers
import numpy as np
from grpo_peers import END, GROUP, GROUPS, Marks, Setting, Work
from harness import Report, Row, peak_memory, print_table
from llm import Target

from brim.analyze.capacity.memory import resident_memory

FROZEN = 1e-30
"""Learning rate that moves no weight of float32."""
BRIM, TRL, TRL_WHOLE, TRL_PATCHED = "brim", "TRL, 8 x 16", "TRL, 1 x 128", "TRL, responses only"
MICRO = {TRL: 16, TRL_WHOLE: 128, TRL_PATCHED: 16}
"""Responses of a micro-batch. The names say micro-batches x responses."""
UNCHANGED = (TRL, TRL_WHOLE)
"""TRL as it is. Targets compare with the fastest of these."""
SETTINGS = {
    "small": Setting(vocabulary=260, prompts=(6, 9), median=12, longest=32),
    "large": Setting(vocabulary=32_000, prompts=(6, 9), median=12, longest=32),
    "long": Setting(vocabulary=32_000, prompts=(24, 96), median=50, longest=128),
}
TITLES = {"small": "small vocabulary", "large": "large vocabulary", "long": "longer responses"}
WARMUP = Setting(vocabulary=260, prompts=(6, 9), median=3, longest=4)
COLUMNS = {
    **{"rollout s": ".2f", "training s": ".2f", "spread %": ".0f", "tokens / CPU s": ",.0f", "x brim": ".2f"},
    **{"peak MB": ",.0f", "resident MB": ",.0f"},
}
TOLERANCE = 1e-4
SUMS, ANSWER = 98, 8
"""Tokens of the vocabulary of sums, and upper limit of those of an answer."""
SPLITS = {
    "warm": slice(0, 3000),
    "train": slice(3000, 8000),
    "validation": slice(8000, 9000),
    "test": slice(9000, None),
}
PARTS = (*SETTINGS, "gradient", "learning")
DEFAULT = ("small", "large", "gradient", "learning")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    steps: tuple[int, int, int] = (6, 2, 1)
    """Steps that count in each measurement, by setting."""
    repeats: int = 3
    learned: int = 120
    """Optimizer steps of a run that learns."""
    warmed: int = 225
    """Optimizer steps of the warm start."""
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    seeds: tuple[int, ...] = (1, 2, 3)
    problems: int = 512
    """Test problems."""


FULL = Effort()
QUICK = Effort(steps=(1, 1, 1), repeats=1, learned=3, warmed=20, rates=(1e-4,), seeds=(1, 2), problems=32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one step, one repeat, hardly any learning")
    parser.add_argument("--repeats", type=int, help="how often every cost is measured")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=DEFAULT, help=f"default: {', '.join(DEFAULT)}")
    parser.add_argument("--one", nargs=3, metavar=("PART", "CONTENDER", "JSON"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    if options.one:
        part, contender, given = options.one
        with contextlib.redirect_stdout(sys.stderr):
            measured = in_child(part, contender, json.loads(given))
        print(json.dumps(measured))
        return
    report = Report("grpo")
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only:
            if part == "gradient":
                targets += compare_gradients(report, Path(folder))
            elif part == "learning":
                targets += compare_learning(report, Path(folder), effort)
            else:
                targets += compare_costs(report, part, effort, options.repeats or effort.repeats)
    words = {True: "holds", False: "missed", None: "not measured"}
    report.tables.append({"title": "Targets", "subject": "targets", "rows": [one._asdict() for one in targets]})
    print_table("Targets", ["", "target", "reached", ""], [(*one[:3], words[one.holds]) for one in targets])
    print(f"written: {report.close()}")


def call_child(part: str, contender: str, **given: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", part, contender, json.dumps(given)]
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **alone})
    if done.returncode:
        raise SystemExit(f"{part}, {contender} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# Costs


def compare_costs(report: Report, part: str, effort: Effort, repeats: int) -> Iterator[Target]:
    contenders = [BRIM, *(MICRO if report.peer("trl", "trl") else ())]
    steps = dict(zip(SETTINGS, effort.steps, strict=True))[part]
    measured: dict[str, list[dict[str, float]]] = {one: [] for one in contenders}
    for _ in range(repeats):
        for one in contenders:
            measured[one].append(call_child(part, one, steps=steps))
    rows = {one: cost_row(one, measured[one]) for one in contenders}
    for row in rows.values():
        row.columns["tokens / CPU s"] = row.columns["tokens"] / row.cpu
        row.columns["x brim"] = row.cpu / rows[BRIM].cpu
    setting = SETTINGS[part]
    title = (
        f"{TITLES[part]}: vocabulary of {setting.vocabulary:,}, {GROUPS} x {GROUP} responses, "
        f"{rows[BRIM].columns['tokens']:,} tokens in a step; seconds of a step, median of {repeats}"
    )
    report.table(title, rows.values(), COLUMNS, subject=part, repeats=repeats, measured=measured)
    yield from cost_targets(part, rows)


def cost_row(name: str, measured: Sequence[Mapping[str, float]]) -> Row:
    middle = {key: median(one[key] for one in measured) for key in measured[0]}
    cpus = [one["cpu"] for one in measured]
    row = Row(name, middle.pop("seconds"), middle.pop("cpu"), len(measured))
    row.columns.update(middle)
    row.columns["spread %"] = 100 * (max(cpus) - min(cpus)) / median(cpus)
    row.columns["tokens"] = int(row.columns["tokens"])
    return row


def cost_targets(part: str, rows: Mapping[str, Row]) -> Iterator[Target]:
    least = {"small": 1.8}.get(part, 2.5)
    what = f"tokens per CPU second, {TITLES[part]}"
    fastest = min((rows[one] for one in UNCHANGED if one in rows), key=lambda row: row.cpu, default=None)
    brim = rows[BRIM]
    if fastest is None:
        yield Target(what, f">= {least}x TRL", "-", None)
        return
    ratio = fastest.cpu / brim.cpu
    reached = f"{ratio:.2f}x ({brim.cpu:.2f} and {fastest.cpu:.2f} CPU s; {fastest.name})"
    yield Target(what, f">= {least}x TRL", reached, ratio >= least)
    if part != "small":
        smallest = min(rows[one].columns["peak MB"] for one in UNCHANGED)
        own = brim.columns["peak MB"]
        reached = f"{own / smallest:.2f} ({own:,.0f} and {smallest:,.0f} MB)"
        yield Target(f"peak memory, {TITLES[part]}", "<= 1/2 of TRL's", reached, 2 * own <= smallest)


# The same step


def compare_gradients(report: Report, folder: Path) -> Iterator[Target]:
    if not report.peer("trl", "trl"):
        return
    found = {one: call_child("gradient", one, folder=str(folder)) for one in (BRIM, TRL)}
    gradients = {one: np.load(folder / f"{one}.npy") for one in found}
    norms = {one: float(np.linalg.norm(gradient)) for one, gradient in gradients.items()}
    apart = float(np.linalg.norm(gradients[BRIM] - gradients[TRL])) / norms[TRL]
    lines = [(one, f"{norms[one]:.6f}", f"{found[one]['loss']:.6f}") for one in found]
    print_table("the same responses: one step", ["", "norm of the gradient", "loss"], lines)
    report.tables.append({"title": "gradient", "subject": "gradient", "apart": apart, "norms": norms, "found": found})
    what = "gradient beside TRL's, for the same responses"
    yield Target(what, f"<= {TOLERANCE:.0e}", f"{apart:.1e}", apart <= TOLERANCE)


# Learning


def compare_learning(report: Report, folder: Path, effort: Effort) -> Iterator[Target]:
    sides = [BRIM, *([TRL] if report.peer("trl", "trl") else ())]
    warm = str(folder / "warm")
    start = call_child("learning", "warm start", model=warm, steps=effort.warmed, count=effort.problems)
    common = {"warm": warm, "steps": effort.learned, "count": effort.problems}
    tuned: dict[str, dict[float, float]] = {one: {} for one in sides}
    for rate in effort.rates:
        for one in sides:
            found = call_child("learning", one, **common, rate=rate, seed=0, split="validation")
            tuned[one][rate] = found["sampled"]
    runs: dict[str, list[dict[str, float]]] = {one: [] for one in sides}
    best = {one: max(tuned[one], key=lambda rate: tuned[one][rate]) for one in sides}
    for seed in effort.seeds:
        for one in sides:
            runs[one].append(call_child("learning", one, **common, rate=best[one], seed=seed, split="test"))
    lines = [("warm start", "-", *(f"{start[key]:.3f} ± {start[f'{key} error']:.3f}" for key in ("sampled", "greedy")))]
    lines += [(one, f"{best[one]:.0e}", *(shown(runs[one], key) for key in ("sampled", "greedy"))) for one in sides]
    title = f"accuracy on {effort.problems} held-out problems after {effort.learned} steps, {len(effort.seeds)} seeds"
    print_table(title, ["", "rate", "sampled", "greedy"], lines)
    by_rate = [(one, *(f"{tuned[one][rate]:.3f}" for rate in effort.rates)) for one in sides]
    print_table("sampled accuracy on validation problems by rate", ["", *map("{:.0e}".format, effort.rates)], by_rate)
    facts = {"start": start, "tuned": tuned, "best": best, "runs": runs}
    report.tables.append({"title": title, "subject": "learning", **facts})
    yield from (learning_target(key, runs) for key in ("sampled", "greedy"))


def shown(runs: Sequence[Mapping[str, float]], key: str) -> str:
    """Return the mean over the seeds with its standard error, and the value of each seed."""
    values = [run[key] for run in runs]
    return f"{mean(values):.3f} ± {error(runs, key):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def error(runs: Sequence[Mapping[str, float]], key: str) -> float:
    """Return the standard error of the mean: that over seeds, or that over problems if it is larger."""
    values = [run[key] for run in runs]
    return max(stdev(values) / len(values) ** 0.5, mean(run[f"{key} error"] for run in runs))


def learning_target(key: str, runs: Mapping[str, Sequence[Mapping[str, float]]]) -> Target:
    what, target = f"learning, {key} accuracy", "not behind TRL by more than 2 standard errors"
    if TRL not in runs:
        return Target(what, target, "-", None)
    apart = mean(run[key] for run in runs[BRIM]) - mean(run[key] for run in runs[TRL])
    noise = (error(runs[BRIM], key) ** 2 + error(runs[TRL], key) ** 2) ** 0.5
    return Target(what, target, f"{apart:+.3f} ± {noise:.3f}", apart >= -2 * noise)


# What follows runs in the contender's own process.


def in_child(part: str, contender: str, given: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    if part == "gradient":
        return measure_gradient(contender, **given)
    if part == "learning":
        return warm_start(**given) if contender == "warm start" else learn(contender, **given)
    return measure_cost(contender, SETTINGS[part], **given)


def measure_cost(contender: str, setting: Setting, *, steps: int) -> dict[str, float]:
    import torch

    train = train_brim_fixed if contender == BRIM else train_trl_fixed
    if contender == TRL_PATCHED:
        peers.score_responses_only()
    train(peers.new_model(WARMUP.vocabulary), Work.draw(WARMUP), WARMUP.vocabulary, steps=1, contender=contender)
    work = Work.draw(setting)
    model = peers.new_model(setting.vocabulary)
    weights = [weight.detach().clone() for weight in model.parameters()]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident_memory(os.getpid()) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    marks = train(model, work, setting.vocabulary, steps=1 + steps, contender=contender)
    peak = peak_memory()
    assert all(torch.equal(old, new) for old, new in zip(weights, model.parameters(), strict=True)), "weights moved"
    assert marks.tokens == [work.tokens] * len(marks.tokens)
    return {**marks.measured(), "peak MB": peak - before, "resident MB": peak}


def hashed(text: str) -> float:
    """Return a reward that is as good as random."""
    return float(zlib.crc32(text.encode()) % 1000)


def train_trl_fixed(model: Any, work: Work, vocabulary: int, *, steps: int, contender: str) -> Marks:
    tokenizer = peers.new_tokenizer(vocabulary, end=True)
    peers.fix_lengths(model, work)
    marks = Marks()
    with tempfile.TemporaryDirectory() as folder:
        peers.train_trl(
            model,
            tokenizer,
            [tokenizer.decode(ids) for ids in work.prompts],
            lambda completions, **_: [hashed(text) for text in completions],
            Path(folder),
            marks=marks,
            micro=MICRO[contender],
            max_completion_length=work.longest,
            max_steps=steps,
            learning_rate=FROZEN,
        )
    return marks


def train_brim_fixed(model: Any, work: Work, vocabulary: int, *, steps: int, contender: str) -> Marks:
    tokenizer = peers.new_tokenizer(vocabulary, end=False)
    marks = Marks()
    options = {"max_steps": steps, "learning_rate": FROZEN, "max_new_tokens": work.longest}
    with fixed_lengths(work), tempfile.TemporaryDirectory() as folder:
        train_brim(
            model,
            tokenizer,
            [tokenizer.decode(ids) for ids in work.prompts],
            lambda prompt, response, example: hashed(response),
            Path(folder),
            marks=marks,
            **options,
        )
    return marks


@contextlib.contextmanager
def fixed_lengths(work: Work) -> Iterator[None]:
    """Let brim end each response to a prompt of `work` at its length."""
    from brim.generate.processor import SequenceProcessor

    original = SequenceProcessor.stream
    limits = work.by_prompt(work.limits)

    def stream(self: Any, prompts: Any, *rest: Any, **others: Any) -> Any:
        return original(self, prompts, *rest, limits=[limits[tuple(ids.tolist())] for ids in prompts], **others)

    SequenceProcessor.stream = stream
    try:
        yield
    finally:
        SequenceProcessor.stream = original


def train_brim(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    reward: Callable[..., float],
    folder: Path,
    *,
    answers: Sequence[str] | None = None,
    marks: Marks | None = None,
    **options: Any,
) -> Any:
    """Train in place, and return the rollouts. Responses that are cut off are trained on, as TRL does."""
    from brim.generate.prompts.example import Example
    from brim.train.grpo.config import GrpoConfig
    from brim.train.grpo.hooks import GrpoHooks
    from brim.train.grpo.rolling import Roller
    from brim.train.grpo.run import train_grpo

    marks = marks or Marks()
    rollouts: list[Any] = []
    roll = Roller.roll

    def timed(self: Any, first: int) -> Any:
        with marks.rolling():
            rollouts[:] = [roll(self, first)]
        return rollouts[0]

    def on_rollout(found: Any) -> None:
        marks.tokens.append(found.rollout_tokens)
        marks.end_step()

    given = {
        "output": str(folder / "run"),
        "prompts_per_step": GROUPS,
        "group_size": GROUP,
        "gen_batch_size": GROUPS * GROUP,  # as many as TRL generates at once
        "loss": "dapo",
        "mask_truncated": False,
        "resample": 0,
        "warmup_steps": 0,
        "eval_prompts": 0,
        "tensorboard": False,
        "save_every": None,
    }
    texts = [None] * len(prompts) if answers is None else answers
    Roller.roll = timed
    try:
        result = train_grpo(
            GrpoConfig(**{**given, **options}),
            model=model,
            tokenizer=tokenizer,
            rewards=reward,
            examples=[Example(prompt, prompt, answer) for prompt, answer in zip(prompts, texts, strict=True)],
            hooks=GrpoHooks(on_rollout=on_rollout),
        )
    finally:
        Roller.roll = roll
    return result.rollouts, rollouts[0]


def measure_gradient(contender: str, *, folder: str) -> dict[str, float]:
    """Take a step, and write its gradient to `folder`. brim comes first, and writes the responses that TRL is given."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    setting = SETTINGS["small"]
    work, model = Work.draw(setting), peers.new_model(setting.vocabulary)
    gradients: list[Any] = []

    def keep(*_: Any) -> None:
        found = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        gradients.append(torch.cat(found).numpy().copy())

    register_optimizer_step_pre_hook(keep)
    drawn = Path(folder) / "responses.json"
    once: dict[str, Any] = {"max_steps": 1, "learning_rate": FROZEN}
    tokenizer = peers.new_tokenizer(setting.vocabulary, end=contender != BRIM)
    prompts = [tokenizer.decode(ids) for ids in work.prompts]
    with tempfile.TemporaryDirectory() as output:
        if contender == BRIM:
            with fixed_lengths(work):
                reports, rollout = train_brim(
                    model,
                    tokenizer,
                    prompts,
                    lambda prompt, response, example: hashed(response),
                    Path(output),
                    max_new_tokens=work.longest,
                    clip_norm=0,
                    **once,
                )
            found = [
                (one.prompt_ids.tolist(), [at.token_ids.tolist() for at in one.attempts]) for one in rollout.groups
            ]
            drawn.write_text(json.dumps(found))
            loss = reports[0].loss
        else:
            # brim has no end token here, so that it is an ordinary one.
            plain, without = peers.new_tokenizer(setting.vocabulary, end=False), {"skip_special_tokens": True}
            trainer = peers.train_trl(
                model,
                tokenizer,
                prompts,
                lambda completion_ids, **_: [hashed(text) for text in plain.batch_decode(completion_ids, **without)],
                Path(output),
                responses={tuple(prompt): ids for prompt, ids in json.loads(drawn.read_text())},
                micro=MICRO[contender],
                max_completion_length=work.longest,
                max_grad_norm=0,
                logging_strategy="steps",
                logging_steps=1,
                **once,
            )
            loss = trainer.state.log_history[0]["loss"]
    np.save(Path(folder) / f"{contender}.npy", gradients[0])
    return {"loss": loss}


def problems(split: str, count: int | None = None) -> list[tuple[str, str]]:
    """Return prompts and answers: sums of two numbers below 100, dealt to splits at random. Answers begin with the last
    digit, as they are easiest to learn.
    """
    every = np.random.default_rng(7).permutation(100 * 100)
    chosen = every[SPLITS[split]][:count].tolist()
    return [(f"{at // 100:02}+{at % 100:02}= ", f"{at // 100 + at % 100:03}"[::-1]) for at in chosen]


def warm_start(*, model: str, steps: int, count: int) -> dict[str, float]:
    """Fine-tune a model a little, and leave it in a directory with its tokenizer. Returns its accuracy."""
    from brim import BatchingConfig
    from brim.train.config import SftConfig
    from brim.train.sft import train_sft

    started, tokenizer = peers.new_model(SUMS, end=END), peers.new_tokenizer(SUMS, end=True)
    rows = [{"prompt": prompt, "response": answer} for prompt, answer in problems("warm")]
    with tempfile.TemporaryDirectory() as folder:
        config = SftConfig(
            output=f"{folder}/run",
            learning_rate=1e-3,
            max_steps=steps,
            schedule="constant",
            epochs=100,
            batching=BatchingConfig(token_budget=1024),
            tensorboard=False,
            save_every=None,
        )
        train_sft(config, model=started, tokenizer=tokenizer, data=rows)
    started.save_pretrained(model)
    tokenizer.save_pretrained(model)
    return accuracy(started, tokenizer, "test", count)


def accuracy(model: Any, tokenizer: Any, split: str, count: int) -> dict[str, float]:
    """Return the share of right answers, sampled (8 for each problem) and greedy, with their standard errors."""
    from brim.generate.config import GenerationConfig
    from brim.generate.processor import SequenceProcessor

    some = problems(split, count)
    found: dict[str, float] = {}
    for name, samples in (("sampled", GROUP), ("greedy", 1)):
        config = GenerationConfig(max_new_tokens=ANSWER, do_sample=name == "sampled", gen_batch_size=128, seed=0)
        right = np.zeros((len(some), samples))
        for response in SequenceProcessor(model, tokenizer, config).stream([prompt for prompt, _ in some], samples):
            right[response.prompt, response.sample] = response.text == some[response.prompt][1]
        shares = right.mean(axis=1)
        found[name] = float(shares.mean())
        found[f"{name} error"] = float(shares.std(ddof=1) / len(shares) ** 0.5)
    return found


def learn(contender: str, *, warm: str, steps: int, count: int, rate: float, seed: int, split: str) -> dict[str, float]:
    """Train from the warm start, and return the accuracy on problems of a split."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(warm), AutoTokenizer.from_pretrained(warm)
    prompts, answers = zip(*problems("train"), strict=True)
    marks = Marks()
    common: dict[str, Any] = {"max_steps": steps, "learning_rate": rate, "seed": seed, "marks": marks}
    with tempfile.TemporaryDirectory() as folder:
        if contender == BRIM:
            train_brim(
                model,
                tokenizer,
                prompts,
                lambda prompt, response, example: float(response == example.answer),
                Path(folder),
                answers=answers,
                max_new_tokens=ANSWER,
                **common,
            )
        else:
            peers.train_trl(
                model,
                tokenizer,
                prompts,
                lambda completions, answer, **_: [float(a == b) for a, b in zip(completions, answer, strict=True)],
                Path(folder),
                columns={"answer": answers},
                micro=MICRO[contender],
                max_completion_length=ANSWER,
                **common,
            )
    return {**accuracy(model, tokenizer, split, count), "cpu": marks.ends[-1] - marks.ends[0]}


if __name__ == "__main__":
    main()
