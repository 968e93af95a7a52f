"""The real puzzle server as a process of ours: `PuzzleServer`.

Run as a module, this file is that process: the server of chuk-puzzles-gym without its 300 second limit on sessions,
which ends when its standard input does. A pipe ends with whoever holds it, so a server does not outlive the program
that started it, however that one dies, unless a process that it forked lives on with its end of the pipe.
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from brim.core.errors import MissingExtraError
from brim.core.options import one_of
from brim.envs.puzzle.wire.errors import ConnectionFailed

ServerTransport = Literal["tcp", "telnet", "websocket"]
SERVER_TRANSPORTS: tuple[ServerTransport, ...] = ("tcp", "telnet", "websocket")

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


class PuzzleServer:
    """A server on this machine, from `start` (or `with`) to `stop`. It plays on one core: for more episodes a second,
    start more of them.

    Example:
        with PuzzleServer() as server:
            config = GymConfig(host=server.host, port=server.port)
    """

    def __init__(
        self, transport: ServerTransport = "tcp", host: str = "127.0.0.1", port: int = 0, *, start_timeout: float = 60.0
    ) -> None:
        """Port 0 means any free port."""
        one_of("transport", transport, SERVER_TRANSPORTS)
        self.transport, self.host, self.port = transport, host, port
        self._any_port = port == 0
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server, and return when it listens.

        Raises:
            MissingExtraError: The package of the server is not installed.
            ConnectionFailed: It did not come up; the message has its last words.
        """
        if self.running:
            return self
        if not server_installed():
            raise MissingExtraError(
                "the puzzle server needs chuk-puzzles-gym, which is not installed; run: pip install 'brim[gym]'"
            )
        if not self._any_port and _listens(self.host, self.port):
            raise ConnectionFailed(
                f"something listens on {self.host}:{self.port} already; choose another port, or 0 for any that is free"
            )
        said = ""
        for _ in range(3):  # a port that was free may not be by now
            self._launch()
            if self._wait():
                return self
            said = last_words(self.output())
            self.stop()
            if not self._any_port or "address already in use" not in said.lower():
                break
        raise ConnectionFailed(
            f"the puzzle server did not start on {self.host}:{self.port}; it said: {said or 'nothing'}"
        )

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        if self._process is not None:
            if self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def wait(self) -> int:
        """Wait until the server ends by itself, and return its exit status."""
        assert self._process is not None, "start it first"
        return self._process.wait()

    def output(self) -> str:
        """Return the server's warnings and errors so far."""
        return "" if self._folder is None else Path(self._folder.name, "server.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _launch(self) -> None:
        if self._any_port:
            self.port = _free_port(self.host)
        self._folder = tempfile.TemporaryDirectory(prefix="brim-gym-")
        config = Path(self._folder.name, "server.yaml")
        config.write_text(_CONFIG.format(host=json.dumps(self.host), port=self.port, transport=self.transport))
        command = [sys.executable, "-m", "brim.envs.puzzle.wire.server", str(config)]
        with open(config.with_name("server.log"), "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _wait(self) -> bool:
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline and self.running:
            if _listens(self.host, self.port):
                return True
            time.sleep(0.02)
        return False


def _free_port(host: str) -> int:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            return free.getsockname()[1]
    except (OSError, ValueError) as error:
        raise ConnectionFailed(
            f"cannot listen on {host!r}: {error}; name an address of this machine, such as 127.0.0.1"
        ) from None


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except (OSError, ValueError):  # a name that cannot be one is a ValueError
        return False


def last_words(output: str) -> str:
    """Return the end of a server's output, on one line."""
    return " / ".join(line.strip() for line in output[-500:].splitlines() if line.strip())


def main(arguments: Sequence[str]) -> None:
    """Serve as the configuration file says, until standard input ends."""
    threading.Thread(target=_end_with_input, args=(Path(arguments[0]).parent,), daemon=True).start()
    logging.disable(logging.INFO)  # it writes lines for every game and every connection
    from chuk_protocol_server import server_launcher  # pyright: ignore[reportMissingImports]

    sys.argv = ["server-launcher", "--config", *arguments]
    server_launcher.main()


def _end_with_input(folder: Path) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)  # the process that made it may have ended
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
