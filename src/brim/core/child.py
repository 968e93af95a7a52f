"""One interpreter at the other end of a socket.

A child is a plain interpreter, not a `multiprocessing` process: it never runs the caller's main module (so a script
needs no `if __name__ == "__main__"`), Ctrl-C reaches the parent alone, and when the parent is gone, however it went,
the child finds its socket closed after the work at hand and leaves. A child that dies is an error that says so, never a
hang.
"""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

START = "import sys; sys.path[:] = sys.argv[4:]; from brim.core.child import main; main(*sys.argv[1:4])"
PR_SET_PDEATHSIG = 1

Serve = Callable[["Connection[Any, Any]"], None]


class ChildEndedError(Exception):
    """A child ended while it was needed.

    Its text is the rest of a sentence about the child, such as "ended with status 3".
    """

    def __init__(self, code: int) -> None:
        self.signal = signal.Signals(-code).name if code < 0 else None
        super().__init__(f"ended with status {code}" if self.signal is None else f"was killed by {self.signal}")


class Child:
    """The parent's side of a child that is running from now on."""

    def __init__(
        self,
        serve: Serve,
        *,
        environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        dies_with_parent: bool = False,
    ) -> None:
        """Start it.

        Args:
            serve: A function of a module, which the child imports and calls with its end of the socket.
            environment: Variables that the child has beside those of this process.
            stderr: A file for what it writes to stderr; by default it shares ours.
            dies_with_parent: On Linux, the child is killed as soon as the thread that started it ends, whatever it is
                doing. Otherwise it finishes the work at hand first.
        """
        self.channel, theirs = Pipe()
        target = f"{serve.__module__}:{serve.__qualname__}"
        parent = os.getpid() if dies_with_parent else 0
        arguments = [sys.executable, "-c", START, str(theirs.fileno()), target, str(parent), *sys.path]
        # Its own process group: Ctrl-C in a terminal goes to the parent, which then ends the child.
        self.process = subprocess.Popen(
            arguments,
            env={**os.environ, **(environment or {})},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,
        )
        theirs.close()

    def send(self, message: Any) -> None:
        """Send an object to the child, which receives it from its channel.

        Raises:
            ChildEndedError: The child has ended.
        """
        try:
            self.channel.send(message)
        except OSError:
            raise ChildEndedError(self.process.wait()) from None

    def receive(self) -> Any:
        """Wait for an object from the child.

        Raises:
            ChildEndedError: The child has ended.
        """
        try:
            return self.channel.recv()
        except (EOFError, OSError):
            raise ChildEndedError(self.process.wait()) from None

    def stop(self) -> None:
        """End the child at once, whatever it is doing."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def main(descriptor: str, target: str, parent: str) -> None:
    """Run the child's side until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if int(parent):
        _die_with(int(parent))
    module, name = target.split(":")
    serve: Serve = getattr(importlib.import_module(module), name)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended, or closed the socket
        serve(Connection(int(descriptor)))


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went before we asked
            os._exit(1)
