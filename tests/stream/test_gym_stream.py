"""Episodes on the real server as a stream: played to their end, in order, once, from wherever it was left."""

import asyncio
import threading
import time

import numpy as np
import pytest

from brim.core.errors import BrimError, MismatchError, OptionError
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.episode import EpisodeStatus
from brim.envs.puzzle.config import GymConfig, RewardConfig
from brim.envs.puzzle.games import QUICK, EpisodeSpec
from brim.envs.puzzle.policies import RandomPolicy, SimplePolicy, Together
from brim.envs.puzzle.wire.errors import UnknownGame
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.stream.gym import GymEpisodeStream
from brim.stream.protocols import AsyncSampleStream, SampleStream
from brim.stream.sample import SampleSource

EASY = (0.0, 0.4)
SHORT = ("lights", "nqueens", "mastermind", "graph_coloring")


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as server:
        yield server


def config(server, **options):
    return GymConfig(
        **{"host": "127.0.0.1", "port": server.port, "games": SHORT, "difficulty_range": EASY, "lanes": 4, **options}
    )


def stream_of(server, policy=None, *, episodes=12, options=None, **more):
    return GymEpisodeStream(config(server, **(options or {})), ByteTokenizer(), policy, episodes=episodes, **more)


def specs(games, per_game=1):
    numbered = enumerate((game, seed) for game in games for seed in range(per_game))
    return [EpisodeSpec(number=number, game=game, difficulty="easy", seed=seed) for number, (game, seed) in numbered]


def facts(sample):
    return sample.sample_id, sample.input_ids.tolist(), sample.loss_mask.tolist(), sample.reward, sample.success


def test_all_quick_games_are_played_to_their_end_over_tcp(server):
    stream = stream_of(server, episodes=specs(QUICK), options={"lanes": 8, "transport": "tcp"})
    episodes = list(stream.iter_episodes())
    assert [episode.spec.game for episode in episodes] == list(QUICK)
    assert [episode.spec.game for episode in episodes if not episode.success] == []
    assert {lane.transport for lane in stream.lanes} == {"tcp"}
    assert stream.metrics.success_by_difficulty["easy"].ratio == 1.0
    assert stream.fill.used == 0
    assert stream.fill.slots == 8


@pytest.mark.parametrize("transport", ["telnet", "websocket"])
def test_games_are_played_to_their_end_over_other_transports(transport):
    games = ("lights", "nqueens", "futoshiki", "minesweeper")
    with PuzzleServer(transport) as other:
        stream = stream_of(other, episodes=specs(games), options={"host": "localhost"})
        assert all(episode.success for episode in stream.iter_episodes())
        assert {lane.transport for lane in stream.lanes} == {transport}


def test_for_and_async_for_give_the_same_samples_on_any_number_of_lanes(server):
    async def collect(lanes):
        async with stream_of(server, options={"lanes": lanes}) as stream:
            return [facts(sample) async for sample in stream]

    expected = [facts(sample) for sample in stream_of(server)]
    assert len(expected) > 30
    assert asyncio.run(collect(1)) == asyncio.run(collect(7)) == expected
    assert sorted(facts(sample) for sample in stream_of(server, ordered=False)) == sorted(expected)


def test_a_sample_is_what_a_row_with_a_prompt_and_a_response_would_be(server):
    stream = stream_of(server, episodes=6, dataset_id="games", policy_version=17)
    episodes = list(stream.iter_episodes())
    steps = [(episode, step) for episode in episodes for step in episode.steps]
    samples = list(stream_of(server, episodes=6, dataset_id="games", policy_version=17))
    rows = [{"prompt": step.prompt, "response": step.action} for _, step in steps]
    for sample, (episode, step), (tokens, mask) in zip(
        samples, steps, encode_rows(rows, ByteTokenizer(), RowFormat(), str), strict=True
    ):
        assert np.array_equal(sample.input_ids, tokens)
        assert np.array_equal(sample.loss_mask, mask)
        assert sample.sample_id == f"{episode.episode_id}@{episode.spec.number}/{step.step_index}"
        assert (sample.step_index, sample.total_steps, sample.reward) == (
            step.step_index,
            len(episode.steps),
            step.reward,
        )
        assert (sample.source, sample.dataset_id, sample.policy_version) == (SampleSource.GYM, "games", 17)
        assert (sample.success, sample.episode_status, sample.difficulty) == (True, EpisodeStatus.SUCCESS, 0.3)
    stream.reset()
    played = list(stream.iter_played())
    assert [episode.steps for episode, _ in played] == [episode.steps for episode in episodes]
    assert [sample for _, of_episode in played for sample in of_episode] == samples


def test_a_stream_that_was_stopped_after_any_sample_goes_on_with_the_next(server):
    for ordered in (True, False):
        expected = sorted(facts(sample) for sample in stream_of(server, ordered=ordered))
        for stop in (1, 2, 9, 17, len(expected) - 1, len(expected)):
            first = stream_of(server, ordered=ordered)
            given = []
            for sample in first:
                given.append(facts(sample))
                if len(given) == stop:
                    break
            second = stream_of(server, ordered=ordered)
            second.load_state_dict(first.state_dict())
            rest = [facts(sample) for sample in second]
            assert sorted(given + rest) == expected
            assert second.metrics.num_episodes == 12
            assert second.metrics.samples == len(expected)
            assert [facts(sample) for sample in first] == rest or not ordered  # the first one can go on too


def test_state_and_protocols(server):
    stream = stream_of(server, episodes=2)
    assert isinstance(stream, SampleStream)
    assert isinstance(stream, AsyncSampleStream)
    assert stream.state == "idle"
    samples = [facts(sample) for sample in stream]
    assert stream.state == "exhausted"
    assert list(stream) == []
    stream.reset()
    assert [facts(sample) for sample in stream] == samples
    stream.close()
    assert stream.state == "closed"
    with pytest.raises(MismatchError, match="another gym stream"):
        stream_of(server, episodes=2, options={"seed": 1}).load_state_dict(stream.state_dict())


def test_leaving_the_loop_ends_the_lanes_at_once(server):
    threads = threading.active_count()
    stream = stream_of(server, episodes=None, options={"games": ("killer",)})
    for _ in stream:
        break
    assert threading.active_count() == threads
    with stream_of(server, episodes=None) as inner:
        iterator = iter(inner)
        next(iterator)
        with pytest.raises(BrimError, match="iterated already"):
            next(iter(inner))
    assert threading.active_count() == threads

    async def leave():
        async with stream_of(server, episodes=None) as stream:
            async for _ in stream:
                break
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(list(stream_of(server, episodes=2))) > 2  # `for` while a loop runs in this thread

    asyncio.run(leave())


def test_a_slow_consumer_does_not_let_the_lanes_run_ahead(server):
    begun = []

    class Counting(RandomPolicy):
        def begin(self, episode):
            begun.append(episode.number)

    async def play():
        async with stream_of(server, Counting(), episodes=None, options={"max_steps": 1, "lanes": 3}) as stream:
            episodes = stream.episodes()
            for number in range(3):
                assert (await anext(episodes)).spec.number == number
            before = -1
            while len(begun) != before:
                before = len(begun)
                await asyncio.sleep(0.2)
            assert len(begun) <= 3 + 5 * 3
            await episodes.aclose()

    asyncio.run(play())
    assert begun == sorted(set(begun))


def test_lanes_that_decide_together_do_so_in_the_same_batches_every_time(server):
    def play(lanes):
        batches = []

        def choose(turns):
            batches.append([(turn.episode.number, turn.step) for turn in turns])
            return [turn.actions[(turn.step * 7 + turn.episode.number) % len(turn.actions)] for turn in turns]

        options = {"lanes": lanes, "games": ("lights", "nqueens"), "max_steps": 6}
        return [
            e.total_reward for e in stream_of(server, Together(choose), episodes=15, options=options).iter_episodes()
        ], batches

    rewards, batches = play(5)
    assert (rewards, batches) == play(5)
    assert rewards == play(2)[0]
    assert sum(len(batch) for batch in batches) / len(batches) > 3


def test_rewards_count_actions_invalid_actions_and_hints_and_cannot_be_farmed(server):
    class Clumsy(SimplePolicy):
        wants_hints = True

        async def act(self, turn):
            return "press 99 99" if turn.step == 0 else "dance" if turn.step == 1 else turn.hint

    options = {"games": ("lights",), "rewards": RewardConfig(success=2.0, step=-0.5, invalid=-3.0, hint=-10.0)}
    [episode] = stream_of(server, Clumsy(), episodes=1, options=options).iter_episodes()
    assert [step.reward for step in episode.steps[:3]] == [-13.5, -13.5, -10.5]
    assert [step.code for step in episode.steps[:3]] == ["INVALID_PRESS", "NOT_A_MOVE", "PRESSED"]
    assert episode.steps[-1].reward == -8.5
    assert (episode.invalid, episode.hints) == (2, len(episode.steps))
    for name in ("step", "invalid", "hint", "failure"):
        with pytest.raises(OptionError, match="without solving anything"):
            RewardConfig(**{name: 0.1})
    with pytest.raises(OptionError, match="finite"):
        RewardConfig(success=float("nan"))


def test_what_becomes_no_sample_is_counted(server):
    class Clumsy(SimplePolicy):
        wants_hints = True

        async def act(self, turn):
            return "dance" if turn.step == 0 else turn.hint

    stream = stream_of(server, Clumsy(), options={"games": ("lights",)})
    samples = list(stream)
    assert stream.metrics.filtered == {"invalid action": 12}
    every = list(stream_of(server, Clumsy(), options={"games": ("lights",)}, learn_invalid=True))
    assert len(every) == len(samples) + 12
    assert sum(sample.reward < -0.1 for sample in every) == 12
    losing = stream_of(
        server, RandomPolicy(1), options={"games": ("lights",), "max_steps": 2}, keep=lambda episode: episode.success
    )
    kept = list(losing)
    assert len(kept) + losing.metrics.filtered["not kept"] == sum(min(len(e.steps), 2) for e in losing_episodes(server))
    long = stream_of(server, max_length=20)
    assert list(long) == []
    assert set(long.metrics.filtered) == {"too long"}
    assert long.state_dict()["episode"] == 12


def losing_episodes(server):
    return stream_of(server, RandomPolicy(1), options={"games": ("lights",), "max_steps": 2}).iter_episodes()


def test_losing_giving_up_and_running_out_are_failures_and_time_is_a_timeout(server):
    class Slow(SimplePolicy):
        async def act(self, turn):
            await asyncio.sleep(30)

    class Guess(SimplePolicy):
        async def act(self, turn):
            return "guess 1 1 1 1"

    def only(policy, **options):
        [episode] = stream_of(server, policy, episodes=1, options=options).iter_episodes()
        return episode.status, episode.reason

    assert only(Guess(), games=("mastermind",)) == (EpisodeStatus.FAILURE, "lost")
    assert only(RandomPolicy(), games=("mastermind",)) == (EpisodeStatus.FAILURE, "gave up")
    assert only(RandomPolicy(), games=("killer",), max_steps=3) == (EpisodeStatus.FAILURE, "out of steps")
    assert only(Slow(), episode_timeout=0.2) == (EpisodeStatus.TIMEOUT, "out of time")


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
def test_what_a_policy_raises_comes_out_of_the_stream(server, error):
    class Broken(SimplePolicy):
        async def act(self, turn):
            raise error("no model")

    stream = stream_of(server, Broken())
    with pytest.raises(error, match="no model"):
        list(stream)
    assert stream.state == "error"
    with pytest.raises(error, match="no model"):
        list(stream_of(server, Together(lambda turns: (_ for _ in ()).throw(error("no model")))))


def test_policies_are_told_of_every_beginning_and_every_end(server):
    class Watching(RandomPolicy):
        def __init__(self):
            super().__init__()
            self.begun, self.ended = [], []

        def begin(self, episode):
            self.begun.append(episode.number)

        def end(self, episode):
            self.ended.append(episode.number)

    for stop in (1, 5, 1000):
        policy = Watching()
        for count, _ in enumerate(stream_of(server, policy, episodes=20).iter_episodes(), 1):
            if count == stop:
                break
        assert policy.begun == sorted(set(policy.begun))
        assert sorted(policy.ended) == policy.begun


def test_the_version_of_the_policy_is_that_of_the_moment_when_it_acted(server):
    versions = iter(range(10_000))
    samples = list(stream_of(server, episodes=3, options={"lanes": 1}, policy_version=lambda: next(versions)))
    assert [sample.policy_version for sample in samples] == list(range(len(samples)))


def test_episodes_are_a_function_of_the_seed():
    one, other = GymConfig(), GymConfig(seed=43)
    episodes = [one.episode(number) for number in range(300)]
    assert episodes == [one.episode(number) for number in range(300)]
    assert {episode.game for episode in episodes} == set(QUICK)
    assert {episode.difficulty for episode in episodes} == {"easy", "medium", "hard"}
    assert len({episode.seed for episode in episodes}) == 300
    assert episodes[0] != other.episode(0)
    assert GymConfig(games="lights").games == ("lights",)
    assert {GymConfig(difficulty_range=(0.4, 0.6)).episode(n).difficulty for n in range(20)} == {"medium"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": ("sudokuu",)}, 'Did you mean "sudoku"'),
        ({"games": ("logic",)}, "cannot be played to its end"),
        ({"games": ()}, "games is empty"),
        ({"difficulty_range": (0.8, 1.0)}, "no difficulty lies in"),
        ({"difficulty_range": (0.8, 0.1)}, "difficulty_range"),
        ({"transport": "http"}, "transport"),
        ({"lanes": 0}, "lanes"),
        ({"port": 70000}, "port"),
        ({"host": ""}, "host must name"),
        ({"host": 5}, "host must name"),
        ({"seed": "a"}, "seed"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"read_timeout": "3"}, "read_timeout"),
        ({"read_timeout": True}, "read_timeout"),
        ({"max_retry_delay": None}, "max_retry_delay"),
        ({"rewards": None}, "rewards"),
        ({"difficulty_range": (0.1,)}, "difficulty_range"),
        ({"difficulty_range": ("a", "b")}, "difficulty_range"),
        ({"games": "light"}, 'Did you mean "lights"'),
        ({"max_retries": -1}, "max_retries"),
        ({"read_timeout": 0}, "read_timeout"),
        ({"retry_delay": 31}, "retry_delay"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises((OptionError, UnknownGame), match=message):
        GymConfig(**options)


def test_episodes_need_numbers_of_their_own(server):
    spec = EpisodeSpec(number=1, game="lights", difficulty="easy", seed=1)
    with pytest.raises(OptionError, match="same number"):
        stream_of(server, episodes=[spec, spec])
    with pytest.raises(OptionError, match="negative"):
        stream_of(server, episodes=-1)
    with pytest.raises(OptionError, match="min_length"):
        stream_of(server, min_length=9, max_length=8)


def test_closing_is_prompt_while_a_policy_thinks(server):
    class Slow(SimplePolicy):
        async def act(self, turn):
            await asyncio.sleep(600)

    stream = stream_of(server, Slow(), episodes=None)
    given = []
    thread = threading.Thread(target=lambda: given.append(list(stream)), daemon=True)
    thread.start()
    while not any(lane.busy for lane in stream.lanes):
        time.sleep(0.01)
    stream.close()
    thread.join(20)
    assert given == [[]]
    assert stream.state == "closed"
