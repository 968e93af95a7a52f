"""`brim gym serve`: a puzzle server on this machine."""

from typing import Any

import click

from brim.cli.gym.run import DEFAULT
from brim.envs.puzzle.wire.names import SERVER_TRANSPORTS


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT.port,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--transport",
    type=click.Choice(SERVER_TRANSPORTS),
    default="tcp",
    show_default=True,
    help="Protocol to serve; tcp is the fastest.",
)
def serve(host: str, port: int, transport: Any) -> None:
    """Run a puzzle server until it is interrupted.

    The server is that of the package chuk-puzzles-gym, without its limit on the length of a session. It uses one core;
    start several on different ports to use more.

    \b
    Examples:
      brim gym serve
      brim gym serve --port 8024 --transport telnet

    Exit status: 130 interrupted, 2 the server could not be started or ended unexpectedly.
    """
    from brim.core.served import last_words
    from brim.envs.puzzle.wire.server import PuzzleServer

    with PuzzleServer(transport, host, port) as server:
        click.echo(f"{server.host}:{server.port}")
        click.echo(f"a {transport} server listens on {server.host}:{server.port}; Ctrl-C ends it", err=True)
        server.wait()
        raise click.ClickException(
            f"the server ended unexpectedly; its last output: {last_words(server.output()) or 'nothing'}"
        )
