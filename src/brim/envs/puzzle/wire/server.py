"""The real puzzle server as a process of ours: `PuzzleServer`.

Run as a module, this file is that process: the server of chuk-puzzles-gym without its 300 second limit on sessions,
which ends with the program that started it (see `brim.core.served`).
"""

import json
import logging
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from brim.core.errors import MissingExtraError
from brim.core.options import one_of
from brim.core.served import Served, end_with_input
from brim.envs.puzzle.wire.errors import ConnectionFailed
from brim.envs.puzzle.wire.names import SERVER_TRANSPORTS, ServerTransport

_CONFIG = """\
host: {host}
port: {port}
transport: {transport}
handler_class: chuk_puzzles_gym.server:ArcadeHandler
max_connections: 10000
connection_timeout: 0
"""


def server_installed() -> bool:
    """True if the package chuk-puzzles-gym is installed."""
    return find_spec("chuk_puzzles_gym") is not None and find_spec("chuk_protocol_server") is not None


class PuzzleServer(Served):
    """A server on this machine, from `start` (or `with`) to `stop`. It plays on one core: for more episodes a second,
    start more of them.

    Example:
        with PuzzleServer() as server:
            config = GymConfig(host=server.host, port=server.port)
    """

    what = "the puzzle server"
    module = "brim.envs.puzzle.wire.server"
    failure = ConnectionFailed

    def __init__(
        self, transport: ServerTransport = "tcp", host: str = "127.0.0.1", port: int = 0, *, start_timeout: float = 60.0
    ) -> None:
        """Port 0 means any free port."""
        one_of("transport", transport, SERVER_TRANSPORTS)
        super().__init__(host, port, start_timeout=start_timeout)
        self.transport = transport

    def _check(self) -> None:
        if not server_installed():
            raise MissingExtraError(
                "the puzzle server needs chuk-puzzles-gym, which is not installed; run: pip install 'brim[gym]'"
            )

    def _configure(self, folder: Path) -> list[str]:
        config = folder / "server.yaml"
        config.write_text(_CONFIG.format(host=json.dumps(self.host), port=self.port, transport=self.transport))
        return [str(config)]


def main(arguments: Sequence[str]) -> None:
    """Serve as the configuration file says, until standard input ends."""
    end_with_input(Path(arguments[0]).parent)
    logging.disable(logging.INFO)  # it writes lines for every game and every connection
    from chuk_protocol_server import server_launcher  # pyright: ignore[reportMissingImports]

    sys.argv = ["server-launcher", "--config", *arguments]
    server_launcher.main()


if __name__ == "__main__":
    main(sys.argv[1:])
