"""How a call to a model can end without an answer.

    Failure
    ├── Rejected          the server refuses the request (HTTP 4xx); asking again cannot help
    │   └── ModelMissing  no server has the model
    ├── Overloaded        the server takes no more requests at the moment (HTTP 429, 503, 529)
    ├── ServerFailed      the server could not do its work (HTTP 500, 502, 504 ...)
    ├── ServerLost        the server cannot be reached, or closed the connection
    ├── TimedOut          the time for the call, or for one attempt, ran out
    ├── BadReply          the reply cannot be understood
    ├── CacheFailed       the cache is damaged or cannot be read
    ├── NotCached         the cache is replayed, and does not have the answer
    └── Cancelled         the pool was closed before the call ended

A failure is an exception where one answer is asked for, and a value in a list where many are. Every one says which
server was asked last, how often, and for how long. None of them ever contains an API key or a password.
"""

from typing import Any

from brim.core.errors import BrimError


class Failure(BrimError):  # noqa: N818
    """A call that ended without an answer."""

    transient = False
    """True if another attempt may succeed."""

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        attempts: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """
        Args:
            message: The reason, without secrets.
            server: Address of the server that was asked last, without secrets.
            status: Its HTTP status.
            retry_after: Seconds for which the server asked not to be asked again.
            attempts: Requests that were sent for this call.
            seconds: Time since the call was submitted.
        """
        super().__init__(message)
        self.message = message
        self.server = server
        self.status = status
        self.retry_after = retry_after
        self.attempts = attempts
        self.seconds = seconds

    def __str__(self) -> str:
        about = [self.server] if self.server and self.server not in self.message else []
        if self.attempts:
            about.append(f"{self.attempts} attempt{'s' * (self.attempts != 1)} in {self.seconds:.1f} s")
        return f"{self.message} ({', '.join(about)})" if about else self.message

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as JSON-like values."""
        return {
            "type": type(self).__name__,
            "reason": self.message,
            "server": self.server,
            "status": self.status,
            "attempts": self.attempts,
            "seconds": round(self.seconds, 3),
        }


class Rejected(Failure):
    """The server refuses the request; asking again cannot help."""


class ModelMissing(Rejected):
    """The server does not have the model."""


class Overloaded(Failure):
    """The server takes no more requests at the moment."""

    transient = True


class ServerFailed(Failure):
    """The server could not do its work."""

    transient = True


class ServerLost(Failure):
    """The server cannot be reached, or closed the connection before it answered."""

    transient = True
    connected = True
    """False if no connection could be made, so that the server never saw the request."""


class TimedOut(Failure):
    """The time for the call, or for one attempt, ran out."""

    transient = True


class BadReply(Failure):
    """The reply cannot be understood."""

    transient = True


class CacheFailed(Failure):
    """The cache is damaged, or cannot be read."""


class NotCached(Failure):
    """The cache is replayed, and does not have the answer."""


class Cancelled(Failure):
    """The pool was closed before the call ended."""
