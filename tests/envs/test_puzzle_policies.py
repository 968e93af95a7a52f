"""Who plays: policies without a model, and one decision for many lanes."""

import asyncio
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import HintPolicy, RandomPolicy, ScriptedPolicy, Together, Turn


def turn(number=0, step=0, **more):
    spec = EpisodeSpec(number=number, game="lights", difficulty="easy", seed=number)
    return Turn(**{"episode": spec, "step": step, "prompt": "", "observation": {}, "actions": ("a", "b", "c"), **more})


def act(policy, turn):
    return asyncio.run(policy.act(turn))


def test_the_random_policy_depends_on_seed_episode_and_step_and_nothing_else():
    turns = [turn(number, step) for number in range(5) for step in range(20)]
    chosen = [act(RandomPolicy(7), each) for each in turns]
    shuffled = random.Random(0).sample(range(len(turns)), len(turns))
    policy = RandomPolicy(7)
    again = {at: act(policy, turns[at]) for at in shuffled}
    assert [again[at] for at in range(len(turns))] == chosen
    assert set(chosen) == {"a", "b", "c"}
    assert chosen != [act(RandomPolicy(8), each) for each in turns]
    assert act(policy, turn(actions=())) is None


def test_the_hint_policy_follows_hints_but_does_not_insist():
    assert act(HintPolicy(), turn(hint="press 1 1")) == "press 1 1"
    assert act(HintPolicy(), turn(hint=None)) is None
    assert act(HintPolicy(), turn(hint="press 1 1", history=("press 1 1",))) == "press 1 1"
    assert act(HintPolicy(), turn(hint="press 1 1", history=("press 1 1",), refused=True)) is None


def test_scripts_are_files_mappings_or_functions(tmp_path):
    path = tmp_path / "script.jsonl"
    path.write_text(json.dumps({"game": "lights", "difficulty": "easy", "seed": 3, "actions": ["x", "y"]}) + "\n\n")
    for policy in (ScriptedPolicy.load(path), ScriptedPolicy({("lights", "easy", 3): ["x", "y"]})):
        assert [act(policy, turn(3, step)) for step in range(3)] == ["x", "y", None]
        assert act(policy, turn(4)) is None
    assert act(ScriptedPolicy(lambda turn: turn.actions[-1]), turn()) == "c"


BROKEN = [
    "{",
    "[]",
    '{"game":"lights"}',
    '{"game":"a","difficulty":"easy","seed":"x","actions":[]}',
    '{"game":"a","difficulty":"easy","seed":1,"actions":[1]}',
    '{"game":"a","difficulty":"easy","seed":1,"actions":3}',
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_script_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "script.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(DataError, match=r"script\.jsonl:2: "):
        ScriptedPolicy.load(path)


def lockstep(lengths, lanes, delays, *, in_thread=False):
    """Plays episodes of these lengths on so many lanes as the stream does, with random delays; the batches that were
    asked for.
    """
    rng, batches, queue = random.Random(delays), [], list(range(len(lengths)))

    def choose(turns):
        batches.append([(turn.episode.number, turn.step) for turn in turns])
        return [f"{turn.episode.number}/{turn.step}" for turn in turns]

    async def lane(policy, number):
        while number is not None:
            for step in range(lengths[number]):
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                assert await policy.act(turn(number, step)) == f"{number}/{step}"
            policy.end(turn(number).episode)
            number = take(policy)

    def take(policy):
        if not queue:
            return None
        policy.begin(turn(queue[0]).episode)
        return queue.pop(0)

    async def run():
        policy = Together(choose, in_thread=in_thread)
        await asyncio.wait_for(asyncio.gather(*[lane(policy, take(policy)) for _ in range(lanes)]), 20)
        assert policy.batches == len(batches)
        assert policy.turns == sum(lengths)

    asyncio.run(run())
    return batches


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=60)
def test_lanes_that_decide_together_meet_in_the_same_batches_whatever_the_delays(lengths, lanes, delays):
    batches = lockstep(lengths, lanes, delays)
    assert batches == lockstep(lengths, lanes, delays + 1)
    assert sorted(turn for batch in batches for turn in batch) == [
        (n, step) for n, length in enumerate(lengths) for step in range(length)
    ]
    assert all(batch == sorted(batch) for batch in batches)


def test_deciding_in_a_thread_is_the_same():
    assert lockstep([3, 1, 4, 1, 5], 3, 0, in_thread=True) == lockstep([3, 1, 4, 1, 5], 3, 1)


def test_an_episode_that_ends_or_is_cancelled_while_others_wait_does_not_hold_them():
    async def run():
        policy = Together(lambda turns: [str(len(turns)) for _ in turns], in_thread=False)
        for number in range(4):
            policy.begin(turn(number).episode)
        waiting = [asyncio.create_task(policy.act(turn(number))) for number in range(3)]
        await asyncio.sleep(0)
        waiting[2].cancel()
        await asyncio.gather(waiting[2], return_exceptions=True)
        policy.end(turn(2).episode)
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting[:2])  # 3 is still playing
        policy.end(turn(3).episode)
        assert await asyncio.wait_for(asyncio.gather(*waiting[:2]), 5) == ["2", "2"]

    asyncio.run(run())


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_choosing_raises_all_who_wait_get(in_thread):
    def choose(turns):
        raise RuntimeError("out of memory")

    async def run(choose, error):
        policy = Together(choose, in_thread=in_thread)
        for number in range(3):
            policy.begin(turn(number).episode)
        results = await asyncio.gather(*(policy.act(turn(number)) for number in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [error] * 3

    asyncio.run(run(choose, RuntimeError))
    asyncio.run(run(lambda turns: [], DataError))
