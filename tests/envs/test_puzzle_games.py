"""The table of games: what is a move, what is not, what a hint means, what a position looks like.

Against the real server.
"""

import asyncio

import pytest

from brim.envs.puzzle.candidates import candidates
from brim.envs.puzzle.games import GAMES, LEVELS, PLAYABLE, QUICK, EpisodeSpec, game
from brim.envs.puzzle.hints import action_of
from brim.envs.puzzle.wire.errors import ProtocolError, ServerClosed, UnknownGame
from brim.envs.puzzle.wire.server import PuzzleServer
from brim.envs.puzzle.wire.session import PuzzleSession


@pytest.fixture(scope="module")
def server():
    with PuzzleServer() as server:
        yield server


def spec(name, difficulty="easy", seed=5):
    return EpisodeSpec(number=0, game=name, difficulty=difficulty, seed=seed)


def in_session(server, talk, transport="auto"):
    async def run():
        session = await PuzzleSession.open("127.0.0.1", server.port, transport)
        try:
            return await talk(session)
        finally:
            await session.close()

    return asyncio.run(run())


def test_the_table_has_the_games_of_the_server_and_their_titles():
    games = pytest.importorskip("chuk_puzzles_gym.games").AVAILABLE_GAMES
    assert set(GAMES) == set(games)
    assert {name: game.title for name, game in GAMES.items()} == {
        name: kind("easy").name for name, kind in games.items()
    }
    assert len(PLAYABLE) == 28
    assert set(PLAYABLE) - set(QUICK) == {"cryptarithmetic", "rush_hour", "killer"}


@pytest.mark.parametrize("name", [*QUICK, "killer", "rush_hour"])
def test_hints_solve_an_easy_puzzle_and_listed_actions_are_moves(server, name):
    async def talk(session):
        observation, prompts, listed = await session.start(spec(name)), [], 0
        for _ in range(100):
            prompts.append(game(name).prompt(observation))
            actions = candidates(name, observation)
            assert len(set(actions)) == len(actions)
            assert all(game(name).check(action) is None for action in actions)
            action = action_of(await session.hint(), observation)
            listed += action in actions
            outcome = await session.act(action)
            assert outcome.valid, outcome
            if outcome.terminated:
                return outcome.success, prompts, listed
            observation = outcome.observation
        return False, prompts, listed

    success, prompts, listed = in_session(server, talk)
    assert success
    assert all(prompt.startswith(f"{name}\n") for prompt in prompts)
    assert len(set(prompts)) == len(prompts) or name in ("sokoban", "rush_hour", "shikaku")  # what changed can be seen
    assert not any(word in "".join(prompts) for word in ("Seed", "Minimum", "Moves", "Legend: ", "Optimal"))
    assert listed == len(prompts) or name in ("mastermind", "shikaku", "bridges", "scheduler")


@pytest.mark.parametrize("name", ["logic", "einstein", "chess"])
def test_games_that_cannot_be_finished_are_refused_before_anything_is_sent(name):
    for refused in (game, spec):
        with pytest.raises(UnknownGame, match=name):
            refused(name)


NO_MOVES = [
    "solve",
    "quit",
    "exit",
    "q",
    "menu",
    "m",
    "reset",
    "mode normal",
    "show",
    "seed",
    "hint",
    "help",
    "",
    " ",
    "lights",
    "place 1 2 1",
]


def test_what_is_no_move_of_the_game_never_reaches_the_server(server):
    """`place 1 2 1` would end the session, `solve` the puzzle, and a newline would begin another command."""

    async def talk(session):
        before = await session.start(spec("tents"))
        tricks = [
            "mark 1 1 place\nsolve",
            "mark 1 1 place\r",
            "mark 1 1 place\x00",
            "mark 1 1 \u200bplace",
            "mark 1 1 1",
            "mark 99999 1 place",
        ]
        for action in [*NO_MOVES, *tricks]:
            outcome = await session.act(action)
            assert (outcome.valid, outcome.code, outcome.terminated) == (False, "NOT_A_MOVE", False), action
        assert (await session.act("check")).terminated is False
        return before == await session.start(spec("tents"))

    assert in_session(server, talk)


def test_prompts_are_short():
    lights = {"grid": [[0, 1], [1, 0]], "grid_display": "a long drawing", "moves": 3}
    assert GAMES["lights"].prompt(lights) == "lights\n.1\n1."
    hidato = {"grid": [[1, 0], [12, 0]]}
    assert GAMES["hidato"].prompt(hidato) == "hidato\n1 .\n12 ."
    drawn = {"grid": None, "grid_display": "Mines: 2\n\n  |1|2|\n  +-+-+\n1 |.|.|\n\nLegend: . = unrevealed"}
    assert GAMES["minesweeper"].prompt(drawn) == "minesweeper\nMines: 2\n  |1|2|\n1 |.|.|"


@pytest.mark.parametrize("transport", ["tcp", "telnet", "websocket"])
def test_a_session_is_the_same_over_every_transport(transport):
    async def talk(session):
        seen = [await session.start(spec(name, "medium", 11)) for name in ("lights", "futoshiki")]
        outcomes = [await session.act(action) for action in ("place 1 1 1", "place 1 1 9", "clear 1 1", "press 1 1")]
        return (
            session.transport,
            seen,
            [(outcome.valid, outcome.code, outcome.observation) for outcome in outcomes],
            await session.hint(),
        )

    with PuzzleServer("tcp") as plain, PuzzleServer(transport) as server:
        expected = in_session(plain, talk)[1:]
        for asked in ("auto", transport):
            name, *answers = in_session(server, talk, asked)
            assert name == transport
            assert answers == list(expected)


def test_a_session_that_failed_is_over(server):
    async def talk(session):
        session._read_timeout = 0.000_001
        with pytest.raises(Exception, match="in time"):
            await session.start(spec("lights"))
        session._read_timeout = 30.0
        with pytest.raises(ProtocolError, match="this session is over"):
            await session.act("press 1 1")

    in_session(server, talk)


def test_a_server_that_gives_another_puzzle_is_noticed(server):
    async def talk(session):
        assert LEVELS == ("easy", "medium", "hard")
        impossible = spec("lights")
        object.__setattr__(impossible, "difficulty", "no-such-level")
        with pytest.raises(ProtocolError, match="the server gave"):
            await session.start(impossible)

    in_session(server, talk)


def test_an_end_in_the_middle_of_a_reply_is_a_closed_server():
    async def talk():
        async def half(reader, writer):
            writer.write(b"welcome\n")
            await reader.readuntil(b"mode k1\n")
            writer.write(b'{"type":"mode"}\n{"type":"obs')
            writer.close()

        listening = await asyncio.start_server(half, "127.0.0.1", 0)
        async with listening:
            session = await PuzzleSession.open("127.0.0.1", listening.sockets[0].getsockname()[1])
            with pytest.raises(ServerClosed):
                await session.start(spec("lights"))
            await session.close()

    asyncio.run(talk())
