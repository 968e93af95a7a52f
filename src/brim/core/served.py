"""A server on this machine as a process of ours: `Served`.

The process is `python -m MODULE ARGUMENTS`, with a log in a temporary folder, and it ends when its standard input does
(`end_with_input`, called by that module). A pipe ends with whoever holds it, so a server does not outlive the program
that started it, however that one dies, unless a process that it forked lives on with its end of the pipe.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from brim.core.errors import BrimError, OptionError

TRIES = 3
"""A port that was free may not be by the time that the server binds it."""


class Served(ABC):
    """A server, from `start` (or `with`) to `stop`. The subclasses say which."""

    what: ClassVar[str]
    """The server in messages, such as "the puzzle server"."""
    module: ClassVar[str]
    """The module that is run as the process."""
    failure: ClassVar[type[BrimError]]
    """Raised if the server cannot be started."""

    def __init__(self, host: str, port: int, *, start_timeout: float) -> None:
        """Port 0 means any free port.

        Raises:
            OptionError: The port is out of range.
        """
        if not 0 <= port <= 65535:
            raise OptionError(f"port must lie between 0 and 65535, got {port}")
        self.host = host
        self.port = port
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
        """Start the server, and return when it is ready.

        Raises:
            MissingExtraError: The package of the server is not installed.
            BrimError: `failure`: it did not come up; the message has its last output.
        """
        if self.running:
            return self
        self._check()
        if not self._any_port and _listens(self.host, self.port):
            raise self.failure(
                f"something listens on {self.host}:{self.port} already; choose another port, or 0 for any that is free"
            )
        said = ""
        for _ in range(TRIES):
            try:
                self._launch()
                if self._wait():
                    return self
                said = last_words(self.output())
            except BaseException:  # also Ctrl-C
                self.stop()
                raise
            self.stop()
            if not self._any_port or not self._says_taken(said.lower()):
                break
        raise self.failure(f"{self.what} did not start on {self.host}:{self.port}; it said: {said or 'nothing'}")

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

    @abstractmethod
    def _check(self) -> None:
        """Refuse what cannot work, before anything is started."""

    @abstractmethod
    def _configure(self, folder: Path) -> list[str]:
        """Write the configuration for `host` and `port` into the folder, and return the arguments of the module."""

    def _ready(self, folder: Path) -> bool:
        """True once the server can be used."""
        return _listens(self.host, self.port)

    def _says_taken(self, said: str) -> bool:
        """True if the server's last output, in lower case, says that the port is taken."""
        return "address already in use" in said

    def _launch(self) -> None:
        if self._any_port:
            self.port = self._free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="brim-server-")
        folder = Path(self._folder.name)
        command = [sys.executable, "-m", self.module, *self._configure(folder)]
        with open(folder / "server.log", "wb") as log:
            # Its own session: Ctrl-C in a terminal goes to the parent, which then ends the server.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _wait(self) -> bool:
        assert self._folder is not None
        folder = Path(self._folder.name)
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline and self.running:
            if self._ready(folder):
                return True
            time.sleep(0.02)
        return False

    def _free_port(self) -> int:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            with socket.create_server((self.host, 0), family=family) as free:
                return free.getsockname()[1]
        except (OSError, ValueError) as error:
            raise self.failure(
                f"cannot listen on {self.host!r}: {error}; name an address of this machine, such as 127.0.0.1"
            ) from None


def last_words(output: str) -> str:
    """Return the end of a server's output, on one line."""
    return " / ".join(line.strip() for line in output[-500:].splitlines() if line.strip())


def end_with_input(folder: Path) -> None:
    """In the server's process: end it as soon as its standard input ends, and remove its folder."""
    threading.Thread(target=_read_until_the_end, args=(folder,), daemon=True).start()


def _read_until_the_end(folder: Path) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)  # the process that made it may have ended
    os._exit(0)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except (OSError, ValueError):  # a name that cannot be one is a ValueError
        return False
