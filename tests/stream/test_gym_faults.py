"""Servers and networks that fail: every episode still ends, once, in a way that has a name, and nothing is left
behind.
"""

import asyncio
import contextlib
import os
import time

import pytest
from support.fault_proxy import FAULTS, FaultProxy

from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.episode import EpisodeStatus
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.wire.errors import ConnectionFailed, ProtocolError, PuzzleError, ServerClosed, ServerTimeout
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.stream.gym import GymEpisodeStream

SHORT = ("lights", "nqueens", "graph_coloring", "mastermind", "knapsack", "scheduler", "sokoban")
ENDS = {EpisodeStatus.SUCCESS, EpisodeStatus.FAILURE, EpisodeStatus.TIMEOUT, EpisodeStatus.ERROR}


@pytest.fixture(scope="module")
def servers():
    with PuzzleServer() as one, PuzzleServer() as two:
        yield one, two


def config(port, **options):
    defaults = {
        "games": SHORT,
        "difficulty_range": (0.0, 0.4),
        "retry_delay": 0.01,
        "max_retry_delay": 0.05,
        "lanes": 4,
    }
    return GymConfig(host="127.0.0.1", port=port, **{**defaults, **options})


async def played(port, episodes, **options):
    async with GymEpisodeStream(config(port, **options), ByteTokenizer(), episodes=episodes) as stream:
        return [episode async for episode in stream.episodes()], stream


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_episodes_through_a_broken_network_each_end_once_and_leave_nothing_behind(servers):
    async def play():
        handles, sizes, numbers, statuses, errors = len(os.listdir("/proc/self/fd")), [], [], set(), set()
        async with FaultProxy([server.port for server in servers], seed=7, stall=20.0) as proxy:
            options = config(
                proxy.port, lanes=48, read_timeout=0.5, connect_timeout=0.5, episode_timeout=8.0, max_retries=4
            )
            async with GymEpisodeStream(options, ByteTokenizer(), episodes=1000) as stream:
                async for episode in stream.episodes():
                    numbers.append(episode.spec.number)
                    statuses.add(episode.status)
                    assert episode.status in ENDS
                    assert (episode.error is not None) >= (episode.status is EpisodeStatus.ERROR)
                    assert isinstance(episode.error, PuzzleError | None)
                    errors.add(type(episode.error).__name__)
                    assert [step.step_index for step in episode.steps] == list(range(len(episode.steps)))
                    if episode.success:
                        assert episode.steps[-1].done
                        assert not any(step.done for step in episode.steps[:-1])
                    if len(numbers) % 100 == 0:
                        sizes.append(resident())
                assert stream.metrics.num_episodes == 1000
                assert sum(lane.retries for lane in stream.lanes) > 50
            assert set(FAULTS) == set(proxy.faults)
            successes = stream.metrics.episodes["success"]
        await asyncio.sleep(0.05)
        return handles, sizes, numbers, successes, statuses, errors

    handles, sizes, numbers, successes, statuses, errors = asyncio.run(checked(play()))
    assert numbers == list(range(1000))
    assert {EpisodeStatus.SUCCESS} <= statuses <= ENDS
    assert errors <= {"NoneType", "ServerClosed", "ServerTimeout", "ProtocolError"}
    assert successes > 900  # the network is broken, the puzzles are easy
    assert max(sizes[3:]) - sizes[2] < 8 << 20
    assert len(os.listdir("/proc/self/fd")) <= handles


async def checked(coroutine):
    """Its result; no task of its making is left."""
    result = await coroutine
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return result


def test_faults_change_nothing_in_what_was_played(servers):
    """A connection that breaks is replayed to the same position, and the same moves follow."""

    async def play():
        direct, _ = await played(servers[0].port, 60)
        async with FaultProxy([server.port for server in servers], seed=3) as proxy:
            through, _ = await played(proxy.port, 60, read_timeout=0.3, connect_timeout=0.3, max_retries=20, lanes=16)
        return direct, through

    direct, through = asyncio.run(checked(play()))
    assert any(episode.attempts > 1 for episode in through)
    for one, other in zip(direct, through, strict=True):
        assert (one.status, one.steps) == (other.status, other.steps), other.error


@contextlib.asynccontextmanager
async def stub(serve):
    """A server that does as `serve` says; yields its port and how often it was called."""
    tasks, calls = set(), []

    async def each(reader, writer):
        calls.append(time.monotonic())
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], calls
    finally:
        server.close()
        await asyncio.sleep(0.02)  # whoever was just let in has a task by then
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def silent(reader, writer):
    await asyncio.sleep(60)


async def closing(reader, writer):
    pass


async def greeting_only(reader, writer):
    writer.write(b"welcome\r\n")
    await asyncio.sleep(60)


async def greeting_then_closing(reader, writer):
    writer.write(b"welcome\r\n")
    await reader.readline()


async def babbling(reader, writer):
    while True:
        writer.write(b"la" * 20_000)
        await writer.drain()


async def babbling_lines(reader, writer):
    while True:
        writer.write(b"la la la\n" * 5000)
        await writer.drain()


async def records_forever(reader, writer):
    while True:
        writer.write(b'{"type":"observation","game":"Lights Out"}\n' * 1000)
        await writer.drain()


async def wrong_answers(reader, writer):
    writer.write(b'{"type":"mode"}\n{"type":"result","success":true}\n')
    while line := await reader.readline():
        writer.write(b'{"type":"error","code":"INVALID_MODE","mode":"' + (line.split() or [b"?"])[-1] + b'"}\n')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serve", "error"),
    [
        (silent, ServerTimeout),
        (closing, ServerClosed),
        (greeting_only, ServerTimeout),
        (greeting_then_closing, ServerClosed),
        (babbling, ProtocolError),
        (babbling_lines, (ProtocolError, ServerTimeout)),
        (records_forever, (ProtocolError, ServerTimeout)),
        (wrong_answers, ProtocolError),
    ],
)
def test_a_server_that_is_none_ends_the_stream_with_an_error_of_its_type_and_is_soon_left_alone(serve, error):
    async def play():
        async with stub(serve) as (port, calls):
            patience = 0.2 if serve is silent else 20.0  # for a first word
            options = {"read_timeout": 0.2, "connect_timeout": patience, "max_retries": 1, "max_retry_delay": 30.0}
            stream, ended = GymEpisodeStream(config(port, **options), ByteTokenizer(), episodes=200), []
            with pytest.raises(error, match=f"the puzzle server at 127.0.0.1:{port} does not answer as it should"):
                async for episode in stream.episodes():
                    ended.append(episode)
            return ended, stream, len(calls)

    ended, stream, calls = asyncio.run(checked(play()))
    assert [episode.spec.number for episode in ended] == list(range(len(ended)))
    assert all(episode.status is EpisodeStatus.ERROR and isinstance(episode.error, error) for episode in ended)
    assert sum(stream.errors.values()) == stream.state_dict()["episode"] == len(ended) < 10
    # Each is asked twice, auto asks again for WebSocket, and after four failures in a row nobody asks any more.
    assert calls < 40


def test_where_nothing_listens_the_stream_says_so_at_once(unused_port):
    async def play():
        await played(unused_port, 10)

    with pytest.raises(
        ConnectionFailed, match=f"nothing listens on 127.0.0.1:{unused_port}; start a server with `brim gym serve"
    ):
        asyncio.run(checked(play()))
    stream = GymEpisodeStream(config(unused_port), ByteTokenizer(), episodes=3)
    with pytest.raises(ConnectionFailed):
        list(stream)
    assert stream.state == "error"


@pytest.fixture
def unused_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_an_action_that_closes_the_session_twice_is_invalid_and_the_episode_goes_on(servers):
    """No known move does that, so a proxy plays the part: it hangs up on one of them."""

    async def hang_up(reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", servers[0].port)

        async def down():
            with contextlib.suppress(OSError):
                while data := await up_reader.read(65536):
                    writer.write(data)
                    await writer.drain()

        task = asyncio.create_task(down())
        try:
            while line := await reader.readline():
                if line == b"press 01 1\n":
                    return
                up_writer.write(line)
        finally:
            up_writer.transport.abort()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    class Stubborn:
        name, wants_hints = "stubborn", True

        def begin(self, episode): ...
        def end(self, episode): ...

        async def act(self, turn):
            return "press 01 1" if turn.step == 1 else turn.hint

    async def play():
        async with stub(hang_up) as (port, calls):
            options = config(port, games=("lights",), lanes=1)
            async with GymEpisodeStream(options, ByteTokenizer(), Stubborn(), episodes=1) as stream:
                [episode] = [episode async for episode in stream.episodes()]
                return episode, len(calls)

    episode, calls = asyncio.run(checked(play()))
    assert calls == episode.attempts == 3
    assert [step.code for step in episode.steps[:2]] == ["PRESSED", "CLOSED"]
    assert not episode.steps[1].valid
    assert episode.success
