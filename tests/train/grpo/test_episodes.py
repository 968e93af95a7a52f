"""Episodes as rollouts: a model plays groups of them on the real puzzle server."""

import asyncio
import os
import signal
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from support.fake_gym import FakeGym, options
from support.models import table_model, tiny

from brim.core.errors import MismatchError, OptionError
from brim.data.tokenizer.base import ByteTokenizer, load_tokenizer
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.policies import ScriptedPolicy
from brim.envs.puzzle.run import EpisodeRun
from brim.envs.puzzle.wire.errors import PuzzleError
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.generate.processor import SequenceProcessor
from brim.generate.rollouts import Response, Rollouts
from brim.train.grpo.episodes import EpisodeSource
from brim.train.grpo.turns import hint_samples, puzzle

BYTES = ByteTokenizer()
END = BYTES.eos_id
DIGITS = "12345678"


def spelled(*chances):
    """A model that writes one character after the other, each by the chances of those that may follow the last one.

    Its attention adds a little, so that what it read long ago counts as well.
    """
    scores = torch.full((259, 259), -30.0)
    for before, after in chances:
        for last in before:
            for follows in after:
                scores[ord(last), END if follows == "$" else ord(follows)] = 0.0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        model = table_model(scores)
        model.model.layers[0].self_attn.o_proj.weight.copy_(0.05 * torch.randn(264, 264))
    return model


@pytest.fixture(scope="module")
def shading():
    """Writes moves of Hitori such as "shade 3 4", too few or too many numbers, and cells that are not on the board."""
    return spelled("\ns", "sh", "ha", "ad", "de", "e ", (" ", DIGITS), (DIGITS, " $\n"))


@pytest.fixture(scope="module")
def upwards():
    """Writes one move of Sokoban, again and again."""
    return spelled("\nm", "mo", "ov", "ve", "e ", " u", "up", "p$")


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as running:
        yield running


@pytest.fixture(scope="module")
def gym(server):
    where = {"host": server.host, "port": server.port, "games": ("hitori",), "difficulty_range": (0.3, 0.3)}
    return GymConfig(**where, lanes=8, max_steps=6)


def never():
    return False


def play(model, gym, draws=range(3), *, size=4, temperature=1.0, held_out=False, stop=never, **changes):
    changes = {"seed": 7, "max_new_tokens": 16, "longest": 500, **changes}
    source = EpisodeSource(model, BYTES, gym, **changes)
    return source.play(draws, size=size, temperature=temperature, held_out=held_out, stop=stop)


@pytest.fixture(scope="module")
def groups(shading, gym):
    return play(shading, gym)


def attempts(groups):
    return [(group, attempt) for group in groups for attempt in group.attempts]


def runs(attempt):
    """The moves and the answers of an attempt in turn, as (whether it is a move, token ids)."""
    pairs = zip(attempt.drawn.tolist(), attempt.token_ids.tolist(), strict=True)
    return [(drawn, [id for _, id in ids]) for drawn, ids in groupby(pairs, key=lambda pair: pair[0])]


def replayed(gym, groups):
    """The same actions, played again by a script."""
    played = attempts(groups)
    scripts = [[BYTES.decode(ids).strip() for drawn, ids in runs(attempt) if drawn] for _, attempt in played]
    specs = [
        replace(puzzle(gym, group.draw, held_out=False), number=number) for number, (group, _) in enumerate(played)
    ]
    policy = ScriptedPolicy(lambda turn: scripts[turn.episode.number][turn.step])
    run = EpisodeRun(gym, policy, specs.__getitem__, stop=len(specs))
    episodes = []
    while (one := run.take()) is not None:
        episodes.append(one[1])
    run.stop()
    return episodes


def test_a_sequence_is_the_prompt_and_then_moves_and_the_servers_answers_in_turn(gym, groups):
    """The definition, from a script that plays the same moves."""
    answers = set()
    for (group, attempt), episode in zip(attempts(groups), replayed(gym, groups), strict=True):
        assert group.task == episode.episode_id
        assert group.prompt == episode.steps[0].prompt
        assert bytes(group.prompt_ids.astype(np.uint8)).decode() == group.prompt + "\n"
        turns = runs(attempt)
        assert [drawn for drawn, _ in turns] == [at % 2 == 0 for at in range(len(turns))]
        assert len(turns) == 2 * len(episode.steps) - 1
        for at, step in enumerate(episode.steps[:-1]):
            move, answer = turns[2 * at][1], turns[2 * at + 1][1]
            position = episode.steps[at + 1].prompt.removeprefix("hitori\n")
            expected = position if step.valid else "not a move" if step.code == "NOT_A_MOVE" else "refused"
            newline = "" if move[-1] == ord("\n") else "\n"
            assert bytes(answer).decode() == newline + expected + "\n"
            answers.add(expected[:7])
        assert attempt.turns == len(episode.steps)
        assert attempt.reward == pytest.approx(episode.total_reward)
        assert sum(attempt.parts.values()) == attempt.reward
        assert attempt.parts["refused"] == pytest.approx(-0.1 * episode.invalid)
        assert attempt.passed is episode.success
    assert answers == {"  | 1 2", "not a m", "refused"}, "all three kinds occur"


def test_a_move_ends_with_its_end_token_or_newline_or_at_its_limit(groups, shading, gym):
    lasts = {ids[-1] for _, attempt in attempts(groups) for drawn, ids in runs(attempt) if drawn}
    assert lasts >= {END, ord("\n")}
    for _, attempt in attempts(play(shading, gym, [0], max_new_tokens=7)):
        moves = [ids for drawn, ids in runs(attempt) if drawn]
        assert {len(ids) for ids in moves} == {7}


@pytest.mark.parametrize("name", ["byte", "gpt2"])
def test_before_each_move_the_model_reads_exactly_the_sequence_so_far(server, gym, shading, name):
    """Sampled tokens are never decoded and encoded again: what is read is what was drawn, and answers alone."""
    tokenizer = load_tokenizer(name)
    model = shading if name == "byte" else tiny(vocab=tokenizer.vocab_size)
    source = EpisodeSource(model, tokenizer, gym, seed=1, max_new_tokens=12, longest=500)
    source.play([0], size=1, temperature=1.0, held_out=False, stop=never)  # the model is tried out before its first use
    seen = set()

    def see(module, inputs):
        if inputs[0].shape[1] > 1:
            seen.update(tuple(np.trim_zeros(row.numpy(), "b").tolist()) for row in inputs[0])

    hook = model.get_input_embeddings().register_forward_pre_hook(see)
    groups = source.play([5, 6], size=2, temperature=1.0, held_out=False, stop=never)
    hook.remove()
    expected = set()
    for group, attempt in attempts(groups):
        sequence = group.prompt_ids.tolist()
        for drawn, ids in runs(attempt):
            if drawn:
                expected.add(tuple(sequence))
            sequence += ids
    assert seen == expected
    assert len(seen) > 15


def test_log_probabilities_are_those_of_the_whole_sequence_under_the_model(groups, shading):
    responses = [
        Response(
            prompt=b,
            sample=g,
            text=attempt.text,
            finish_reason=attempt.finish_reason,
            token_ids=attempt.token_ids,
        )
        for b, group in enumerate(groups)
        for g, attempt in enumerate(group.attempts)
    ]
    rollouts = Rollouts.collect([group.prompt_ids for group in groups], responses, G=4, seed=0)
    scored = SequenceProcessor(shading, BYTES).teacher_force_logprobs(rollouts).logprobs
    for group, columns in zip(groups, scored, strict=True):
        for attempt, column in zip(group.attempts, columns, strict=True):
            assert np.abs(column.numpy() - attempt.logprobs)[attempt.drawn].max() < 1e-4
            assert not attempt.logprobs[~attempt.drawn].any()
            assert attempt.logprobs[attempt.drawn].min() < -0.5


def same(groups, others):
    """Equal to the bit."""
    return all(
        group.task == other.task
        and group.prompt_ids.tolist() == other.prompt_ids.tolist()
        and one.token_ids.tolist() == two.token_ids.tolist()
        and one.logprobs.tobytes() == two.logprobs.tobytes()
        and one.drawn.tolist() == two.drawn.tolist()
        and (one.reward, one.finish_reason, one.turns) == (two.reward, two.finish_reason, two.turns)
        for group, other in zip(groups, others, strict=True)
        for one, two in zip(group.attempts, other.attempts, strict=True)
    )


def tokens(groups):
    return [attempt.token_ids.tolist() for _, attempt in attempts(groups)]


def test_a_play_can_be_repeated_to_the_bit(groups, shading, gym):
    assert same(groups, play(shading, gym))


def test_draws_depend_on_the_seed_the_puzzle_and_the_attempt_and_not_on_lanes_or_company(groups, shading, gym):
    whole = tokens(groups)
    assert tokens(play(shading, replace(gym, lanes=3), [2, 1], size=2)) == [*whole[8:10], *whole[4:6]]
    [group] = play(shading, gym, [0], size=2, seed=8)
    assert group.task == groups[0].task
    assert not any(attempt.token_ids.tolist() in whole for attempt in group.attempts)


def test_attempts_at_a_puzzle_differ_unless_the_likeliest_token_is_taken(groups, shading, gym):
    for group in groups:
        assert len({tuple(attempt.token_ids.tolist()) for attempt in group.attempts}) == 4
    [greedy] = play(shading, gym, [0], temperature=0.0)
    assert len({tuple(attempt.token_ids.tolist()) for attempt in greedy.attempts}) == 1
    assert not greedy.attempts[0].logprobs.any()


def test_held_out_puzzles_are_others(groups, shading, gym):
    held_out = play(shading, gym, held_out=True, size=1)
    assert not {group.task for group in held_out} & {group.task for group in groups}
    assert [group.task for group in held_out] == [puzzle(gym, draw, held_out=True).episode_id for draw in range(3)]


def test_an_episode_without_a_step_left_is_cut_off(groups):
    for _, attempt in attempts(groups):
        assert attempt.turns == 6
        assert attempt.finish_reason == "length"
        assert attempt.truncated
        assert attempt.passed is False
        assert attempt.parts["steps"] == pytest.approx(-0.06)


def test_an_episode_without_room_for_another_move_is_cut_off(shading, gym, groups):
    longest = len(groups[0].prompt_ids) + 60
    [group] = play(shading, gym, [0], longest=longest)
    for attempt, whole in zip(group.attempts, groups[0].attempts, strict=True):
        size = len(attempt.token_ids)
        assert attempt.token_ids.tolist() == whole.token_ids[:size].tolist()
        assert attempt.drawn[-1], "nothing follows the last move"
        assert 1 <= attempt.turns < 6
        assert len(group.prompt_ids) + size <= longest
        answer = next((ids for drawn, ids in runs(whole)[2 * attempt.turns - 1 :]), [])
        assert len(group.prompt_ids) + size + len(answer) + 16 > longest, "another move would not have fitted"
        assert attempt.finish_reason == "length"
        assert attempt.parts["steps"] == pytest.approx(-0.01 * attempt.turns)


def test_an_episode_is_no_longer_than_the_models_context(gym):
    model = tiny(vocab=259, positions=128)
    [group] = play(model, gym, [0], longest=10_000)
    assert all(len(group.prompt_ids) + len(attempt.token_ids) <= 128 for attempt in group.attempts)
    assert all(attempt.turns < 6 for attempt in group.attempts)


def test_a_position_that_leaves_no_room_is_a_failure_of_its_attempts(shading, gym):
    [group] = play(shading, gym, [0], longest=50)
    for attempt in group.attempts:
        assert attempt.failure == "LengthError"
        assert "leaves no room for a move of up to 16: an episode has at most 50" in attempt.message
        assert attempt.reward is None
    assert not group.is_live


def test_limits_that_leave_no_room_for_any_position_are_refused(shading, gym):
    with pytest.raises(OptionError, match="max_new_tokens must be below the 32 tokens of an episode, got 32"):
        play(shading, gym, max_new_tokens=32, longest=32)
    with pytest.raises(OptionError, match="size must be at least 1"):
        play(shading, gym, size=0)


def test_a_tokenizer_of_another_model_is_refused(gym):
    with pytest.raises(MismatchError, match="the model knows 64 tokens; use the model's own tokenizer"):
        play(tiny(vocab=64), gym, [0], size=1)


def test_a_solved_episode_has_the_tokens_of_the_hints_that_lead_there(upwards):
    with FakeGym(hint="Hint: Try moving up") as fake:
        gym = options(fake, games="sokoban")
        [group] = play(upwards, gym, [3], size=3)
        [sample] = hint_samples(gym, BYTES, [3], longest=500)
    for attempt in group.attempts:
        assert [*group.prompt_ids, *attempt.token_ids] == sample.input_ids.tolist()
        assert [*(0 for _ in group.prompt_ids), *attempt.drawn.astype(int)] == sample.loss_mask.tolist()
        assert attempt.text == "move up\n1 moves\nmove up\n2 moves\nmove up"
        assert attempt.finish_reason == "stop"
        assert attempt.passed
        assert attempt.parts == {"solved": 1.0, "steps": -0.03, "refused": 0.0}
        assert attempt.reward == pytest.approx(0.97)
        assert attempt.turns == 3
    assert not group.is_live


def test_a_session_that_fails_is_a_failure_of_its_attempt_alone(upwards):
    lost = puzzle(GymConfig(games="sokoban", difficulty_range=(0, 0.4)), 1, held_out=False)

    def hang_up(words, writer):
        if words[-1] == str(lost.seed):
            writer.transport.abort()
            return True

    with FakeGym(on=hang_up) as fake:
        first, second, third = play(upwards, options(fake, games="sokoban", max_retries=0), size=2)
    assert [attempt.failure for attempt in second.attempts] == ["ServerClosed"] * 2
    assert all(attempt.message and not len(attempt.token_ids) for attempt in second.attempts)
    assert all(attempt.passed for group in (first, third) for attempt in group.attempts)
    assert second.task == lost.episode_id


def test_an_attempt_that_began_with_another_position_is_a_failure(upwards):
    shown = []

    def see(seen):
        shown.append(1)
        return {**seen, "grid_display": f"{seen['grid_display']} {'a' if len(shown) <= 4 else 'b'}"}

    with FakeGym(see=see) as fake:
        [group] = play(upwards, options(fake, games="sokoban", lanes=1), [0], size=2)
    assert group.prompt == "sokoban\n0 moves a"
    assert group.attempts[0].passed
    assert group.attempts[1].failure == "ProtocolError"


@pytest.mark.parametrize(("answered", "seconds"), [(0, 0.2), (1, 2.0)])
def test_a_move_that_was_never_answered_in_time_does_not_belong_to_the_episode(upwards, answered, seconds):
    moves = []

    async def hang(words, writer):
        if words[0] == "move":
            moves.append(words)
            if len(moves) > answered:
                await asyncio.sleep(60)

    with FakeGym(on=hang) as fake:
        gym = options(fake, games="sokoban", lanes=1, episode_timeout=seconds)
        [group] = play(upwards, gym, [0], size=1)
    [attempt] = group.attempts
    if answered:
        assert attempt.text == "move up"
        assert attempt.turns == 1
        assert attempt.finish_reason == "length"
        assert attempt.reward == -0.01
    else:
        assert attempt.failure == "TimeoutError"
        assert "no move in 0.2 seconds" in attempt.message


def test_a_server_that_is_killed_ends_the_play(shading, gym):
    with PuzzleServer() as own:
        config = replace(
            gym, host=own.host, port=own.port, max_retries=1, retry_delay=0.01, max_retry_delay=0.05, lanes=4
        )
        turns = []

        def kill():
            turns.append(1)
            if len(turns) == 4:
                os.kill(own.pid, signal.SIGKILL)
            return False

        with pytest.raises(PuzzleError, match=str(own.port)):
            play(shading, config, stop=kill)


@pytest.mark.parametrize("after", [0, 4])
def test_a_wish_to_stop_ends_the_play_at_the_next_turn(shading, gym, after):
    asked, ended = [], []

    def stop():
        asked.append(1)
        return len(asked) > after

    assert play(shading, gym, stop=stop, on_attempt=lambda done, total: ended.append(done)) is None
    assert len(asked) <= after + 2
    assert ended == []


def test_a_play_that_is_closed_returns_nothing(shading, gym):
    seen = []

    def close(done, total):
        seen.append((done, total))
        source.close()

    source = EpisodeSource(shading, BYTES, gym, seed=0, max_new_tokens=16, longest=500, on_attempt=close)
    assert source.play(range(8), size=4, temperature=1.0, held_out=False, stop=never) is None
    assert seen == [(1, 32)]
    source.close()


def test_every_attempt_is_told_and_the_fill_is_that_of_the_latest_play(shading, gym):
    told = []
    source = EpisodeSource(
        shading, BYTES, gym, seed=0, max_new_tokens=16, longest=500, on_attempt=lambda *counts: told.append(counts)
    )
    source.play([0, 1], size=2, temperature=1.0, held_out=False, stop=never)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    first = source.fill
    assert 0.5 < first.ratio <= 1
    source.play([0, 1], size=2, temperature=1.0, held_out=False, stop=never)
    assert source.fill == first
    assert source.reward_seconds == 0
    assert source.play([], size=2, temperature=1.0, held_out=False, stop=never) == []
    assert source.fill.slots == 0


def test_moves_are_drawn_in_bfloat16_if_asked_for(shading, gym):
    kinds = set()
    hook = shading.lm_head.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    play(shading, gym, [0], size=1, bf16=True)
    hook.remove()
    assert kinds == {torch.bfloat16}
