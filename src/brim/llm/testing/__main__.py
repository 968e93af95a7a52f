"""`python -m brim.llm.testing`: the simulated model server as a process of its own.

It prints its URL, and ends when its standard input does or on SIGTERM; then it prints what it has counted, as one line
of JSON. A pipe ends with the process that holds it, so the server does not outlive the program that started it. A line
of JSON on standard input, such as {"slots": 8}, changes options while it runs.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import click
import orjson

from brim.core.errors import BrimError, OptionError
from brim.llm.testing.behaviour import Behaviour, Constant, Faults, Latency, LogNormal, Uniform, check_fault
from brim.llm.testing.handler import WIRES, WireName
from brim.llm.testing.server import ModelServer


@click.command(name="python -m brim.llm.testing")
@click.option("--port", default=0, show_default=True, help="Port on 127.0.0.1; 0 is any free one.")
@click.option("--slots", type=int, help="Number of requests that it works on at once.  [default: no limit]")
@click.option(
    "--overflow",
    type=click.Choice(["queue", "reject"]),
    default="queue",
    show_default=True,
    help="Whether a request that finds no free slot waits or is rejected.",
)
@click.option("--max-queue", type=int, help="Upper limit of the requests that wait.  [default: no limit]")
@click.option(
    "--reject-status", type=int, default=503, show_default=True, help="HTTP status of rejections: 429 or 503."
)
@click.option("--retry-after", type=float, help="Seconds in the header Retry-After of rejections.")
@click.option(
    "--latency",
    default="0",
    show_default=True,
    help="Seconds for each request: a number, uniform:SHORTEST:LONGEST or lognormal:MEDIAN:SIGMA.",
)
@click.option("--seconds-per-token", type=float, default=0.0, show_default=True, help="Further seconds for each token.")
@click.option("--fault", "faults", multiple=True, metavar="KIND=PROBABILITY", help="Such as error=0.01; repeatable.")
@click.option("--hang-seconds", type=float, default=float("inf"), help="Delay of the fault hang.  [default: forever]")
@click.option("--model", "models", multiple=True, help="A model that it has; repeatable.  [default: every model]")
@click.option("--dim", default=64, show_default=True, help="Length of embeddings.")
@click.option("--protocol", "protocols", multiple=True, type=click.Choice(WIRES), help="Repeatable.  [default: both]")
@click.option("--durations/--no-durations", default=True, show_default=True, help="Whether replies have durations.")
@click.option("--key-env", help="Environment variable with the API key that requests must have.")
@click.option("--seed", default=0, show_default=True, help="Decides latencies and faults.")
def main(
    port: int,
    latency: str,
    faults: tuple[str, ...],
    models: tuple[str, ...],
    protocols: tuple[WireName, ...],
    durations: bool,
    key_env: str | None,
    **options: Any,
) -> None:
    """Run a server that only simulates models, on 127.0.0.1, to test against.

    Prints its URL. Ends when standard input ends, or on SIGTERM.
    """
    try:
        behaviour = Behaviour(
            latency=read_latency(latency),
            faults=read_faults(faults),
            models=models or None,
            reports_durations=durations,
            record=1,
            **options,
        )
        server = ModelServer(behaviour, port=port, protocols=protocols or WIRES, require_key=_key(key_env)).start()
    except BrimError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    with server, suppress(KeyboardInterrupt, _Ended):
        signal.signal(signal.SIGTERM, _end)
        click.echo(server.url)
        sys.stdout.flush()
        _follow(server)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending
    click.echo(orjson.dumps(server.counts.to_dict()).decode())


def read_latency(text: str) -> Latency:
    """Read a latency such as "0.05", "uniform:0.1:0.2" or "lognormal:0.05:0.5".

    Raises:
        OptionError: It is none.
    """
    kinds = {"constant": (Constant, 1), "uniform": (Uniform, 2), "lognormal": (LogNormal, 2)}
    name, *rest = text.split(":") if ":" in text else ("constant", text)
    try:
        numbers = [float(number) for number in rest]
    except ValueError:
        numbers = []
    kind, wanted = kinds.get(name, (Constant, -1))
    if len(numbers) != wanted:
        what = "a number of seconds, uniform:SHORTEST:LONGEST or lognormal:MEDIAN:SIGMA"
        raise OptionError(f"latency must be {what}, got {text!r}")
    return kind(*numbers)


def read_faults(items: Iterable[str]) -> Faults:
    """Read faults such as "error=0.01".

    Raises:
        OptionError: One is unknown, or its probability is not a number.
    """
    faults: dict[str, float] = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            faults[check_fault(name)] = float(value)
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"a fault is given as KIND=PROBABILITY, such as error=0.01, got {item!r}") from None
    return Faults(**faults)


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise OptionError(f"the environment variable {name!r} (--key-env) is not set")
    return key


def _follow(server: ModelServer) -> None:
    """Change options as lines on standard input say, until it ends."""
    for line in sys.stdin.buffer:
        try:
            server.change(**orjson.loads(line))
        except (BrimError, TypeError, orjson.JSONDecodeError) as error:
            click.echo(f'error: options are given as {{"slots": 8}}, got {line.strip()!r}: {error}', err=True)


class _Ended(Exception):  # noqa: N818
    """Raised by SIGTERM."""


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


if __name__ == "__main__":
    main()
