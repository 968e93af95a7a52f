"""The errors of talking to a puzzle server, by type.

    BrimError
    └── PuzzleError
        ├── ConnectionFailed   nothing answers there: refused, no such host, no time left to connect
        ├── ServerClosed       the connection ended in the middle of a session
        ├── ServerTimeout      a reply was not complete in time
        ├── ProtocolError      what came back is no reply to what was asked: garbage, too long, twice, out of turn
        └── UnknownGame        no server has this game, or it cannot be played to its end

After any of them the connection is thrown away: nothing that was still on its way can be taken for a later answer.
"""

from brim.core.errors import BrimError


class PuzzleError(BrimError):
    """The base of the errors of a puzzle server."""


class ConnectionFailed(PuzzleError):  # noqa: N818
    """Nothing answers at that address."""


class ServerClosed(PuzzleError):  # noqa: N818
    """The connection ended in the middle of a session."""


class ServerTimeout(PuzzleError):  # noqa: N818
    """A reply was not complete in time."""


class ProtocolError(PuzzleError):
    """The server sent something that is no reply to the request."""


class UnknownGame(PuzzleError):  # noqa: N818
    """No server has this game, or it cannot be played to its end."""
