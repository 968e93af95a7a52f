"""The address of a model server: where it is, and the credentials for it.

A password in the URL becomes HTTP Basic authentication; an API key comes from an environment variable and from nowhere
else. Neither is ever shown: `Address.name`, `str` and `repr` leave them out, and `Address.scrub` takes them out of any
text that a server sent back. An error about a URL must not quote the URL as it was given; `_masked` is for that.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, final
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from brim.core.errors import OptionError

MASK = "***"
_PORTS = {"http": 80, "https": 443}
_WINDOW = 8
"""A server may quote a part of a key. Parts of a secret that are at least this long are masked, too."""
_SHORTEST = 4
"""Shorter values of a query string, such as a version, are no secrets."""
_ENDPOINTS = re.compile(
    r"/(chat/completions|completions|embeddings|api/(chat|generate|embed|tags|ps|version))$|(?<=/v1)/models$"
)
"""Endings of URLs that were copied from an example; the base address is what stands before them."""
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*\.?")


@final
class Secret:
    """A text that is never shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Address:
    """A server, and how to ask it. Made by `parse_address`."""

    scheme: str
    host: str
    """In lower case, without the brackets of an IPv6 address."""
    port: int
    path: str
    """The path before the endpoints, such as "/v1"; no slash at its end."""
    port_given: bool
    key_env: str | None
    """Name of the environment variable that holds the key, or would be used for this host if it were set."""
    authorization: Secret | None
    query: Secret | None
    secrets: tuple[Secret, ...]
    """Every text that must not be shown."""

    @property
    def origin(self) -> str:
        """Scheme, host and port, without a port that is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port != _PORTS[self.scheme] else "")

    @property
    def name(self) -> str:
        """The address for people: without credentials and without the query string."""
        return f"{self.origin}{self.path}" + (f"?{MASK}" if self.query else "")

    def url(self, path: str) -> str:
        """Return the URL of `path` on this server. It may contain secrets."""
        return f"{self.origin}{path}" + (f"?{self.query.reveal()}" if self.query else "")

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the credentials. They contain secrets."""
        return {"Authorization": self.authorization.reveal()} if self.authorization else {}

    def scrub(self, text: str) -> str:
        """Return `text` with every secret of this address, and long parts of one, replaced by ***."""
        for secret in self.secrets:
            text = _without(text, secret.reveal())
        return text

    def redirected(self, path: str, location: str) -> str | None:
        """Return where `location`, a reply to a request for `path`, points if that is on this server; else None."""
        target = _split(joined_url(self.url(path), location))
        if target is None or (target.scheme, target.hostname, _port(target)) != (self.scheme, self.host, self.port):
            return None
        query = f"?{_quoted(target.query)}" if target.query else ""
        return f"{self.origin}{_quoted(target.path) or '/'}{query}"

    def __repr__(self) -> str:
        return f"Address({self.name!r})"

    def __str__(self) -> str:
        return self.name


def parse_address(url: str, *, key_env: str | None = None, environ: Mapping[str, str] | None = None) -> Address:
    """Read the URL of a server and the key for it.

    Without `key_env`, OPENAI_API_KEY is used for https://api.openai.com and OLLAMA_API_KEY for https://ollama.com, and
    no other host is ever sent one of them.

    Raises:
        OptionError: It is no URL of a server, `key_env` is not set, or the key cannot be sent.

    Example:
        >>> parse_address("http://me:secret@localhost:11434/")
        Address('http://localhost:11434')
    """
    split = _checked(url)
    host = _host(split.hostname or "", url)
    environ = os.environ if environ is None else environ
    key_name = key_env or _default_key(split.scheme, host)
    key = _key(key_env, environ) if key_env is not None else _key_if_set(key_name, environ)
    basic = _basic(split)
    if basic and key_env is not None:
        raise OptionError(
            f"{_masked(url)} has a user or a password, and {key_env} holds a key for the same server; give only one"
        )
    authorization = f"Basic {basic}" if basic else f"Bearer {key}" if key else None
    return Address(
        scheme=split.scheme,
        host=host,
        port=_port(split) or _PORTS[split.scheme],
        path=_base(split.path),
        port_given=split.port is not None,
        key_env=key_name,
        authorization=Secret(authorization) if authorization else None,
        query=Secret(_quoted(split.query)) if split.query else None,
        secrets=_secrets(split, key, basic),
    )


def joined_url(base: str, location: str) -> str:
    """Return the URL of `location`, which may be relative to `base`; nonsense stays as it is."""
    try:
        return urljoin(base, location)
    except ValueError:
        return location


def shown_url(url: str) -> str:
    """Return a URL without user, password, query string and fragment, for a message."""
    split = _split(url)
    if split is None or not split.hostname:
        return _masked(url)
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    port = _port(split)
    shown = f":{port}" if port is not None and port != _PORTS.get(split.scheme) else ""
    return f"{split.scheme}://{host}{shown}{split.path}"


def _masked(url: str) -> str:
    """Return what can be shown of a text that may not even be a URL.

    Nothing before an @ is shown, nothing after a ? or #, and nothing after a colon that no port follows, because it may
    be a password.
    """
    before, at, after = url.rpartition("@")
    shown = re.split(r"[?#]", f"{MASK}{at}{after}" if before else url)[0]
    return repr(re.sub(r":(?!//|\d*(/|:|$)).*", f":{MASK}", shown)[:200])


def _refused(url: str, reason: str) -> OptionError:
    return OptionError(
        f"{_masked(url)} is not the URL of a server: {reason}; "
        "write it like http://127.0.0.1:11434 or https://api.openai.com/v1"
    )


def _checked(url: str) -> SplitResult:
    """Split a URL and refuse it unless it is http or https, with a host and a port that can be."""
    text = url.strip()
    if not text:
        raise _refused(url, "it is empty")
    if re.search(r"[\x00-\x20\x7f\\]", text):
        raise _refused(url, "it has a space, a backslash or a control character")
    if re.match(r"https?:(?!//)", text, re.IGNORECASE):
        raise _refused(url, "// is missing after the colon")
    if "://" not in text:
        if text.count(":") > 1 and not re.search(r"[\[@]", text):
            raise _refused(url, "an IPv6 address stands in brackets, as in http://[::1]:11434")
        text = f"http://{text}"
    split = _split(text)
    if split is None or not split.hostname:
        raise _refused(url, "it has no host, or its port is not one from 1 to 65535")
    if split.scheme not in _PORTS:
        raise _refused(url, "the scheme must be http or https")
    if "@" in split.path + split.query + split.fragment:
        raise _refused(url, "it has an @ after the host; in a password write / as %2F, ? as %3F and # as %23")
    if split.fragment:
        raise _refused(url, "the part from # on does not belong there")
    if split.port == 0:
        raise _refused(url, "port 0 cannot be asked")
    return split


def _split(url: str) -> SplitResult | None:
    try:
        split = urlsplit(url)
        _ = split.port, split.hostname  # both are parsed, and refused, when they are read
    except ValueError:
        return None
    return split


def _port(split: SplitResult) -> int | None:
    return split.port or _PORTS.get(split.scheme)


def _host(host: str, url: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            pass
    else:
        try:
            name = host.encode("idna").decode("ascii").lower()
        except UnicodeError:
            name = ""
        if _HOST.fullmatch(name) and len(name) <= 254:
            return name
    raise _refused(url, "its host is neither a name nor an address")


def _base(path: str) -> str:
    """Return the path before the endpoints: "/v1/" and "/v1/chat/completions" are "/v1"."""
    return _ENDPOINTS.sub("", _quoted(re.sub(r"//+", "/", path)).rstrip("/"))


def _quoted(text: str) -> str:
    """Return a path or a query string with everything but ASCII letters, digits and signs of URLs encoded."""
    return quote(text, safe="=&%+,;:@/?!$'()*-._~", errors="replace")


def _basic(split: SplitResult) -> str | None:
    if split.username is None and split.password is None:
        return None
    pair = f"{unquote(split.username or '')}:{unquote(split.password or '')}"
    return None if pair == ":" else base64.b64encode(pair.encode("utf-8", "replace")).decode("ascii")


def _secrets(split: SplitResult, *more: str | None) -> tuple[Secret, ...]:
    """Return every text that must not be shown, the longest first. A password counts as written and as meant."""
    texts = [split.password or split.username or "", *more]  # some servers take a token in the place of the user
    texts += [
        value for _, _, value in (part.partition("=") for part in split.query.split("&")) if value[_SHORTEST - 1 :]
    ]
    texts += [unquote(text) for text in texts if text]
    return tuple(Secret(text) for text in sorted({text for text in texts if text}, key=len, reverse=True))


def _default_key(scheme: str, host: str) -> str | None:
    """Return the variable whose key belongs to this host. A key is never sent without encryption unasked."""
    if scheme != "https":
        return None
    if host == "api.openai.com":
        return "OPENAI_API_KEY"
    return "OLLAMA_API_KEY" if host == "ollama.com" or host.endswith(".ollama.com") else None


def _key_if_set(name: str | None, environ: Mapping[str, str]) -> str | None:
    return _key(name, environ) if name and environ.get(name) else None


def _key(name: str, environ: Mapping[str, str]) -> str:
    key = environ.get(name, "")
    if not key and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):  # quoting it might show a key that was given itself
        raise OptionError(
            "key_env must name an environment variable that is set, such as OPENAI_API_KEY; it is never the key itself"
        )
    if not key:
        raise OptionError(f"the environment variable {name} is not set; it must hold the API key: export {name}=...")
    if not all("!" <= letter <= "~" for letter in key):
        raise OptionError(
            f"the API key in the environment variable {name} has a space, a line break or a character outside ASCII; "
            "set it again without"
        )
    return key


def _without(text: str, secret: str) -> str:
    """Return `text` with a secret, and every part of it that is as long as the window, masked."""
    text = text.replace(secret, MASK)
    parts = {secret[start : start + _WINDOW] for start in range(len(secret) - _WINDOW + 1)}
    found = [part for part in parts if part in text]
    if not found:
        return text
    hidden = [False] * len(text)
    for part in found:
        for match in re.finditer(f"(?={re.escape(part)})", text):  # matches may overlap
            hidden[match.start() : match.start() + _WINDOW] = [True] * _WINDOW
    shown: list[str] = []
    for position, letter in enumerate(text):
        if not hidden[position]:
            shown.append(letter)
        elif position == 0 or not hidden[position - 1]:
            shown.append(MASK)
    return "".join(shown)
