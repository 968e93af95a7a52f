"""Distributions over the vocabulary: drawing from logits, and what is kept of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.core.rng import uniform
from brim.generate.config import GenerationConfig, Law
from brim.generate.law import BLOCK, draw, invert, restricted, scores_of
from brim.generate.score.selected import select_from_logits

LAWS = [
    Law(),
    Law(temperature=0.7),
    Law(temperature=1.7, top_k=9),
    Law(top_p=0.8),
    Law(min_p=0.2),
    Law(temperature=0.5, top_k=40, top_p=0.9, min_p=0.05),
]


def some_logits(rows, vocabulary, seed=0, scale=2.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (rows, vocabulary)).astype(np.float32))


def naive_kept(logits, law):
    """The definition, by sorting: which tokens the law keeps."""
    scaled = logits.astype(np.float64) / law.temperature
    order = np.argsort(-scaled, kind="stable")
    if law.top_k:
        order = order[: law.top_k]
    weights = np.exp(scaled[order] - scaled.max())
    shares = np.cumsum(weights / weights.sum())
    if law.top_p < 1:
        order = order[: int(np.searchsorted(shares, law.top_p)) + 1]
    floor = np.exp(scaled[order] - scaled.max()) >= law.min_p
    return set(order[floor].tolist())


def naive_draw(logits, law, share):
    """The definition: the first token at which the cumulative distribution exceeds the uniform number."""
    kept = sorted(naive_kept(logits, law))
    scaled = logits.astype(np.float64)[kept] / law.temperature
    edges = np.cumsum(np.exp(scaled - scaled.max()))
    return kept[int(np.searchsorted(edges / edges[-1], share, side="right"))], edges / edges[-1]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("vocabulary", [5, BLOCK, 300, 5000])
def test_a_law_keeps_what_its_definition_keeps(law, vocabulary):
    logits = some_logits(40, vocabulary)
    kept = restricted(logits / law.temperature, law) > -torch.inf
    for row in range(40):
        assert set(kept[row].nonzero()[:, 0].tolist()) == naive_kept(logits[row].numpy(), law)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_drawing_follows_the_definition_at_every_uniform_number(law):
    logits = some_logits(400, 777)
    shares = uniform(400, seed=1, purpose="test")
    drawn = draw(logits.clone(), law, torch.from_numpy(shares))
    for row in range(400):
        expected, edges = naive_draw(logits[row].numpy(), law, shares[row])
        near = np.abs(edges - shares[row]).min() < 1e-6
        assert near or int(drawn.tokens[row]) == expected


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_samples_pass_a_chi_squared_test_against_the_softmax(law):
    logits = some_logits(1, 60, seed=5)
    draws = 40_000
    shares = torch.from_numpy(uniform(draws, seed=2, purpose="chi squared"))
    tokens = draw(logits.expand(draws, -1).clone(), law, shares).tokens
    probabilities = torch.softmax(restricted(logits / law.temperature, law)[0].double(), dim=0).numpy()
    counts = np.bincount(tokens.numpy(), minlength=60)
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities[probabilities > 0] * draws
    statistic = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 4  # far in the tail of the distribution


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_log_probabilities_are_those_of_both_laws_and_sum_to_one_over_what_is_kept(law):
    logits = some_logits(6, 211)
    every = torch.arange(211)
    for row in range(6):
        scored = select_from_logits(logits[row].expand(211, -1), every, law).logprobs.double()
        assert float(scored.exp().sum()) == pytest.approx(1, abs=1e-5)
        assert {int(token) for token in every[scored > -torch.inf]} == naive_kept(logits[row].numpy(), law)
    drawn = draw(logits.clone(), law, torch.full((6,), 0.4, dtype=torch.float64))
    own = torch.log_softmax(logits.double(), dim=1)
    assert torch.allclose(drawn.logprobs.double(), own.gather(1, drawn.tokens[:, None])[:, 0], atol=1e-6)
    assert torch.allclose(drawn.entropies.double(), -(own.exp() * own).sum(dim=1), atol=1e-5)
    sampling = select_from_logits(logits, drawn.tokens, law).logprobs
    assert torch.allclose(drawn.sampling_logprobs, sampling, atol=1e-6)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=400).filter(any),
    st.one_of(st.sampled_from([0.0, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)),
)
def test_a_token_without_weight_is_never_drawn(weights, share):
    padded = torch.zeros(1, -(-len(weights) // BLOCK) * BLOCK)
    padded[0, : len(weights)] = torch.tensor(weights, dtype=torch.float32)
    token = int(invert(padded, torch.tensor([share], dtype=torch.float64)))
    assert padded[0, token] > 0
    edges = np.cumsum(weights)
    assert token == int(np.searchsorted(edges, share * edges[-1], side="right"))


def test_greedy_takes_the_likeliest_token_with_certainty():
    logits = some_logits(9, 500)
    drawn = draw(
        logits.clone(), GenerationConfig(do_sample=False, temperature=3.0, top_k=7).law, torch.rand(9).double()
    )
    assert torch.equal(drawn.tokens, logits.argmax(dim=1))
    assert torch.equal(drawn.sampling_logprobs, torch.zeros(9))
    assert float(drawn.logprobs.max()) < 0


def test_a_logit_of_minus_infinity_is_allowed_and_one_that_is_not_a_number_shows():
    logits = some_logits(3, 50)
    logits[0, 7] = -torch.inf
    logits[1, 7] = torch.nan
    logits[2, 7] = torch.inf
    finite = torch.isfinite(scores_of(logits.clone()).entropy)
    assert finite.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must not be negative or infinite, got -1"),
        ({"temperature": float("inf")}, "got inf"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.5}, "got 1.5"),
        ({"top_k": -2}, "top_k must not be negative .* got -2"),
        ({"min_p": 2}, "min_p must lie between 0 and 1, got 2"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"gen_batch_size": 0}, "gen_batch_size must be at least 1, got 0"),
        ({"gen_batch_size": "big"}, "must be a number or \"auto\", got 'big'"),
        ({"tf_token_budget": 0}, "tf_token_budget must be at least 1"),
        ({"memory_budget": 0}, "memory_budget must be at least 1 byte, got 0"),
        ({"seed": -1}, "seed must be an integer that is not negative, got -1"),
        ({"stop": ("",)}, "must not be an empty text"),
        ({"stop": "</answer>"}, "stop must be a list of texts and token ids, got '</answer>'"),
        ({"stop": (1.5,)}, "must be a text or the id of a token, got 1.5"),
        ({"stop": (-3,)}, "must not be negative, got -3"),
    ],
)
def test_options_that_cannot_work_are_refused_with_their_value(options, message):
    with pytest.raises(OptionError, match=message):
        GenerationConfig(**options)
