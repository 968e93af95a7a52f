"""`brim llm check`: look at model servers, and say what is wrong with them."""

from typing import TYPE_CHECKING, Any

import click

from brim.cli.llm.flags import access_flags, model_option, named_servers, server_option, timeout_option
from brim.cli.show import counting_progress, json_option, show_facts, show_json, show_prose

if TYPE_CHECKING:
    from brim.llm.checkup import ServerCheck
    from brim.llm.measure import Level

MOST_NAMES = 20


@click.command()
@server_option(several=True)
@model_option
@access_flags
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Upper limit of the requests that are sent together.",
)
@timeout_option(120.0)
@json_option
@click.pass_context
def check(ctx: click.Context, servers: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Look at model servers: are they there, what do they have, how fast are they.

    Sends a few short requests one after another, and then as many at once as the server can take, until that number is
    found. Requests that are under way then are cancelled. Nothing is installed, loaded for good or changed.

    \b
    Examples:
      brim llm check
      brim llm check --model llama3.2
      brim llm check --server http://127.0.0.1:8080 --server http://127.0.0.1:8081
      brim llm check --server https://api.example.com/v1 \\
        --key-env EXAMPLE_KEY --model small

    Exit status: 0 fine, 1 a server cannot be used as asked (unreachable, unknown model, failed requests), 2 the options
    are wrong.
    """
    from brim.llm.checkup import check_server

    named = named_servers(servers, options["protocol"], options["key_env"])
    checks: list[ServerCheck] = []
    for server in named:
        with counting_progress("asking") as progress:
            one = check_server(
                server,
                model=options["model"],
                requests=options["requests"],
                timeout=options["timeout"],
                progress=progress,
            )
        checks.append(one)
        if not as_json:
            _show(one, first=len(checks) == 1)
    fine = all(one.is_fine for one in checks)
    if as_json:
        show_json({"fine": fine, "servers": [one.to_dict() for one in checks]})
    ctx.exit(0 if fine else 1)


def _show(check: "ServerCheck", *, first: bool) -> None:
    from brim.llm.checkup import SHORT

    if not first:
        click.echo()
    facts: dict[str, Any] = {"server": check.server}
    if check.found is not None:
        facts["protocol"] = check.found.protocol
        facts["models"] = _names(check.found.models) or "the server has no list"
        if check.found.protocol == "ollama":
            facts["in memory"] = _names(check.found.loaded) or "none"
    if check.model is not None:
        facts["asked"] = check.model
    if check.first_request is not None:
        facts["first request"] = (
            f"{seconds_text(check.first_request)}, including loading the model if it was not in memory"
        )
    if check.first_token is not None:
        facts["first token"] = f"{seconds_text(check.first_token)} (a whole request with max_tokens=1)"
    if check.alone is not None:
        facts["alone"] = f"{_rate(check.alone)}; {seconds_text(check.alone.latency_p50)} for at most {SHORT} tokens"
    if check.together is not None:
        facts.update(_together(check, check.together))
    show_facts(facts)
    show_prose(*_sentences(check))


def _together(check: "ServerCheck", together: "Level") -> dict[str, str]:
    """Return the facts about requests that were sent together."""
    times = f", {check.speedup:.1f} times as much" if check.speedup is not None else ""
    median = "" if together.latency_p50 is None else f"; median {seconds_text(together.latency_p50)}"
    facts = {"together": f"{_rate(together)}{times}{median}"}
    if check.limit is not None:
        plural = "s" * (check.limit != 1)
        facts["at once"] = f"{check.limit} request{plural}, found by sending {together.requests}"
    else:
        facts["at once"] = (
            f"at least {together.concurrency}: no limit was met by sending {together.requests}; --requests sends more"
        )
    if together.refused:
        facts["refused"] = (
            f"{together.refused} times, because the server was busy (HTTP 429, 503); they were sent again"
        )
    return facts


def _sentences(check: "ServerCheck") -> list[str]:
    """Return what is wrong, and what to do about it."""
    sentences: list[str] = []
    if check.failure is not None:
        sentences.append(f"{type(check.failure).__name__}: {check.failure}")
    elif check.model is None:
        sentences.append("Name a model with --model to measure how fast it is.")
    for level in (check.alone, check.together):
        if level is not None and level.failure is not None:
            kind = type(level.failure).__name__
            sentences.append(f"{level.failed} of {level.requests} requests failed; {kind}: {level.failure}")
    return [*sentences, *check.advice]


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _rate(level: "Level") -> str:
    requests = f"{rate_text(level.requests_per_second)} requests/s"
    tokens = level.tokens_per_second
    return requests if tokens is None else f"{rate_text(tokens)} tokens/s, {requests}"


def rate_text(rate: float | None) -> str:
    """Format a number of requests or tokens in a second: 1234.5 is 1,234, 12.34 is 12.3, None is a dash."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def seconds_text(seconds: float | None) -> str:
    """Format a time: 1.234 is 1.23 s, 0.0567 is 57 ms, None is a dash."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
