"""Flags that name model servers."""

from collections.abc import Iterable

import click

from brim.cli.options import Decorator, flags
from brim.llm.config import PROTOCOLS, Protocol, Server
from brim.llm.pool import LOCAL


def server_option(*, several: bool) -> Decorator:
    """Return the flag --server, under the name `servers` if it may be repeated, else `server`."""
    return click.option(
        "--server",
        "servers" if several else "server",
        multiple=several,
        metavar="URL",
        help=f"{'A model server. Can be repeated.' if several else 'The model server.'}  [default: {LOCAL}]",
    )


access_flags = flags(
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        default="auto",
        show_default=True,
        help="Protocol of the server; auto asks it.",
    ),
    click.option("--key-env", metavar="NAME", help="Environment variable that holds the API key."),
)
model_option = click.option("-m", "--model", help="Name of the model.  [default: the only one of the server]")


def timeout_option(seconds: float) -> Decorator:
    """Return the flag --timeout with its default."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help="Upper limit of the time for a request.",
    )


def named_servers(urls: Iterable[str], protocol: Protocol, key_env: str | None) -> list[Server]:
    """Return the servers that were named, each once; the one on this machine if there are none."""
    return [Server(url=url, protocol=protocol, key_env=key_env) for url in dict.fromkeys(urls) or [LOCAL]]
