"""Flags that name model servers, and those that say how servers are asked about every row of a file."""

from collections.abc import Iterable
from typing import Any

import click

from brim.cli.options import Decorator, flags
from brim.llm.config import CACHE_MODES, LOCAL, PROTOCOLS, PoolConfig, Protocol, Server

DEFAULT = PoolConfig()


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


server_flags = flags(
    server_option(several=True),
    access_flags,
    click.option(
        "--limit", type=click.IntRange(min=1), help="Requests at once to each server.  [default: found out by itself]"
    ),
    click.option(
        "--max-limit",
        type=click.IntRange(min=1),
        default=Server(url="").max_limit,
        show_default=True,
        help="Upper limit of what is found out.",
    ),
    click.option("--rpm", type=float, help="Upper limit of the requests in a minute, to each server."),
    click.option("--tpm", type=float, help="Upper limit of the tokens in a minute, at each server."),
    click.option(
        "--timeout",
        type=float,
        default=DEFAULT.timeout,
        show_default=True,
        help="Seconds for a call, with all of its retries.",
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=DEFAULT.attempts,
        show_default=True,
        help="Upper limit of the requests for one call.",
    ),
    click.option(
        "--patience",
        type=float,
        default=DEFAULT.patience,
        show_default=True,
        help="Seconds to wait for servers that have become unreachable.",
    ),
    click.option("--hedge", is_flag=True, help="Send a request that takes very long a second time."),
    click.option("--cache", metavar="FILE", help="Cache of answers to read and write."),
    click.option(
        "--cache-mode",
        type=click.Choice(CACHE_MODES),
        help="write reads and writes the cache, replay asks no server.  [default: write, with --cache]",
    ),
    click.option("--trace", metavar="FILE", help="Write a line of JSON about every call."),
)
template_flags = flags(
    click.option("--template", metavar="TEXT", help="Prompt with fields of the row in braces, such as {question}."),
    click.option("--template-file", metavar="FILE", help="File that holds the template."),
)


def check_cache(options: dict[str, Any]) -> None:
    """Refuse a --cache-mode without a --cache."""
    if options["cache_mode"] is not None and options["cache"] is None:
        raise click.UsageError(f"--cache-mode {options['cache_mode']} needs --cache FILE")


def named_servers(urls: Iterable[str], protocol: Protocol, key_env: str | None) -> list[Server]:
    """Return the servers that were named, each once; the one on this machine if there are none."""
    return [Server(url=url, protocol=protocol, key_env=key_env) for url in dict.fromkeys(urls) or [LOCAL]]
