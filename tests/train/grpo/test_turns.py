"""Episodes as sequences of tokens: which puzzles, which words, which rewards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_gym import FakeGym, options

from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.envs.episode import EpisodeStatus
from brim.envs.puzzle.config import GymConfig, RewardConfig
from brim.envs.puzzle.episode import GymEpisode, GymStep
from brim.envs.puzzle.games import GAMES, EpisodeSpec
from brim.envs.puzzle.wire.errors import ConnectionFailed
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.train.grpo.turns import action_of, answer_to, hint_samples, puzzle, reward_parts

draws = st.integers(0, 10**9)


@given(st.integers(-(2**63), 2**63), draws, draws)
def test_no_puzzle_is_both_trained_on_and_held_out(seed, draw, other):
    gym = GymConfig(seed=seed, games=("lights", "nqueens"))
    trained, held_out = puzzle(gym, draw, held_out=False), puzzle(gym, other, held_out=True)
    assert trained.seed % 2 == 0
    assert held_out.seed % 2 == 1
    assert trained.episode_id != held_out.episode_id
    assert trained.game in gym.games
    assert puzzle(gym, draw, held_out=False) == trained


def test_draws_and_seeds_of_the_gym_lead_to_other_puzzles():
    gym = GymConfig(games=("lights",))
    found = [
        puzzle(where, draw, held_out=held_out).seed
        for where in (gym, replace(gym, seed=1))
        for held_out in (False, True)
        for draw in range(200)
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("press 1 2", "press 1 2"),
        (" press 1 2\nand more", "press 1 2"),
        ("\npress 1 2", ""),
        ("", ""),
        ("a\x0bb", "a\x0bb"),
    ],
)
def test_an_action_is_the_first_line_of_a_move(text, action):
    assert action_of(text) == action


def test_an_answer_is_the_position_or_a_word_for_the_refusal():
    prompt = "lights\n.1\n11"
    assert answer_to("lights", "press 1 2", refused=False, prompt=prompt) == ".1\n11\n"
    assert answer_to("lights", "press 9 9", refused=True, prompt=prompt) == "refused\n"
    assert answer_to("lights", "solve", refused=True, prompt=prompt) == "not a move\n"


outcomes = st.lists(st.booleans(), min_size=1, max_size=12)
amounts = st.floats(-1, 0)


@given(outcomes, st.randoms(use_true_random=False), st.sampled_from(["solved", "lost", "cut"]), amounts, amounts)
def test_parts_sum_to_the_reward_of_the_episode_whatever_the_order_of_its_moves(valid, random, end, step, invalid):
    rewards = RewardConfig(success=1.3, failure=-0.7, step=step, invalid=invalid)

    def episode(valid):
        steps = [
            GymStep(
                step_index=at,
                prompt="",
                action="",
                reward=step + (0 if good else invalid) + ends * (at == len(valid) - 1),
                valid=good,
                done=end != "cut" and at == len(valid) - 1,
                hints=0,
                code="",
                message="",
            )
            for at, good in enumerate(valid)
        ]
        status = EpisodeStatus.SUCCESS if end == "solved" else EpisodeStatus.FAILURE
        spec = EpisodeSpec(number=0, game="lights", difficulty="easy", seed=0)
        return GymEpisode(spec=spec, steps=tuple(steps), status=status, reason=end)

    ends = {"solved": 1.3, "lost": -0.7, "cut": 0.0}[end]
    first = episode(valid)
    parts = reward_parts(first, rewards)
    assert parts.keys() == {"solved", "steps", "refused"}
    assert sum(parts.values()) == pytest.approx(first.total_reward, abs=1e-12)
    shuffled = random.sample(valid, len(valid))
    assert reward_parts(episode(shuffled), rewards) == parts


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as running:
        yield running


def naive(prompt, positions, tokenizer):
    """The definition: the tokens and the mask of an episode whose moves were all accepted."""
    start = [tokenizer.bos_id] if tokenizer.adds_bos else []
    ids, mask = [*start, *encoded(tokenizer, prompt + "\n")], []
    mask = [0] * len(ids)
    for at, (action, position) in enumerate(positions):
        move = [*encoded(tokenizer, action), tokenizer.eos_id]
        answer = encoded(tokenizer, "\n" + position + "\n") if at < len(positions) - 1 else []
        ids += move + answer
        mask += [1] * len(move) + [0] * len(answer)
    return ids, mask


def encoded(tokenizer, text):
    return tokenizer.encode_batch([text])[0].tolist()


def pressed(grid, action):
    """Lights Out by its rules: a press toggles a light and its neighbours."""
    row, column = (int(word) - 1 for word in action.split()[1:])
    toggled = {(row, column), (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)}
    return [
        "".join({".": "1", "1": "."}[light] if (y, x) in toggled else light for x, light in enumerate(line))
        for y, line in enumerate(grid)
    ]


@pytest.mark.parametrize("name", ["byte", "gpt2"])
def test_hints_become_samples_of_whole_episodes_with_the_loss_on_the_moves(server, name):
    tokenizer = load_tokenizer(name)
    gym = GymConfig(host=server.host, port=server.port, games=("lights",), difficulty_range=(0.3, 0.3), lanes=4)
    samples = hint_samples(gym, tokenizer, range(5, 9), longest=512)
    assert [sample.id for sample in samples] == [
        f"{puzzle(gym, draw, held_out=False).episode_id}@{draw}" for draw in range(5, 9)
    ]
    for sample in samples:
        text = "".join(tokenizer.decode([id]) for id in sample.input_ids if id != tokenizer.eos_id)
        prompt = "\n".join(text.splitlines()[:6])
        actions = [line for line in text.splitlines() if line.startswith("press")]
        grid = prompt.splitlines()[1:]
        positions = []
        for action in actions:
            grid = pressed(grid, action)
            positions.append((action, "\n".join(grid)))
        assert set("".join(grid)) == {"."}, "the last move solves it"
        ids, mask = naive(prompt, positions, tokenizer)
        assert sample.input_ids.tolist() == ids
        assert sample.loss_mask.tolist() == mask


def test_samples_that_are_too_long_are_left_out():
    with FakeGym() as fake:
        [sample] = hint_samples(options(fake), ByteTokenizer(), [0], longest=512)
        assert hint_samples(options(fake), ByteTokenizer(), [0], longest=len(sample)) == [sample]
        assert hint_samples(options(fake), ByteTokenizer(), [0], longest=len(sample) - 1) == []


def test_without_an_end_token_a_move_of_a_sample_ends_with_a_newline():
    class Endless(ByteTokenizer):
        eos_id = None

    with FakeGym() as fake:
        [sample] = hint_samples(options(fake), Endless(), [0], longest=512)
    text = "lights\n.1\n1.\npress 1 1\n.1\n11\npress 1 1\n.1\n12\npress 1 1\n"
    assert sample.input_ids.tolist() == list(text.encode())
    learned = bytes(sample.input_ids[sample.loss_mask == 1].astype(np.uint8))
    assert learned == b"press 1 1\n" * 3


def test_episodes_that_hints_do_not_solve_become_no_samples():
    refuse = [{"type": "result", "success": False, "code": "REFUSED"}]
    with FakeGym(move=lambda moves, position: refuse) as fake:
        assert hint_samples(options(fake), ByteTokenizer(), range(3), longest=512) == []


def test_without_a_server_hints_are_refused():
    with FakeGym() as fake:
        config = options(fake)
    with pytest.raises(ConnectionFailed):
        hint_samples(config, ByteTokenizer(), range(3), longest=512)


def test_every_game_has_its_name_in_the_first_line_of_a_position_and_nowhere_in_an_answer():
    for game in GAMES.values():
        prompt = game.prompt({"grid": [[1]] if game.cells is int else [["A"]], "grid_display": "1|a drawing"})
        assert prompt.startswith(game.name + "\n")
        assert not answer_to(game.name, "", refused=False, prompt=prompt).startswith(game.name)
