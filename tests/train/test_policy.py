"""A model that chooses actions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import table_model, tiny

from brim.core.errors import OptionError
from brim.core.rng import raw_bits
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import Turn
from brim.train.online.policy import ModelPolicy

ACTIONS = ("place 1 1 1", "place 1 1 12", "place 2 1 1", "press 3", "p")


@pytest.fixture(scope="module")
def scores():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(259, 259, generator=generator) * 2


@pytest.fixture(scope="module")
def table(scores):
    """A model whose scores depend on the last token alone, so that probabilities can be worked out by hand."""
    return table_model(scores)


def turn(number, actions=ACTIONS, step=0, prompt="a puzzle"):
    spec = EpisodeSpec(number=number, game="lights", difficulty="easy", seed=number)
    return Turn(episode=spec, step=step, prompt=prompt, observation={}, actions=tuple(actions))


def probability(table, action, actions):
    """The definition: token by token, among what can still become an action."""
    end = ByteTokenizer.eos_id
    rows = {other: [*other.encode(), end] for other in actions}
    so_far, chance, last = [], 1.0, ord("\n")
    for token in rows[action]:
        allowed = sorted({row[len(so_far)] for row in rows.values() if row[: len(so_far)] == so_far})
        scores = table[last].double().numpy()[allowed]
        weights = np.exp(scores - scores.max())
        chance *= weights[allowed.index(token)] / weights.sum()
        so_far.append(token)
        last = token
    return chance


def test_actions_come_as_often_as_the_model_says(table, scores):
    answers = ModelPolicy(table, ByteTokenizer()).choose([turn(number) for number in range(3000)])
    expected = {action: probability(scores, action, ACTIONS) for action in ACTIONS}
    assert math.isclose(sum(expected.values()), 1.0)
    for action, chance in expected.items():
        assert answers.count(action) / 3000 == pytest.approx(chance, abs=0.03)


@settings(max_examples=40)
@given(
    st.lists(st.text("ab 12", min_size=1, max_size=6).map(str.strip).filter(bool), min_size=1, max_size=8, unique=True),
    st.integers(0, 99),
)
def test_an_answer_is_one_of_the_actions_whatever_the_temperature(table, actions, number):
    for temperature in (0.0, 0.5, 5.0):
        policy = ModelPolicy(table, ByteTokenizer(), temperature=temperature)
        assert policy.choose([turn(number, actions)])[0] in actions


def test_a_draw_depends_on_the_seed_the_episode_and_the_step_and_not_on_who_else_waits(table):
    policy = ModelPolicy(table, ByteTokenizer(), temperature=3.0)
    together = policy.choose([turn(number, step=number % 3) for number in range(40)])
    assert together == [policy.choose([turn(number, step=number % 3)])[0] for number in range(40)]
    assert together != policy.choose([turn(number, step=4) for number in range(40)])
    assert together != ModelPolicy(table, ByteTokenizer(), temperature=3.0, seed=7).choose(
        [turn(n, step=n % 3) for n in range(40)]
    )


def test_without_a_list_the_model_writes_a_line_of_its_own(table):
    spelled = torch.zeros(259, 259)
    spelled[:, ByteTokenizer.eos_id] = 50.0
    for last, follows in ("\nh", "hi", "i!"):
        spelled[ord(last)] = torch.nn.functional.one_hot(torch.tensor(ord(follows)), 259) * 50.0
    assert ModelPolicy(table_model(spelled), ByteTokenizer()).choose([turn(1, ())]) == ["hi!"]
    endless = ModelPolicy(table, ByteTokenizer(), temperature=9.0).choose([turn(number, ()) for number in range(30)])
    assert all(answer is None or "\n" not in answer for answer in endless)


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2"])
def test_the_model_reads_what_samples_are_made_of(tokenizer):
    """An action that the model chose is, as a sample, exactly the tokens that it read and wrote."""
    tokenizer, seen = load_tokenizer(tokenizer), []
    model = tiny(vocab=tokenizer.vocab_size)
    policy = ModelPolicy(model, tokenizer)
    asked = turn(0, ("press 1 2", "press 3 4"), prompt="lights\n..1")
    action = policy.choose([asked])[0]
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0][0].tolist()))
    assert policy.choose([asked])[0] == action
    row = {"prompt": "lights\n..1", "response": action}
    tokens = encode_rows([row], tokenizer, RowFormat(shape="prompt"), str)[0][0].tolist()
    assert tokens[: len(seen)] == seen


def naive_choice(model, asked, seed, temperature):
    """The definition: read everything again before each token, and choose among what can still become an action."""
    end = ByteTokenizer.eos_id
    rows = [[*action.encode(), end] for action in asked.actions]
    tokens = [*asked.prompt.encode(), ord("\n")]
    draws = iter(raw_bits(99, seed=seed, purpose=f"act {asked.step}", epoch=asked.episode.number).tolist())
    written = []
    while True:
        allowed = sorted({row[len(written)] for row in rows if row[: len(written)] == written})
        token = allowed[0]
        if len(allowed) > 1:
            logits = model(input_ids=torch.tensor([tokens + written])).logits[0, -1].detach().double().numpy()[allowed]
            edges = np.cumsum(np.exp((logits - logits.max()) / temperature))
            token = allowed[int(np.searchsorted(edges, next(draws) / 2**64 * edges[-1], side="right"))]
        if token == end:
            return bytes(written).decode()
        written.append(token)


@pytest.mark.filterwarnings("ignore:.*one prompt at a time")
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_choices_are_those_of_a_model_that_reads_everything_again_before_each_token(kind):
    """Rows leave the cache at different times, and tokens that alone can follow are read without being chosen."""
    model = tiny(kind, vocab=259, **({"sliding_window": 8} if kind == "mistral" else {}))
    turns = [turn(number, step=number % 3, prompt="a " * (1 + number % 9) + "puzzle") for number in range(24)]
    policy = ModelPolicy(model, ByteTokenizer(), temperature=2.0, seed=5)
    assert policy.choose(turns) == [naive_choice(model, one, 5, 2.0) for one in turns]


def test_a_tokenizer_without_an_end_and_a_negative_temperature_are_refused(table):
    class Endless(ByteTokenizer):
        eos_id = None

    with pytest.raises(OptionError, match="no end token"):
        ModelPolicy(table, Endless())
    with pytest.raises(OptionError, match="temperature must not be negative"):
        ModelPolicy(table, ByteTokenizer(), temperature=-0.1)
