"""`brim gym info`: the games, the policies, the options, and whether a server answers."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.gym.run import DEFAULT, POLICIES, listed
from brim.cli.show import json_option, show_facts, show_json, show_words
from brim.envs.episode import LEVELS
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.games import GAMES, QUICK, Game
from brim.envs.puzzle.wire.errors import PuzzleError
from brim.envs.puzzle.wire.names import TRANSPORTS


@click.command()
@click.option("--host", default=DEFAULT.host, show_default=True, help="Host to ask for a server.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT.port, show_default=True, help="Port to ask for a server."
)
@click.option(
    "--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True, help="Protocol to ask with."
)
@click.option(
    "--timeout",
    type=float,
    default=DEFAULT.connect_timeout,
    show_default=True,
    help="Seconds to wait for a connection.",
)
@json_option
@click.pass_context
def info(ctx: click.Context, host: str, port: int, transport: Any, timeout: float, as_json: bool) -> None:
    """Show the games, the policies and the options.

    A server is looked for only if one of the options below is given.

    \b
    Examples:
      brim gym info
      brim gym info --port 8023
      brim gym info --json

    Exit status: 0 shown, 1 no server answers there, 2 the options are wrong.
    """
    from brim.envs.puzzle.wire.server import server_installed

    asked = any(
        ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        for name in ("host", "port", "transport", "timeout")
    )
    server = _ask(GymConfig(host=host, port=port, transport=transport, connect_timeout=timeout)) if asked else None
    games = [
        {
            "game": game.name,
            "moves": list(game.moves),
            "difficulties": list(LEVELS),
            "playable": game.unplayable is None,
            "by_default": game.name in QUICK,
            "note": game.unplayable or _note(game),
        }
        for game in GAMES.values()
    ]
    facts = {
        "games": games,
        "policies": POLICIES,
        "defaults": asdict(DEFAULT),
        "server_installed": server_installed(),
        "server": server,
    }
    if as_json:
        show_json(facts)
    else:
        _show_info(facts, games)
    ctx.exit(1 if server is not None and not server["answers"] else 0)


def _note(game: Game) -> str | None:
    return (
        "a server may need long to make one"
        if game.slow
        else "a server shows only a part of it"
        if game.hidden
        else None
    )


def _show_info(facts: dict[str, Any], games: Iterable[dict[str, Any]]) -> None:
    rows = [(game["game"], " | ".join(game["moves"]), _when(game)) for game in games]
    show_words(("game", "moves", "played"), rows)
    click.echo()
    show_words(("policy", "what it does"), POLICIES.items())
    click.echo()
    defaults = {
        **facts["defaults"],
        "games": "all that are played by default",
        "rewards": listed(facts["defaults"]["rewards"]),
    }
    show_words(("option", "default"), [(name, str(value)) for name, value in defaults.items()])
    click.echo()
    installed = "installed" if facts["server_installed"] else "not installed; run: pip install 'brim[gym]'"
    server = facts["server"]
    show_facts(
        {
            "server package": installed,
            **(
                {}
                if server is None
                else {f"{server['host']}:{server['port']}": server["error"] or f"answers, by {server['transport']}"}
            ),
        }
    )


def _when(game: dict[str, Any]) -> str:
    return "never" if not game["playable"] else "by default" if game["by_default"] else "if named"


def _ask(config: GymConfig) -> dict[str, Any]:
    """Return whether a server answers, with its protocol or else the error."""
    from brim.envs.puzzle.run import find_server

    found: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "answers": False,
        "transport": None,
        "error": None,
    }
    try:
        return {**found, "answers": True, "transport": find_server(config)}
    except PuzzleError as error:
        return {**found, "error": str(error)}
