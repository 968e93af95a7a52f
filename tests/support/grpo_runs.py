"""Made-up GRPO runs: reports as a run writes them, for tests of its page and of its live table.

They look like a run that learns sums: rewards rise, the entropy falls, and groups die because all attempts pass.
"""

import math

from brim.core.rng import uniform
from brim.train.grpo.page.runs import RunShown
from brim.train.grpo.report import Evaluation, RolloutReport, ShownAttempt, ShownGroup

STEPS = 4
"""Optimizer steps of a rollout."""
GROUPS, SIZE = 16, 8
OPTIONS = {
    "model": "models/sft-arithmetic",
    "dataset": "arithmetic",
    "output": "runs/grpo",
    "seed": 0,
    "rewards": ["answer", "0.2*format"],
    "group_size": SIZE,
    "prompts_per_step": 4,
    "steps_per_rollout": STEPS,
    "kl_coef": 0.02,
    "learning_rate": 1e-4,
    "reference": None,
    "lora": {"rank": 8, "alpha": 16},
}


def create_run(rollouts=60, *, name="runs/grpo", seed=0, planned=None, evaluate=10, is_over=None, texts=(), **changes):
    """Return a run that learns, with an evaluation after every `evaluate` rollouts; 0 for none.

    `texts` take the place of what the model writes; `changes` replace fields of every report.
    """
    planned = rollouts if planned is None else planned
    reports = [create_rollout(at, planned, seed=seed, evaluate=evaluate, texts=texts) for at in range(1, rollouts + 1)]
    return RunShown(
        name=name,
        rollouts=[RolloutReport(**{**vars(one), **changes}) for one in reports],
        before=create_evaluation(0.0, seed=seed, texts=texts) if evaluate else None,
        options={**OPTIONS, "seed": seed, "output": name},
        is_over=rollouts >= planned if is_over is None else is_over,
    )


def create_rollout(at, planned, *, seed=0, evaluate=10, texts=()):
    """Return the report of rollout number `at`: a function of the seed and its number."""
    draws = iter(uniform(64, seed=seed, purpose="made-up rollout", epoch=at).tolist())
    learned = progress(at / planned, seed)
    passed = 0.12 + 0.78 * learned + 0.08 * (next(draws) - 0.5)
    failed = int(3 * next(draws)) if at % 7 == 3 else 0
    attempts = GROUPS * SIZE
    cut = int(attempts * (0.12 * (1 - learned) + 0.02 * next(draws)))
    dead_low, dead_high = int(GROUPS * 0.2 * (1 - learned) * 2 * next(draws)), int(GROUPS * 0.5 * learned * next(draws))
    middle = 22 + 30 * learned + 4 * next(draws)
    tokens = int(attempts * middle)
    rollout, rewards, training = 4 + 2 * middle / 40 + next(draws), 0.2 + 0.2 * next(draws), 3 + 0.6 * next(draws)
    is_due = bool(evaluate) and (at % evaluate == 0 or at == planned)
    form = 0.5 + 0.45 * min(1.0, 2 * learned)
    return RolloutReport(
        rollout=at,
        step=at * STEPS,
        steps=planned * STEPS,
        version=(at - 1) * STEPS,
        groups=GROUPS,
        dead=dead_low + dead_high,
        dead_low=dead_low,
        replaced=dead_high // 2,
        attempts=attempts,
        trained=attempts - cut - failed,
        truncated=cut,
        masked=cut,
        failures={"RewardTimeout": failed} if failed else {},
        reward=passed + 0.2 * form,
        reward_std=0.3,
        pass_rate=passed,
        parts={"answer": passed, "format": form},
        finish_reasons={"eos": attempts - cut - 9, "stop": 9, "length": cut},
        length=middle * 1.08,
        lengths=(3, int(middle * 0.7), int(middle), int(middle * 1.4), 96),
        turns=1.0,
        loss=-0.02 * next(draws),
        grad_norm=0.4 + 0.3 * next(draws) + (6 if at == 23 else 0),
        learning_rate=1e-4,
        entropy=1.3 - 0.9 * learned + 0.06 * next(draws),
        kl=0.09 * learned + 0.004 * next(draws),
        policy_kl=0.001 + 0.002 * next(draws),
        clipped_low=0.01 + 0.01 * next(draws),
        clipped_high=0.02 + 0.02 * next(draws),
        mismatch=2e-6 + 1e-6 * next(draws),
        correction=None,
        rollout_fill=0.7 + 0.1 * next(draws),
        fill=0.93 + 0.05 * next(draws),
        rollout_tokens=tokens,
        train_tokens=tokens + GROUPS * 30,
        rollout_seconds=rollout,
        reward_seconds=rewards,
        train_seconds=training,
        seconds=rollout + rewards + training + 0.3 + (2.5 if is_due else 0),
        evaluation=create_evaluation(learned, seed=seed, texts=texts) if is_due else None,
        shown=tuple(create_group(task, learned, attempts=SIZE, texts=texts) for task in range(100 + at, 104 + at)),
    )


def progress(share, seed=0):
    """How much is learned after a share of the run, from 0 to 1. Seeds differ in when they learn."""
    return 1 / (1 + math.exp(-9 * (share - 0.4 - 0.08 * (seed % 3)))) - 0.02


def create_evaluation(learned, *, seed=0, tasks=64, attempts=2, texts=()):
    draw = uniform(1, seed=seed, purpose="made-up evaluation", epoch=int(1000 * max(learned, 0.0))).tolist()[0]
    passed = 0.14 + 0.74 * learned + 0.04 * (draw - 0.5)
    return Evaluation(
        tasks=tasks,
        attempts=tasks * attempts,
        reward=passed + 0.15,
        reward_error=math.sqrt(passed * (1 - passed) / tasks),
        pass_rate=passed,
        length=30.0,
        failures={},
        shown=tuple(create_group(task, learned, attempts=attempts, texts=texts) for task in range(4)),
    )


def create_group(task, learned, *, attempts, texts=()):
    a, b = 12 + 7 * task % 80, 9 + 13 * task % 70
    return ShownGroup(
        task=f"sum-{task}",
        prompt=f"Work out the sum. Think inside <think> tags and answer inside <answer> tags.\nWhat is {a} + {b}?",
        answer=str(a + b),
        attempts=tuple(create_attempt(a, b, at, learned, task, texts) for at in range(attempts)),
    )


def create_attempt(a, b, at, learned, task=0, texts=()):
    """Return an attempt that passes if enough is learned for its number."""
    passed = learned > (at * 0.37 + task * 0.21) % 1
    right = a + b if passed else a + b + 10 - at
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    text = f"<think>{tens} and {ones} make {right}.</think>\n<answer>{right}</answer>"
    if learned < 0.3 and not passed:
        text = f"{a} plus {b} is {right}, because " + "the sum of the sum of " * (at + 1)
    text = texts[(at + task) % len(texts)] if texts else text
    return ShownAttempt(
        text=text,
        reward=passed + 0.2 * (learned > 0.3),
        parts={"answer": float(passed), "format": float(learned > 0.3)},
        finish_reason="eos" if learned > 0.3 or passed else "length",
        tokens=max(1, len(text) // 3),
        turns=1,
        passed=passed,
        failure=None,
    )
