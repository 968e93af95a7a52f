"""A model that chooses actions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import Turn
from brim.train.online.policy import ModelPolicy

ACTIONS = ("place 1 1 1", "place 1 1 12", "place 2 1 1", "press 3", "p")


class Table(torch.nn.Module):
    """A model whose scores depend on the last token alone, so that probabilities can be worked out by hand."""

    def __init__(self, vocab=259):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.scores = torch.nn.Parameter(torch.randn(vocab, vocab, generator=generator) * 2)

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=self.scores[input_ids])


def turn(number, actions=ACTIONS, step=0, prompt="a puzzle"):
    spec = EpisodeSpec(number=number, game="lights", difficulty="easy", seed=number)
    return Turn(episode=spec, step=step, prompt=prompt, observation={}, actions=tuple(actions))


def probability(model, action, actions):
    """The definition: token by token, among what can still become an action."""
    end = ByteTokenizer.eos_id
    rows = {other: [*other.encode(), end] for other in actions}
    so_far, chance, last = [], 1.0, ord("\n")
    for token in rows[action]:
        allowed = sorted({row[len(so_far)] for row in rows.values() if row[: len(so_far)] == so_far})
        scores = model.scores[last].detach().double().numpy()[allowed]
        weights = np.exp(scores - scores.max())
        chance *= weights[allowed.index(token)] / weights.sum()
        so_far.append(token)
        last = token
    return chance


def test_actions_come_as_often_as_the_model_says():
    model = Table()
    answers = ModelPolicy(model, ByteTokenizer()).choose([turn(number) for number in range(3000)])
    expected = {action: probability(model, action, ACTIONS) for action in ACTIONS}
    assert math.isclose(sum(expected.values()), 1.0)
    for action, chance in expected.items():
        assert answers.count(action) / 3000 == pytest.approx(chance, abs=0.03)


@settings(max_examples=40)
@given(
    st.lists(st.text("ab 12", min_size=1, max_size=6).map(str.strip).filter(bool), min_size=1, max_size=8, unique=True),
    st.integers(0, 99),
)
def test_an_answer_is_one_of_the_actions_whatever_the_temperature(actions, number):
    for temperature in (0.0, 0.5, 5.0):
        policy = ModelPolicy(Table(), ByteTokenizer(), temperature=temperature)
        assert policy.choose([turn(number, actions)])[0] in actions


def test_a_draw_depends_on_the_seed_the_episode_and_the_step_and_not_on_who_else_waits():
    policy = ModelPolicy(Table(), ByteTokenizer(), temperature=3.0)
    together = policy.choose([turn(number, step=number % 3) for number in range(40)])
    assert together == [policy.choose([turn(number, step=number % 3)])[0] for number in range(40)]
    assert together != policy.choose([turn(number, step=4) for number in range(40)])
    assert together != ModelPolicy(Table(), ByteTokenizer(), temperature=3.0, seed=7).choose(
        [turn(n, step=n % 3) for n in range(40)]
    )


def test_without_a_list_the_model_writes_a_line_of_its_own():
    class Speller(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 259)
            follows = {ord("\n"): "h", ord("h"): "i", ord("i"): "!"}
            for row, tokens in enumerate(input_ids.tolist()):
                for place, token in enumerate(tokens):
                    logits[row, place, ord(follows[token]) if token in follows else ByteTokenizer.eos_id] = 50.0
            return SimpleNamespace(logits=logits)

    assert ModelPolicy(Speller(), ByteTokenizer()).choose([turn(1, ())]) == ["hi!"]
    endless = ModelPolicy(Table(), ByteTokenizer(), temperature=9.0).choose([turn(number, ()) for number in range(30)])
    assert all(answer is None or "\n" not in answer for answer in endless)


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2"])
def test_the_model_reads_what_samples_are_made_of(tokenizer):
    """An action that the model chose is, as a sample, exactly the tokens that it read and wrote."""
    tokenizer, seen = load_tokenizer(tokenizer), []

    class Watched(Table):
        def forward(self, input_ids, use_cache):
            seen.append(input_ids[0].tolist())
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, tokenizer.vocab_size))

    action = ModelPolicy(Watched(4), tokenizer).choose([turn(0, ("press 1 2", "press 3 4"), prompt="lights\n..1")])[0]
    row = {"prompt": "lights\n..1", "response": action}
    tokens = encode_rows([row], tokenizer, RowFormat(shape="prompt"), str)[0][0].tolist()
    assert tokens[: len(seen[-1])] == seen[-1]


def test_a_tokenizer_without_an_end_and_a_negative_temperature_are_refused():
    class Endless(ByteTokenizer):
        eos_id = None

    with pytest.raises(OptionError, match="no end token"):
        ModelPolicy(Table(), Endless())
    with pytest.raises(OptionError, match="temperature must not be negative"):
        ModelPolicy(Table(), ByteTokenizer(), temperature=-0.1)
