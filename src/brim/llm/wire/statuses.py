"""HTTP statuses and error bodies as typed failures.

    429, 503, 529                                Overloaded, with the server's Retry-After
    404 or 400 that says there is no such model  ModelMissing
    408, 409, 425, 499, 5xx but 501              ServerFailed, which another attempt may get past
    501, other 4xx, 3xx                          Rejected
    anything else                                BadReply

A server's own words are quoted in one line of at most 200 characters, without secrets: some servers quote the
Authorization header in their errors.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import orjson

from brim.llm.failures import BadReply, Failure, ModelMissing, Overloaded, Rejected, ServerFailed
from brim.llm.wire.address import Address, joined_url, shown_url

LONGEST_PAUSE = 120.0
"""Seconds. A server that asks for a longer pause gets this one."""
_QUOTED = 200
_READ = 10_000
_OVERLOADED = frozenset({429, 503, 529})
_TRANSIENT = frozenset({408, 409, 425, 499})
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,200}(not found|not exist|try pulling)|model_not_found"
    r"|(unknown|no such) model|invalid model:",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(r"too large to process|exceeds? the \S* ?context|exceeds? the context", re.IGNORECASE)


def failure_of(address: Address, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """Return the failure that a reply other than 2xx stands for."""
    header = {name.lower(): value for name, value in headers.items()}
    code, text = _error(body)
    said = quoted(address, text)
    if 300 <= status < 400:
        return Rejected(_redirect(address, status, header.get("location", "")), server=address.name, status=status)
    if not 400 <= status < 600:
        return BadReply(
            f"the server answered with HTTP {status}, which is no answer", server=address.name, status=status
        )
    because = f"(HTTP {status})" + (f": {said}" if said else "")
    if status in _OVERLOADED and code != "insufficient_quota":
        return Overloaded(
            f"the server takes no more requests at the moment {because}",
            server=address.name,
            status=status,
            retry_after=retry_after(header),
        )
    if status in (400, 404) and (code == "model_not_found" or _NO_MODEL.search(said)):
        return ModelMissing(f"the server does not have the model {because}", server=address.name, status=status)
    if status in (401, 403):
        return Rejected(
            f"the server refuses access {because}; {_key_advice(address)}", server=address.name, status=status
        )
    if status in _TRANSIENT or (status >= 500 and status != 501 and not _TOO_LONG.search(said)):
        return ServerFailed(
            f"the server failed {because}", server=address.name, status=status, retry_after=retry_after(header)
        )
    return Rejected(f"the server refuses the request {because}", server=address.name, status=status)


def failure_within(address: Address, status: int, reply: Mapping[str, Any]) -> Failure:
    """Return the failure that an "error" field in a reply with HTTP 200 stands for."""
    error = reply.get("error")
    stated = cast(dict[str, Any], error).get("code") if isinstance(error, dict) else None
    if isinstance(stated, int) and 400 <= stated < 600:  # some gateways put the status of the server behind them here
        return failure_of(address, stated, {}, orjson.dumps({"error": error}))
    said = quoted(address, _message(reply))
    if _NO_MODEL.search(said):
        return ModelMissing(f"the server does not have the model: {said}", server=address.name, status=status)
    return ServerFailed(
        f"the server failed while it answered (HTTP {status}): {said or 'no reason given'}",
        server=address.name,
        status=status,
    )


def quoted(address: Address, text: str) -> str:
    """Return the beginning of a server's text, in one line of printable characters and without secrets."""
    text = address.scrub(text[:_READ])  # before the text is cut, which may cut a secret in two
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:_QUOTED].strip()


def retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return the seconds that a server asks to wait, from 0 to `LONGEST_PAUSE`; None if it does not say.

    A date is compared with the reply's own Date, so a clock that is wrong here does not matter. Names of headers are in
    lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _clamped(milliseconds / 1000)
    given = headers.get("retry-after", "").strip()
    seconds = _number(given)
    if seconds is None and (until := _date(given)):
        seconds = (until - (_date(headers.get("date", "")) or now or datetime.now(UTC))).total_seconds()
    return None if seconds is None else _clamped(seconds)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_PAUSE)


def _redirect(address: Address, status: int, location: str) -> str:
    if not location:
        return f"the server redirects (HTTP {status}) and does not say where to; check the URL"
    target = quoted(address, shown_url(joined_url(address.origin, location)))
    return f"the server redirects (HTTP {status}) to {target}, which is not followed; if you trust it, use that URL"


def _key_advice(address: Address) -> str:
    if address.authorization is not None and address.key_env:
        return f"check the API key in the environment variable {address.key_env}"
    if address.key_env:
        return f"set the environment variable {address.key_env} to an API key"
    if address.authorization is not None:
        return "check the user and password in the URL"
    return "name the environment variable that holds its API key (key_env, or --key-env on the command line)"


def _error(body: bytes) -> tuple[str, str]:
    """Return the error's code and text: the field that holds it, or the beginning of the body."""
    try:
        reply = orjson.loads(body)
    except ValueError:
        return "", body[:_READ].decode("utf-8", "replace")
    error = cast(dict[str, Any], reply).get("error") if isinstance(reply, dict) else None
    code = cast(dict[str, Any], error).get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else "", _message(reply) or body[:_READ].decode("utf-8", "replace")


def _message(value: Any) -> str:
    """Return the text of an error, wherever a server puts it: error.message, error, message, detail or msg."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(filter(None, map(_message, cast(list[Any], value[:10]))))
    if not isinstance(value, dict):
        return ""
    fields = cast(dict[str, Any], value)
    for name in ("error", "message", "detail", "msg"):
        text = _message(fields.get(name)) if fields.get(name) else ""
        if text:
            return text
    return ""
