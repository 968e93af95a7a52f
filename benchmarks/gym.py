"""Playing on puzzle servers: `GymEpisodeStream` beside what the servers themselves can do.

The limit is measured by a bare client: it knows beforehand what will be asked in every episode, sends all of it in one
piece, and reads until the last answer without looking at anything. It asks exactly what the stream asks (start, hints,
moves, and the marks that end a reply), over as many connections. The stream has to read an answer before it knows the
next question, parses every position, lists the actions that are open in it, and makes samples. Both share the machine
with the servers, each of which plays on one core.
"""

import argparse
import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from harness import Contender, Report, race

from brim.data.rows.prompts import Prompts
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.wire.server import PuzzleServer, server_installed
from brim.stream.episode_samples import EpisodeSampler
from brim.stream.gym import GymEpisodeStream

GAMES = ("lights", "nqueens", "futoshiki", "skyscrapers", "bridges", "minesweeper")
LANES = (1, 8, 64)
END = b'"mode":"end"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400, help="on each server")
    parser.add_argument("--quick", action="store_true", help="40 episodes")
    options = parser.parse_args()
    report = Report("gym")
    if not server_installed():
        report.not_available["chuk-puzzles-gym"] = "the server is not installed"
        report.close()
        return
    episodes = 40 if options.quick else options.episodes
    for servers in (1, 2):
        for lanes in LANES:
            measure(report, servers, lanes, episodes)
    print(f"written: {report.close()}")


def measure(report: Report, servers: int, lanes: int, episodes: int) -> None:
    with ExitStack() as running:
        ports = [running.enter_context(PuzzleServer()).port for _ in range(servers)]
        played = play(ports[:1], lanes, episodes)[0]
        steps = sum(len(episode.steps) for episode in played)
        rows = race(list(contenders(ports, lanes, episodes, played)), rounds=3)
    for row in rows:
        row.columns["episodes/s"] = servers * episodes / row.seconds
        row.columns["steps/s"] = servers * steps / row.seconds
        row.columns["of the limit %"] = 100 * rows[0].seconds / row.seconds
    title = (
        f"{episodes} episodes on each of {servers} server{'s' * (servers > 1)}, {lanes} lanes each, "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    columns = {"episodes/s": ",.0f", "steps/s": ",.0f", "of the limit %": ".0f"}
    report.table(title, rows, columns, servers=servers, lanes=lanes, episodes=episodes, steps=steps)


def contenders(ports: Sequence[int], lanes: int, episodes: int, played: Sequence[GymEpisode]) -> Iterator[Contender]:
    shares = [played[lane::lanes] for lane in range(lanes)]
    scripts = [b"".join(script(episode, first=episode is share[0]) for episode in share) for share in shares]

    def judge_bare(marks: list[int]) -> dict[str, int]:
        assert sum(marks) == len(ports) * lanes, marks
        return {}

    def judge(streams: list[list[GymEpisode]]) -> dict[str, int]:
        assert all([episode.steps for episode in stream] == [episode.steps for episode in played] for stream in streams)
        return {}

    yield Contender("bare client that knows all answers", lambda: asyncio.run(bare(ports, scripts)), judge_bare)
    yield Contender("brim GymEpisodeStream", lambda: play(ports, lanes, episodes), judge)


def play(ports: Sequence[int], lanes: int, episodes: int) -> list[list[GymEpisode]]:
    """The same episodes on every server, at once."""

    async def one(port: int) -> list[GymEpisode]:
        config = GymConfig(
            host="127.0.0.1", port=port, transport="tcp", games=GAMES, difficulty_range=(0.0, 0.4), lanes=lanes
        )
        async with GymEpisodeStream(config, ByteTokenizer(), episodes=episodes) as stream:
            found = [episode async for episode in stream.episodes()]
        sampler = EpisodeSampler(Prompts(ByteTokenizer()))
        for episode in found:
            sampler.samples(episode)
        return found

    async def every() -> list[list[GymEpisode]]:
        return await asyncio.gather(*(one(port) for port in ports))

    return asyncio.run(every())


def script(episode: GymEpisode, *, first: bool) -> bytes:
    """What the stream sends for it."""
    spec = episode.spec
    lines = [
        *(() if first else ("menu",)),
        f"{spec.game} {spec.difficulty} {spec.seed}",
        "mode json",
        "show",
        "mode k0",
    ]
    for step in episode.steps:
        lines += ["hint", "mode k1", step.action, "mode k2"]
    return "".join(f"{line}\n" for line in lines).encode()


async def bare(ports: Sequence[int], scripts: Sequence[bytes]) -> list[int]:
    return await asyncio.gather(*(ask(port, script) for port in ports for script in scripts))


async def ask(port: int, script: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(script + b"mode end\n")
    rest = b""
    while data := await reader.read(1 << 16):
        rest = rest[-len(END) :] + data
        if END in rest:
            writer.transport.abort()
            return 1
    return 0


if __name__ == "__main__":
    main()
