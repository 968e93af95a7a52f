"""A gym stream in loops: left, closed, reset and raised in, from here and from elsewhere, it loses nothing and counts
nothing twice.
"""

import asyncio
import gc
import random
import threading
import time
from collections import Counter

import pytest
from support.fake_gym import FakeGym, options

from brim.core.errors import BrimError, MismatchError
from brim.data.rows.prompts import Prompts
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.puzzle.policies import RandomPolicy, ScriptedPolicy, SimplePolicy, Together
from brim.envs.puzzle.wire.errors import ServerClosed
from brim.stream.gym import GymEpisodeStream


@pytest.fixture(scope="module")
def fake():
    with FakeGym() as fake:
        yield fake


def press(turn):
    return "press 1 1"


def stream_of(fake, policy=None, *, episodes=6, options_of=None, **more):
    return GymEpisodeStream(
        options(fake, **(options_of or {})), ByteTokenizer(), policy or ScriptedPolicy(press), episodes=episodes, **more
    )


def counts(stream):
    return stream.metrics.num_episodes, stream.metrics.samples


class Raising:
    """A policy with nothing but `act`."""

    def __init__(self, error):
        self.error = error

    async def act(self, turn):
        raise self.error


RAISED = [
    SystemExit(3),
    KeyboardInterrupt(),
    RuntimeError("no model"),
    ServerClosed("the server of the model went away"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["act", "choose", "choose in the loop"])
def test_whatever_a_policy_raises_comes_out_and_nobody_waits(fake, how, error):
    def choose(turns):
        raise error

    policy = Raising(error) if how == "act" else Together(choose, in_thread=how == "choose")
    stream = stream_of(fake, policy)
    with pytest.raises(type(error)):
        list(stream)
    assert stream.metrics.num_episodes == 0

    async def play():
        with pytest.raises(type(error)):
            async for _ in stream:
                pass
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())


def test_a_policy_that_cancels_itself_or_cannot_begin_ends_the_stream(fake):
    class Unready(RandomPolicy):
        def begin(self, episode):
            raise SystemExit(4)

    with pytest.raises(BrimError, match="was cancelled by its own work"):
        list(stream_of(fake, Raising(asyncio.CancelledError())))
    with pytest.raises(SystemExit):
        list(stream_of(fake, Unready()))


def test_a_choice_that_never_comes_keeps_nobody(fake):
    forever = threading.Event()
    policy = Together(lambda turns: forever.wait() and [])
    try:
        stream = stream_of(fake, policy, episodes=2, options_of={"episode_timeout": 0.2})
        assert [episode.reason for episode in stream.iter_episodes()] == ["out of time"] * 2

        async def play():
            stream.reset()
            assert [episode.reason async for episode in stream.episodes()] == ["out of time"] * 2
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(play())
    finally:
        forever.set()


@pytest.mark.slow
def test_an_iterator_that_is_collected_in_the_thread_of_the_lanes_ends_them(fake):
    collected = threading.Event()

    class Collecting(SimplePolicy):
        async def act(self, turn):
            if forgotten.is_set():
                gc.collect()
                collected.set()
            return "press 1 1"

    forgotten, cycle = threading.Event(), []
    stream = stream_of(fake, Collecting(), episodes=None)
    cycle += [iter(stream), cycle]
    next(cycle[0])
    gc.disable()
    try:
        del cycle
        forgotten.set()
        assert collected.wait(20)
        stream.close()
    finally:
        gc.enable()
    for _ in range(1000):
        if "gym lanes" not in {thread.name for thread in threading.enumerate()}:
            return
        time.sleep(0.02)
    pytest.fail("the lanes are still there")


@pytest.mark.parametrize("action", [5, b"press 1 1", ["press 1 1"]])
def test_an_answer_that_is_no_text_names_the_policy_and_the_episode(fake, action):
    with pytest.raises(BrimError, match=r"the policy scripted in step 0 of lights-easy-\d+: an action is a string"):
        list(stream_of(fake, ScriptedPolicy(lambda turn: action)))


def test_answers_that_are_no_moves_are_refused_and_spaces_around_one_are_no_part_of_it(fake):
    strange = {0: "\ud800", 1: "dance", 2: "", 3: "  press 1 1 "}
    stream = stream_of(fake, ScriptedPolicy(lambda turn: strange.get(turn.step)), episodes=1, learn_invalid=True)
    actions = [bytes(sample.input_ids[sample.loss_mask == 1][:-1].tolist()).decode() for sample in stream]
    assert actions == ["dance", "press 1 1"]
    assert stream.metrics.filtered == {"invalid action": 1, "empty action": 1}


def test_an_async_loop_that_was_left_can_be_entered_again(fake):
    async def play():
        stream, ids = stream_of(fake), []
        for _ in range(7):
            async for sample in stream:
                ids.append(sample.sample_id)
                if len(ids) % 3 == 1:
                    break
        assert len(ids) == len(set(ids)) == 18
        assert counts(stream) == (6, 18)
        items = aiter(stream_of(fake))
        await anext(items)
        await items.aclose()
        assert [item async for item in items] == []
        await asyncio.sleep(0.02)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())


def test_a_loop_that_ends_in_the_middle_leaves_no_noise_and_the_next_goes_on(fake, caplog):
    stream = stream_of(fake)

    async def half():
        items = aiter(stream)
        await anext(items)
        return items

    async def rest():
        return [sample.sample_id async for sample in stream]

    kept = asyncio.run(half())
    assert len(asyncio.run(rest())) == 17
    del kept
    assert caplog.text == ""


def test_cancelled_while_it_closes_a_stream_tells_policies_and_can_go_on(fake):
    begun, ended = [], []

    class Tidy(SimplePolicy):
        def begin(self, episode):
            begun.append(episode.number)

        def end(self, episode):
            ended.append(episode.number)

        async def act(self, turn):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
                raise
            return "press 1 1"

    async def play():
        stream = stream_of(fake, Tidy(), episodes=None)

        async def consume():
            async for _ in stream:
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sorted(ended) == begun
        async for _ in stream:
            break
        await stream.aclose()
        await asyncio.sleep(0.3)

    asyncio.run(play())


def test_reset_and_close_in_the_loop_end_it_and_lose_nothing(fake):
    stream = stream_of(fake)
    full = [sample.sample_id for sample in stream]
    stream.reset()
    given = []
    for sample in stream:
        given.append(sample.sample_id)
        if len(given) == 2:
            stream.reset()
    assert given == full[:2]
    given = []
    for _ in range(9):
        for sample in stream:
            given.append(sample.sample_id)
            if len(given) % 2 == 0:
                stream.close()
    assert given == full
    assert counts(stream) == (6, 18)


@pytest.mark.slow
def test_closing_from_another_thread_at_any_moment_ends_the_loop_for_good(fake):
    rng = random.Random(1)
    for number in range(30):
        stream, raised = stream_of(fake, episodes=30), []

        def consume(stream=stream, raised=raised, number=number):
            async def play():
                async for _ in stream:
                    pass

            try:
                asyncio.run(play()) if number % 3 == 0 else list(stream)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        time.sleep(rng.random() * 0.02)
        stream.close()
        thread.join(20)
        assert not thread.is_alive()
        assert raised == []
        assert stream.state in ("closed", "exhausted")  # the latter if it was closed before the loop began
        assert len(list(stream)) + stream.metrics.samples >= 90  # and can be iterated again
        assert counts(stream) == (30, 90)


def test_an_episode_is_counted_once_whatever_happens_on_the_way(fake):
    raised = iter([False, False, True, *[False] * 100])

    def keep(episode):
        if next(raised):
            raise RuntimeError("keep")
        return True

    stream = stream_of(fake, keep=keep)
    ids = []
    with pytest.raises(RuntimeError, match="keep"):
        ids += (sample.sample_id for sample in stream)
    assert stream.state == "error"
    ids = [sample.sample_id for sample in stream]
    assert len(ids) == 12
    assert counts(stream) == (6, 18)

    stream = stream_of(fake)
    next(iter(stream))
    assert [episode.spec.number for episode in stream.iter_episodes()] == list(range(6))
    assert counts(stream) == (6, 1)


def test_played_episodes_come_with_their_samples_and_are_counted_once(fake):
    whole = [sample.sample_id for sample in stream_of(fake)]
    stream = stream_of(fake, keep=lambda episode: episode.spec.number % 2 == 0)
    played = list(stream.iter_played())
    assert [episode.spec.number for episode, _ in played] == list(range(6))
    assert [len(samples) for _, samples in played] == [3, 0] * 3
    assert counts(stream) == (6, 9)
    assert stream.metrics.filtered == {"not kept": 9}

    stream = stream_of(fake)
    given = [next(iter(stream)).sample_id]
    given += [sample.sample_id for _, samples in stream.iter_played() for sample in samples]
    assert given == whole
    assert counts(stream) == (6, 18)


def test_a_prompt_that_the_policy_has_read_is_not_tokenised_again_for_its_sample(fake):
    encoded = []

    class Counting(ByteTokenizer):
        def encode_batch(self, texts):
            encoded.extend(texts)
            return super().encode_batch(texts)

    prompts, read = Prompts(Counting()), []

    def choose(turns):
        read.extend(tuple(prompts.tokens(turn.prompt).tolist()) for turn in turns)
        return ["press 1 1"] * len(turns)

    samples = list(GymEpisodeStream(options(fake), prompts, Together(choose), episodes=6))
    plain = list(stream_of(fake))
    assert samples == plain
    assert {tuple(sample.input_ids[sample.loss_mask == 0].tolist()) for sample in samples} == set(read)
    boards = [text for text in encoded if text.startswith("lights")]
    assert len(boards) == len(set(boards)) == 3


def test_keep_is_asked_once_for_an_episode(fake):
    asked, rng = [], random.Random(0)

    def keep(episode):
        asked.append(episode.spec.number)
        return rng.random() < 0.5

    stream = stream_of(fake, keep=keep)
    per_episode = Counter(sample.episode_id for sample in stream)
    assert asked == list(range(6))
    assert set(per_episode.values()) == {3}
    assert stream.metrics.filtered == {"not kept": 3 * (6 - len(per_episode))}


def test_what_was_counted_goes_on_with_the_state(fake):
    def clumsy(turn):
        return "dance" if turn.step == 1 else "press 1 1"

    whole = stream_of(fake, ScriptedPolicy(clumsy))
    expected = [sample.sample_id for sample in whole]
    first = stream_of(fake, ScriptedPolicy(clumsy))
    given = [next(iter(first)).sample_id]
    first.errors["ServerClosed"] = 2
    second = stream_of(fake, ScriptedPolicy(clumsy))
    second.load_state_dict(first.state_dict())
    given += [sample.sample_id for sample in second]
    assert given == expected
    assert second.metrics.filtered == whole.metrics.filtered == {"invalid action": 6}
    assert second.errors == {"ServerClosed": 2}


@pytest.mark.parametrize(
    "damage",
    [
        {"ahead": None},
        {"episode": "x"},
        {"episode": -1},
        {"given": [[1]]},
        {"errors": []},
        {"metrics": {"apples": 1}},
        {"metrics": 5},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(fake, damage):
    stream = stream_of(fake)
    next(iter(stream))
    before = stream.state_dict()
    with pytest.raises(MismatchError, match="damaged"):
        stream.load_state_dict({**before, **damage})
    assert stream.state_dict() == before
