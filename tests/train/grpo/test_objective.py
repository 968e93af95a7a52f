"""The loss of GRPO and its gradient are those of the formulas, whatever the variant, the layout and the ranks."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.grpo_groups import VOCABULARY, plain_loss, random_groups, rollout_of
from transformers import LlamaConfig, LlamaForCausalLM

from brim.plan.distributed import DistributedConfig
from brim.train.grpo.advantages import advantages
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.learning import Learning, Scorers
from brim.train.grpo.objective import GrpoLoss
from brim.train.grpo.reference import Reference
from brim.train.ranks import Ranks

pytestmark = pytest.mark.usefixtures("one_thread")


def llama(seed, spread=0.1):
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=spread,
    )
    return LlamaForCausalLM(shape).double().eval()


MODEL, OLD, FAR = llama(0), llama(1), llama(2)

variants = st.fixed_dictionaries(
    {
        "loss": st.sampled_from(["grpo", "dr_grpo", "dapo"]),
        "scale_rewards": st.sampled_from(["group", "batch", "none"]),
        "ratio": st.sampled_from(["token", "sequence"]),
        "clip_low": st.sampled_from([0.1, 0.5]),
        "clip_high": st.sampled_from([0.1, 0.5, 3.0]),
        "mask_truncated": st.booleans(),
        "temperature": st.sampled_from([1.0, 0.7]),
        "token_budget": st.sampled_from([1, 40, 4096]),
        "old_logprobs": st.sampled_from(["decode", "score"]),
    }
)
divergences = st.sampled_from([{}, {"kl_coef": 0.3}, {"kl_coef": 0.3, "kl_in": "reward"}])


def config_of(variant, divergence):
    correction = {"correction": 1.5} if variant["old_logprobs"] == "score" else {}
    return GrpoConfig(
        output="unused",
        model="unused",
        dataset="unused",
        group_size=4,
        prompts_per_step=8,
        max_new_tokens=12,
        **variant,
        **divergence,
        **correction,
    )


def learned(model, groups, config, *, ranks=1, steps=1):
    """The loss and the gradients of one step, from all microbatches of all ranks, divided as a step divides them.

    With two steps, these are those of the second one: the model had other weights before the first.
    """
    objective = GrpoLoss(OLD if steps > 1 else model, config)
    reference = None
    if config.kl_coef:
        reference = Reference(copy.deepcopy(FAR), config, adapter=True, fingerprint="")
    total, divisor = torch.zeros((), dtype=torch.float64), 0.0
    model.zero_grad()
    hands = []
    for rank in range(ranks):
        me = Ranks(DistributedConfig(rank=rank, world_size=ranks))
        scorers = Scorers(objective.scorer, objective.scorer, reference)
        learning = Learning(rollout_of(groups), config, scorers, me, number=0, version=0, step=0, most=100)
        hands.append(list(learning.steps()))
    objective = GrpoLoss(model, config)
    for hand in hands:
        if not hand:
            continue
        for batch in hand[steps - 1]:
            loss = objective(batch)
            loss.backward()
            total = total + loss.detach()
            divisor += batch.num_loss_tokens
    gradients = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad / max(divisor, 1)
        for name, weight in model.named_parameters()
    }
    return float(total) / max(divisor, 1), gradients


def expected(model, groups, config, old_model=None):
    model.zero_grad()
    loss, _ = plain_loss(model, groups, config, old_model=old_model, reference=FAR if config.kl_coef else None)
    if loss.requires_grad:
        loss.backward()
    return float(loss.detach()), {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in model.named_parameters()
    }


def assert_equal(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=1e-4, abs=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in wanted[1].values())
    for name, gradient in wanted[1].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-3, atol=1e-5 * max(largest, 1.0)), name


@settings(max_examples=30, deadline=None)
@given(variants, divergences, st.integers(0, 10**6))
def test_loss_and_gradient_of_every_variant_equal_the_plain_loop(variant, divergence, seed):
    config, groups = config_of(variant, divergence), random_groups(seed)
    assert_equal(learned(MODEL, groups, config), expected(MODEL, groups, config))


@settings(max_examples=12, deadline=None)
@given(variants, st.sampled_from([{}, {"kl_coef": 0.3}]), st.integers(0, 10**6))
def test_two_ranks_together_have_the_gradient_of_one(variant, divergence, seed):
    config, groups = config_of(variant, divergence), random_groups(seed)
    assert_equal(learned(MODEL, groups, config, ranks=2), expected(MODEL, groups, config))


@settings(max_examples=8, deadline=None)
@given(variants, st.integers(0, 10**6))
def test_in_a_second_pass_the_old_weights_are_those_before_the_first(variant, seed):
    variant = {**variant, "passes": 2}
    config, groups = config_of(variant, {}), random_groups(seed)
    assert_equal(learned(MODEL, groups, config, steps=2), expected(MODEL, groups, config, old_model=OLD))


@given(st.integers(0, 10**6), st.sampled_from(["group", "batch", "none"]))
def test_advantages_of_a_group_add_up_to_nothing_and_failed_attempts_have_none(seed, scale):
    rewards = np.random.default_rng(seed).integers(0, 3, (5, 6)).astype(float)
    rewards[np.random.default_rng(seed + 1).random(rewards.shape) < 0.2] = np.nan
    found = advantages(rewards, scale)
    assert np.abs(found.sum(axis=1)).max() < 1e-9
    assert (found[np.isnan(rewards)] == 0).all()


def test_metrics_count_what_is_clipped_and_how_far_log_probs_are_apart():
    config = config_of(
        {"old_logprobs": "decode", "clip_low": 0.2, "clip_high": 0.2, "mask_truncated": False, "loss": "dapo"}, {}
    )
    groups = random_groups(5, failing=0.0, answered=0.0)
    objective = GrpoLoss(MODEL, config)
    me = Ranks(DistributedConfig())
    scorers = Scorers(objective.scorer, objective.scorer, None)
    learning = Learning(rollout_of(groups), config, scorers, me, number=0, version=0, step=0, most=9)
    for batch in next(learning.steps()):
        objective(batch)
    sums = objective.metrics()
    tokens = sum(len(attempt.token_ids) for group in groups for attempt in group.attempts)
    assert sums["tokens"] == sums["fresh_tokens"] == tokens
    assert sums["mismatch"] / tokens == pytest.approx(learning.first_mismatch(), rel=1e-4)
    assert 0 < sums["clipped_low"] + sums["clipped_high"] <= tokens
    assert objective.metrics()["tokens"] == 0
