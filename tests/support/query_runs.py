"""Made-up runs of the query mutator: reports as a run writes them, for tests of its page.

They look like a run that learns: one mutator suits each kind of question, and it is chosen more and more often.
"""

import math

from brim.core.rng import permutation, uniform
from brim.train.query.report import Evaluation, Example, Pair, UpdateReport

KINDS = ("arithmetic", "date format", "unit conversion", "list of words")
MUTATORS = ("add_context", "break_into_steps", "crossover", "expand", "rephrase", "shorten")
SUITS = {"arithmetic": 1, "date format": 0, "unit conversion": 3, "list of words": 5}
ENVS = 16
STEPS = 32

HOSTILE = {
    "script": "</script><script>window.hit = 1</script>",
    "image": '<img src=x onerror="window.hit = 1">',
    "template": "${verdict} $title {{7*7}} %s",
    "link": '<a href="javascript:window.hit=1">javascript:window.hit=1</a>',
    "bidi": "abc \u202e fed \u2066 xyz \u200b",
    "ansi": "\x1b[31mred\x1b[0m \x07\x08",
    "nul": "a\x00b\ud800c\u2028d",
    "long": "x" * 100_000,
    "lines": "\n".join(f"line {i}" for i in range(400)),
    "entities": "&lt;b&gt; &amp; <!-- --> ]]> \" ' `",
}
"""Answers of a model that a page must show and never obey."""


def create_run(updates=60, *, planned=None, kinds=KINDS, mutators=MUTATORS, invalid=0.02, seed=0, examples=4):
    """Return reports of a run that learns, each a function of the seed and its number."""
    return [
        create_update(at, updates if planned is None else planned, updates, kinds, mutators, invalid, seed, examples)
        for at in range(1, updates + 1)
    ]


def create_update(at, planned, updates, kinds, mutators, invalid, seed, examples):
    """Return the report of update number `at` of `updates`."""
    steps = ENVS * STEPS
    draws = iter(uniform(8 * steps, seed=seed, purpose="made-up run", epoch=at).tolist())
    learned = 1 / (1 + math.exp(-9 * (at / updates - 0.45)))  # from 0 to 1 over the run
    chosen, failed, rewards = {}, {}, []
    for _ in range(steps):
        kind = kinds[int(next(draws) * len(kinds))]
        suits = SUITS.get(kind, len(kind)) % len(mutators)
        choice = suits if next(draws) < 0.85 * learned else int(next(draws) * len(mutators))
        if next(draws) < invalid * (4 if 20 < at < 25 else 1):
            name = "Timeout" if next(draws) < 0.7 else "RewardFailed"
            failed[name] = failed.get(name, 0) + 1
            continue
        reward = min(1.0, max(0.0, (0.75 if choice == suits else 0.28) + 0.5 * (next(draws) - 0.5)))
        rewards.append(reward)
        cells = chosen.setdefault(kind, {})
        count, total = cells.get(mutators[choice], (0, 0.0))
        cells[mutators[choice]] = (count + 1, total + reward)
    reward = sum(rewards) / len(rewards) if rewards else None
    episodes = len(rewards) // 3
    rollout = 5.2 + 2.5 * next(draws) + (6 if 20 < at < 25 else 0)
    policy, learning, other = 0.35 + 0.1 * next(draws), 0.9 + 0.2 * next(draws), 0.05
    calls = 2 * steps
    cached = int(calls * 0.18 * learned)
    return UpdateReport(
        update=at,
        updates=planned,
        env_steps=at * steps,
        steps=steps,
        invalid=failed,
        fallbacks=0,
        reward=reward,
        episodes=episodes,
        solved=int(episodes * (0.15 + 0.6 * learned)),
        episode_return=reward * 3 * (0.9 + 0.2 * next(draws)) if episodes else None,
        calls=calls,
        cached=cached,
        seconds=rollout + learning + other,
        rollout_seconds=rollout,
        policy_seconds=policy,
        update_seconds=learning,
        server_seconds=(calls - cached) * 0.08 * (0.8 + 0.4 * next(draws)),
        queue_seconds=(calls - cached) * 0.012 * next(draws),
        fill=0.82 + 0.15 * next(draws),
        metrics=_metrics(learned, len(mutators), draws) if rewards else {},
        chosen=chosen,
        examples=tuple(create_example(i + at * examples, kinds, mutators, learned) for i in range(examples)),
    )


def _metrics(learned, mutators, draws):
    return {
        "policy_loss": -0.02 * next(draws),
        "value_loss": 0.4 * (1 - 0.7 * learned),
        "entropy": math.log(mutators) * (1 - 0.72 * learned) + 0.06 * (next(draws) - 0.5),
        "kl": 0.004 + 0.018 * next(draws) * (1.4 - learned),
        "clip_fraction": 0.05 + 0.2 * next(draws) * (1.3 - learned),
        "explained_variance": -1.6 * next(draws) * (1 - learned) ** 6 + 0.8 * learned,
        "passes": 4.0,
        "learning_rate": 3e-4,
        "grad_norm": 0.5,
    }


QUESTIONS = {
    "arithmetic": (
        "What is {a} times {b} plus 7?",
        "Work this out one step at a time, then give only the final number.\n"
        "1. Multiply {a} by {b}.\n2. Add 7 to the product.\nWhat is the final number?",
        "{wrong}",
        "{a} times {b} is {product}. Adding 7 gives {right}.",
    ),
    "date format": (
        "When was the treaty of {a} March 16{b} signed?",
        "Answer with a date in the form YYYY-MM-DD and nothing else. The calendar is Gregorian. When was the treaty of "
        "{a} March 16{b} signed?",
        "It was signed in the spring of that year, I believe.",
        "16{b}-03-{a}",
    ),
}
PLAIN = (
    "Which {kind} goes with number {a}?",
    "Considering {kind} only, and naming exactly one: which one goes with number {a}?",
    "There are many, and it depends on what one means by that.",
    "number {right}",
)


def texts(at, kind):
    """Return a question, how it is rewritten, and an answer to each."""
    a, b = 11 + at * 7 % 17, 12 + at * 5 % 80
    fields = {"a": a, "b": b, "product": a * b, "right": a * b + 7, "wrong": a * b - 3, "kind": kind}
    return tuple(text.format(**fields) for text in QUESTIONS.get(kind, PLAIN))


def create_example(at, kinds=KINDS, mutators=MUTATORS, learned=0.5):
    kind = kinds[at % len(kinds)]
    question, rewritten, poor, good = texts(at, kind)
    suits = SUITS.get(kind, len(kind)) % len(mutators)
    well = learned > 0.5 or at % 3 == 0
    return Example(
        kind=kind,
        question=question,
        before=question if at % 2 else f"Please: {question}",
        mutator=mutators[suits if well else at % len(mutators)],
        query=rewritten if well else question.replace("?", ", please?"),
        answer=good if well else poor,
        reward=0.75 if well else 0.25,
    )


def create_evaluation(pairs=80, *, kinds=KINDS, mutators=MUTATORS, gain=0.4, failed=0, seed=0):
    """Return pairs whose reward changes by `gain` on average, some by nothing, and the first `failed` without one."""
    draws = uniform(2 * pairs, seed=seed, purpose="made-up pairs").tolist()
    order = permutation(pairs, seed=seed, purpose="made-up order").tolist()
    made = []
    for at in range(pairs):
        kind = kinds[order[at] % len(kinds)]
        question, rewritten, poor, good = texts(at, kind)
        before = round(0.2 + 0.3 * draws[2 * at], 3)
        change = 0.0 if at % 7 == 3 else gain * 2 * (draws[2 * at + 1] - 0.1 if at % 9 else -0.25)
        suits = SUITS.get(kind, len(kind)) % len(mutators)
        made.append(
            Pair(
                id=f"{kind.replace(' ', '-')}-{at}",
                kind=kind,
                question=question,
                reference=None if at % 11 == 5 else good,
                answer=poor,
                reward=before,
                query=rewritten if change else question,
                mutators=() if not change else (mutators[suits],) if at % 3 else (mutators[4], mutators[suits]),
                new_answer=(good if change > 0 else poor) if at >= failed else "",
                new_reward=min(1.0, max(0.0, before + change)) if at >= failed else None,
            )
        )
    return Evaluation(pairs=tuple(made), seconds=41.3, invalid={"Timeout": failed} if failed else {})


OPTIONS = {
    "model": "smollm2-135m-instruct",
    "server": "http://127.0.0.1:8080",
    "data": "questions.jsonl",
    "num_processes": ENVS,
    "num_steps": STEPS,
    "use_batching": True,
    "mutators": list(MUTATORS),
    "reward": "numeric_match",
    "seed": 0,
    "resume": None,
    "fingerprint": "5f3a9c1e77b04d2a9c1e77b04d2a5f3a",
    "ppo": {"ppo_epoch": 4, "num_mini_batch": 4, "clip": 0.2, "entropy_weight": 0.01, "learning_rate": 0.0003},
}
