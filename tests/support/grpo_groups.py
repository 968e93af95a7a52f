"""Groups of attempts with random tokens, for tests of GRPO; and its loss as the formulas say, one token at a time."""

import numpy as np
import torch

from brim.train.grpo.attempt import Attempt, Group
from brim.train.grpo.rolling import Rollout

VOCABULARY = 48


def random_groups(seed, *, groups=3, size=4, failing=0.1, truncated=0.2, answered=0.3):
    """Groups with ragged attempts: some fail, some are cut off, and some tokens were not drawn by the model."""
    rng = np.random.default_rng(seed)
    return [
        Group(
            draw=number,
            task=f"task {number}",
            prompt_ids=rng.integers(0, VOCABULARY, rng.integers(1, 9)).astype(np.int32),
            prompt="",
            answer=None,
            attempts=tuple(_attempt(rng, failing, truncated, answered) for _ in range(size)),
        )
        for number in range(groups)
    ]


def _attempt(rng, failing, truncated, answered):
    count = int(rng.integers(1, 10))
    drawn = rng.random(count) >= answered
    drawn[0] = True
    failed = rng.random() < failing
    return Attempt(
        token_ids=rng.integers(0, VOCABULARY, count).astype(np.int32),
        drawn=drawn,
        logprobs=np.where(drawn, -rng.random(count) * 5, 0.0).astype(np.float32),
        text="",
        finish_reason="length" if rng.random() < truncated else "stop",
        reward=None if failed else float(rng.integers(0, 4)),
        failure="Broken" if failed else None,
    )


def rollout_of(groups):
    """All groups as a rollout, whether rewards differ or not."""
    return Rollout(
        groups=tuple(groups),
        live=tuple(groups),
        replaced=0,
        next_draw=len(groups),
        fill=None,
        seconds=0.0,
        reward_seconds=0.0,
    )


def token_logprobs(model, prompt, tokens, temperature):
    """Log-probability of each token behind the prompt, from one sequence alone, in float64."""
    ids = torch.tensor(np.concatenate([prompt, tokens])[None], dtype=torch.int64)
    logits = model(input_ids=ids).logits[0].double() / temperature
    table = torch.log_softmax(logits, dim=1)
    places = range(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return torch.stack([table[place, int(token)] for place, token in zip(places, tokens, strict=True)])


def plain_loss(model, groups, config, *, old_model=None, reference=None):
    """The loss of a step on the groups by the formulas, one attempt and one token after the other.

    `old_model` has the old weights, where old log-probabilities are scored; None if they are the present ones.
    """
    rows = []
    for group in groups:
        for attempt in group.attempts:
            kept = attempt.reward is not None and not (config.mask_truncated and attempt.finish_reason == "length")
            new = token_logprobs(model, group.prompt_ids, attempt.token_ids, config.temperature)
            with torch.no_grad():
                scored = new.detach()
                if old_model is not None:
                    scored = token_logprobs(old_model, group.prompt_ids, attempt.token_ids, config.temperature)
                far = None
                if reference is not None:
                    far = token_logprobs(reference, group.prompt_ids, attempt.token_ids, config.temperature)
            recorded = torch.tensor(attempt.logprobs, dtype=torch.float64)
            old = scored if config.scores_old else recorded
            at = np.flatnonzero(attempt.drawn).tolist()
            rows.append((group, attempt, kept, new[at], old[at], recorded[at], None if far is None else far[at]))
    rewards = {
        id(attempt): attempt.reward
        - (config.kl_coef * float((old - far).sum()) if far is not None and config.kl_in == "reward" and kept else 0.0)
        for _, attempt, kept, _, old, _, far in rows
        if attempt.reward is not None
    }
    every = [rewards[id(a)] for g in groups for a in g.attempts if a.reward is not None]
    losses, weights, divisor = [], [], 0.0
    for group, attempt, kept, new, old, recorded, far in rows:
        if not kept:
            continue
        own = [rewards[id(a)] for a in group.attempts if a.reward is not None]
        advantage = rewards[id(attempt)] - sum(own) / len(own)
        if config.scale == "group":
            advantage /= (np.std(own, ddof=1) if len(own) > 1 else 0.0) + 1e-6
        if config.scale == "batch":
            advantage /= np.std(every, ddof=1) + 1e-6
        count = len(new)
        for t in range(count):
            log_ratio = new[t] - old[t]
            log_weight = old[t] - recorded[t]
            if config.ratio == "sequence":
                log_ratio = (new - old).mean()
                log_weight = (old - recorded).mean()
            ratio = torch.exp(log_ratio)
            clipped = torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high)
            loss = -torch.minimum(ratio * advantage, clipped * advantage)
            if config.correction_limit:
                loss = loss * min(float(torch.exp(log_weight)), config.correction_limit)
            if far is not None and config.kl_in == "loss":
                apart = far[t] - new[t]
                loss = loss + config.kl_coef * (torch.exp(apart) - apart - 1)
            losses.append(loss)
            weights.append(1 / count if config.loss == "grpo" else 1.0)
        divisor += {"grpo": 1, "dapo": count, "dr_grpo": config.max_new_tokens}[config.loss]
    if not losses:
        return torch.zeros((), dtype=torch.float64), 0.0
    return sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / divisor, divisor
