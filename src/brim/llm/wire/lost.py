"""Errors of aiohttp and of the operating system as typed failures.

aiohttp's own texts are not quoted where they may hold a request with its headers. Failures of TLS are `ServerLost` as
well: another attempt at this server will hardly help, but another server may do the work.
"""

import errno
import ssl
from typing import Any

from brim.llm.failures import BadReply, Failure, ServerLost
from brim.llm.wire.address import Address
from brim.llm.wire.statuses import quoted

START = "start one with `ollama serve` or `brim llm serve`"


def failure_of_error(aiohttp: Any, address: Address, error: Exception, connect_seconds: float) -> Failure:
    """Return the failure that an exception of a request stands for. `aiohttp` is the module."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        reason = _reason(address, error)
        return _unreached(address, f'the host "{address.host}" cannot be found ({reason}); check the URL')
    if isinstance(error, (ssl.SSLError, ssl.CertificateError, aiohttp.ClientSSLError)):
        return _unreached(address, _tls(address, error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return _unreached(address, _unconnected(address, error))
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return _unreached(address, f"no connection within {connect_seconds:g} s; check the host and the port")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return _lost(address, "the server closed the connection before it answered")
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.ClientPayloadError)):
        return _broken(aiohttp, address, error)
    if isinstance(error, (OSError, aiohttp.ClientConnectionError)):
        return _lost(address, f"the connection failed: {_reason(address, error)}")
    return BadReply(f"the request failed: {_reason(address, error)}", server=address.name)


def _lost(address: Address, message: str) -> ServerLost:
    return ServerLost(message, server=address.name)


def _unreached(address: Address, message: str) -> ServerLost:
    failure = _lost(address, message)
    failure.connected = False
    return failure


def _reason(address: Address, error: Exception) -> str:
    """Return the operating system's words for it, or the type of the error and its text."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return quoted(address, str(strerror or "") or f"{type(error).__name__}: {error}")


def _unconnected(address: Address, error: Any) -> str:
    reason = _reason(address, error)
    if error.errno == errno.ECONNREFUSED or isinstance(error.os_error, ConnectionRefusedError):
        port = "" if address.port_given else f" (no port was given, so {address.port} was asked; Ollama has port 11434)"
        return f"connection refused: is a server running there? {START}{port}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no connection: {reason}; raise the limit of open files with `ulimit -n`, or send fewer calls at once"
    return f"no connection: {reason}; check the host and the port"


def _tls(address: Address, error: Any) -> str:
    reason = quoted(address, _tls_reason(error))
    if isinstance(error, ssl.CertificateError):
        return (
            f"the TLS certificate is not accepted: {reason}; if it is your own, name its authority in the environment "
            "variable SSL_CERT_FILE"
        )
    return f"TLS failed: {reason}; if the server speaks plain HTTP, write http:// in place of https://"


def _tls_reason(error: Any) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    for name in ("verify_message", "reason", "strerror"):
        if value := getattr(inner, name, None):
            return str(value)
    return str(inner)


def _broken(aiohttp: Any, address: Address, error: Exception) -> Failure:
    """Return the failure for bytes that arrived and are not a whole HTTP reply."""
    said = str(getattr(error, "message", "") or error.args[:1])  # not str(error), which may have the URL
    if "content-encoding" in said.lower():
        return BadReply("the reply cannot be decompressed", server=address.name)
    if isinstance(error, aiohttp.ClientPayloadError):
        return _lost(address, "the connection ended before the whole reply had arrived")
    return BadReply(f"this is not HTTP: {quoted(address, said)}; check the host and the port", server=address.name)
