"""Servers that lie, hang up and go away: what an episode, and what a whole run, makes of them."""

import asyncio
import threading
import time

import pytest
from support.fake_gym import OK, SOLVED, FakeGym, hang_up, options

from brim.core.errors import OptionError
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.episode import Ending, EpisodeStatus
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import HintPolicy, RandomPolicy, ScriptedPolicy, SimplePolicy, Together
from brim.envs.puzzle.run import find_server
from brim.envs.puzzle.wire import session
from brim.envs.puzzle.wire.errors import ConnectionFailed, ProtocolError, ServerClosed, ServerTimeout, UnknownGame
from brim.stream.gym import GymEpisodeStream


def press(turn):
    return "press 1 1"


def stream_of(fake, policy=None, *, episodes=4, **more):
    return GymEpisodeStream(options(fake, **more), ByteTokenizer(), policy or ScriptedPolicy(press), episodes=episodes)


def only(fake, policy=None, **more):
    [episode] = stream_of(fake, policy, episodes=1, **more).iter_episodes()
    return episode


def changed(**fields):
    return lambda seen: {**seen, **fields}


@pytest.mark.parametrize(
    ("game", "fields", "message"),
    [
        ("lights", {"grid": 5}, "1 to 40 rows"),
        ("lights", {"grid": []}, "1 to 40 rows"),
        ("lights", {"grid": [5, 6]}, "1 to 40 rows"),
        ("lights", {"grid": [[0] * 41]}, "1 to 40 rows"),
        ("lights", {"grid": [[True]]}, "integers"),
        ("lights", {"grid_display": 5}, "drawing"),
        ("knapsack", {"grid": None, "grid_display": "\n" * 400_000}, "drawing"),
        ("numberlink", {"grid": [["a", None]]}, "integers"),
        ("numberlink", {"grid": [[0, 2**40]]}, "integers"),
        ("hidato", {"grid": [[[1]]]}, "integers"),
        ("shikaku", {"grid": [[2, 1], [1]]}, "of one length"),
        ("rush_hour", {"grid": [["A", 1]]}, "letters"),
        ("lights", {"seed": -1}, "the server gave"),
    ],
)
def test_a_position_that_is_none_is_an_error_of_its_episode_at_the_start_and_after_a_move(game, fields, message):
    for at in (0, 1):
        with FakeGym(
            see=lambda seen, at=at: {**seen, "grid": None, **(fields if seen["grid"][1][1] >= at else {})}
        ) as fake:
            episode = only(fake, ScriptedPolicy(lambda turn: MOVES.get(turn.episode.game, "press 1 1")), games=game)
        assert episode.status is EpisodeStatus.ERROR
        assert isinstance(episode.error, ProtocolError)
        assert message in str(episode.error)
        assert len(episode.steps) == 0


MOVES = {
    "knapsack": "select 1",
    "numberlink": "place 1 1 1",
    "hidato": "place 1 1 1",
    "shikaku": "bridge 1 1 1 1 1",
    "rush_hour": "move A up",
}


@pytest.mark.parametrize(
    ("game", "drawn"),
    [
        ("graph_coloring", "9999 colors\n" + " 1: [ ]\n" * 5000),
        ("slither", "+\n" * 30_000),
        ("knapsack", " " * 30_000 + "\n" * 30_000),
        ("scheduler", "Workers: 9999 Optimal Makespan: 9999\n" + " 1 | a | b | Not scheduled\n" * 2000),
        ("scheduler", "Workers: " + "9" * 5000 + " Optimal Makespan: 3\n 1 | a | b | Not scheduled"),
        ("minesweeper", "1 " + "|." * 30_000),
    ],
)
def test_drawings_that_promise_too_much_neither_hang_nor_fill_the_memory(game, drawn):
    seen = []

    def choose(turn):
        seen.append(len(turn.actions))

    with FakeGym(see=changed(grid=None, grid_display=drawn)) as fake:
        assert only(fake, ScriptedPolicy(choose), games=game).reason == "gave up"
    assert seen[0] <= 10_000


@pytest.mark.parametrize(
    ("records", "end"),
    [
        (lambda seen: [OK, seen(), SOLVED], "solved"),
        (lambda seen: [OK, seen(), {"type": "complete", "success": False}], "lost"),
        (lambda seen: [OK, seen(), "GAME OVER! It was red."], "lost"),
        (lambda seen: [OK, seen(), "GAME OVER! It was red.", SOLVED], "ended the game twice"),
        (lambda seen: [OK, seen(), SOLVED, SOLVED], "ended the game twice"),
        (lambda seen: [{**OK, "success": False}, SOLVED], "refused, and yet ended"),
        (lambda seen: [{**OK, "success": "yes"}, seen()], "refused with a new position"),
        (lambda seen: [OK], "accepted without a new position"),
        (lambda seen: [OK, OK, seen()], "2 results"),
        (lambda seen: [{"type": "error", "mode": "k99"}, OK, seen()], "a record of type 'error'"),
        (lambda seen: [*["la la la"] * 3000, OK, seen()], "more than 20000 bytes"),
    ],
)
def test_what_a_move_is_answered_with_decides_or_is_an_error(monkeypatch, records, end):
    monkeypatch.setattr(session, "MAX_REPLY", 20_000)
    with FakeGym(move=lambda moves, seen: records(seen)) as fake:
        episode = only(fake)
    assert end == episode.reason or (episode.reason == "ProtocolError" and end in str(episode.error))
    assert episode.success == (end == "solved")


def test_a_hint_has_a_length():
    with FakeGym(hint="Hint: " + "scheduling " * 9000) as fake:
        assert "a hint of 99000 characters" in str(only(fake, HintPolicy()).error)


def test_a_game_taken_up_again_must_be_the_same_position():
    looks = []

    def other_each_time(words, writer):
        if words[0] == "lights":
            looks.append(words)
        return len(looks) == 1 and hang_up(words, writer)

    with FakeGym(on=other_each_time, see=lambda seen: {**seen, "grid_display": f"look {len(looks)}"}) as fake:
        assert "led to another position" in str(only(fake).error)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_server_that_hangs_up_on_every_move_is_an_error_not_a_failure_and_then_the_end(retries):
    with FakeGym(on=hang_up) as fake:
        assert (only(fake, max_retries=retries).reason, fake.connections) == ("ServerClosed", retries + 1)
        stream, ended = stream_of(fake, episodes=100, max_retries=retries), []
        with pytest.raises(
            ServerClosed, match=r"4 attempts in a row ended in an error.*the server closed the connection"
        ):
            ended += stream.iter_episodes()
    assert stream.state == "error"
    assert stream.errors == {"ServerClosed": stream.metrics.num_episodes}
    assert stream.state_dict()["episode"] == stream.metrics.num_episodes <= 6


@pytest.mark.slow
def test_an_episode_that_cannot_be_started_costs_the_others_nothing():
    specs = [EpisodeSpec(number=number, game="lights", difficulty="easy", seed=number) for number in range(12)]

    def refuse_some(words, writer):
        if words[0] == "lights" and int(words[2]) % 2 == 0:
            writer.transport.abort()
            return True

    with FakeGym(on=refuse_some) as fake:
        for lanes in (1, 2):
            ended = list(stream_of(fake, episodes=specs, lanes=lanes, max_retries=3).iter_episodes())
            assert [episode.success for episode in ended] == [False, True] * 6


@pytest.mark.slow
def test_an_outage_is_waited_for_and_no_episode_notices():
    """The clocks of the episodes stand still: they have less time than it takes."""
    with FakeGym() as fake:
        policy = Together(lambda turns: ["press 1 1"] * len(turns))
        stream, ended = (
            stream_of(fake, policy, episodes=40, episode_timeout=0.4, max_retry_delay=5.0, retry_delay=0.02),
            [],
        )
        for episode in stream.iter_episodes():
            ended.append(episode)
            if len(ended) == 5:
                fake.leave()
                threading.Timer(1.0, fake.come).start()
    assert [episode.spec.number for episode in ended] == list(range(40))
    assert {episode.reason for episode in ended} == {"solved"}


@pytest.mark.parametrize("count", [40, None])
def test_a_server_that_is_gone_ends_the_loop_and_nothing_is_counted_that_was_not_played(count):
    with FakeGym() as fake:
        stream, numbers = stream_of(fake, episodes=count), []
        with pytest.raises(
            ConnectionFailed, match=r"has been unreachable for 0\.\d seconds and \d+ attempts: nothing listens"
        ):
            for episode in stream.iter_episodes():
                numbers.append(episode.spec.number)
                if len(numbers) == 5:
                    fake.leave()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) < 20
        assert stream.metrics.episodes == {"success": len(numbers)}
        fake.come()
        for episode in stream.iter_episodes():
            numbers.append(episode.spec.number)
            if len(numbers) == 40:
                break
    assert numbers == list(range(40))


@pytest.mark.slow
def test_a_server_that_is_expected_is_waited_for_even_if_it_was_never_there():
    with FakeGym() as fake:
        config = options(fake, retry_delay=0.05, max_retry_delay=5.0)
        fake.leave()
        with pytest.raises(ConnectionFailed, match="nothing listens"):
            list(GymEpisodeStream(config, ByteTokenizer(), ScriptedPolicy(press), episodes=1))
        threading.Timer(0.3, fake.come).start()
        stream = GymEpisodeStream(config, ByteTokenizer(), ScriptedPolicy(press), episodes=4, wait_for_server=True)
        assert {episode.reason for episode in stream.iter_episodes()} == {"solved"}


def test_a_server_is_found_or_the_error_says_what_answers_instead():
    with FakeGym() as fake:
        config = options(fake, connect_timeout=0.5)
        assert find_server(config) == "tcp"

        async def inside_a_loop():
            return find_server(config)

        assert asyncio.run(inside_a_loop()) == "tcp"
        fake.leave()
        with pytest.raises(ConnectionFailed, match="nothing listens"):
            find_server(config)
        fake.come()
    assert "brim find server" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("move", "policy", "terminated", "reason"),
    [
        (None, ScriptedPolicy(press), True, "solved"),
        (lambda moves, seen: [OK, seen(), "GAME OVER! It was red."], ScriptedPolicy(press), True, "lost"),
        (None, ScriptedPolicy(lambda turn: "press 1 1" if turn.step == 0 else None), False, "gave up"),
        (lambda moves, seen: [OK, seen()], ScriptedPolicy(press), False, "out of steps"),
        (lambda moves, seen: [OK], ScriptedPolicy(press), False, "ProtocolError"),
    ],
)
def test_an_episode_is_terminated_by_the_puzzle_or_truncated_by_anything_else(move, policy, terminated, reason):
    with FakeGym(move=move) as fake:
        episode = only(fake, policy, max_steps=5)
    assert episode.reason == reason
    assert (episode.terminated, episode.truncated) == (terminated, not terminated)
    if reason in list(Ending):
        assert (Ending(reason).terminated, Ending(reason).status) == (terminated, episode.status)


@pytest.mark.parametrize("word", ["lights", "press"])
def test_an_episode_that_never_began_is_the_servers_fault_one_that_did_is_a_timeout(word):
    async def silence(words, writer):
        if words[0] == word:
            await asyncio.sleep(60)

    with FakeGym(on=silence) as fake:
        episode = only(fake, episode_timeout=0.2)
    if word == "press":
        assert (episode.status, episode.error) == (EpisodeStatus.TIMEOUT, None)
    else:
        assert (episode.status, episode.reason) == (EpisodeStatus.ERROR, "ServerTimeout")
        assert isinstance(episode.error, ServerTimeout)


@pytest.mark.slow
def test_a_slow_consumer_changes_nothing_for_lanes_that_decide_together():
    def choose(turns):
        return [None if turn.episode.number % 3 == 1 and turn.step else "press 1 1" for turn in turns]

    def play(fake, delay):
        stream, ended = stream_of(fake, Together(choose), episodes=14, episode_timeout=0.5), []
        for episode in stream.iter_episodes():
            ended.append((episode.spec.number, episode.status, episode.steps))
            time.sleep(delay if len(ended) == 1 else 0)
        return ended

    with FakeGym() as fake:
        assert play(fake, 0) == play(fake, 1.2)


@pytest.mark.parametrize("host", [".foo", "a" * 70, "a b", "::::", "no.such.host.invalid"])
@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_hosts_that_cannot_be_are_one_line(host, transport):
    with FakeGym() as fake, pytest.raises((ConnectionFailed, ProtocolError)) as raised:
        list(stream_of(fake, host=host, transport=transport))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"game": "chess"}, UnknownGame),
        ({"game": "logic"}, UnknownGame),
        ({"difficulty": "very_easy"}, OptionError),
        ({"difficulty": "easy\nquit"}, OptionError),
        ({"seed": "1\nquit"}, OptionError),
        ({"number": -1}, OptionError),
    ],
)
def test_an_episode_that_no_server_has_cannot_be_asked_for(fields, error):
    with pytest.raises(error):
        EpisodeSpec(**{"number": 0, "game": "lights", "difficulty": "easy", "seed": 1, **fields})


def test_hints_before_giving_up_are_counted():
    class Quitter(SimplePolicy):
        wants_hints = True

        async def act(self, turn):
            return turn.hint if turn.step < 2 else None

    with FakeGym() as fake:
        episode = only(fake, Quitter())
    assert (len(episode.steps), episode.hints, episode.last_hints) == (2, 3, 1)


def test_a_server_that_does_not_echo_is_played_over_telnet():
    with FakeGym() as fake:
        assert {
            episode.reason
            for episode in stream_of(fake, RandomPolicy(), episodes=20, transport="telnet").iter_episodes()
        } == {"solved"}
