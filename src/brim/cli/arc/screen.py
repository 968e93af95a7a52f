"""A terminal that reports every key as it is pressed, and that is given back as it was.

Whatever ends the block, the old settings come back: its end, an exception, Ctrl-C, SIGTERM or SIGHUP. Only SIGKILL
cannot be answered. Ctrl-Z and Ctrl-\\ arrive as keys, because a process that they stop could restore nothing.
"""

import os
import select
import signal
import sys
import termios
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from brim.cli.arc.keys import typed

ENTER = "\x1b[?1049h\x1b[?25l"
"""Change to the alternate screen, and hide the cursor."""
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[H\x1b[J"
WAIT = 0.05
"""Seconds after which an escape is the key and not the beginning of a sequence."""


@contextmanager
def taken_terminal() -> Generator[None, None, None]:
    """Take the terminal on stdin and stdout for the block: no echo, no waiting for a line, the alternate screen."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, _settings(fd))
        show(ENTER)
        yield
    finally:
        # A terminal that was closed takes no settings any more.
        with suppress(OSError, termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        with suppress(OSError):
            show(LEAVE)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _settings(fd: int) -> list[Any]:
    """Return the settings of a terminal without echo, lines and keys that stop the process."""
    settings = termios.tcgetattr(fd)
    settings[0] &= ~termios.IXON
    settings[3] &= ~(termios.ECHO | termios.ICANON)
    controls = settings[6]
    disabled = bytes([os.fpathconf(fd, "PC_VDISABLE") & 0xFF])
    controls[termios.VSUSP] = controls[termios.VQUIT] = disabled
    controls[termios.VMIN], controls[termios.VTIME] = 1, 0
    return settings


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def resizes() -> Generator[int, None, None]:
    """Give the block a file descriptor that can be read whenever the terminal has changed its size.

    The handler of the signal does not draw: it could interrupt a drawing, and for a signal just before a blocking read
    it would run after it.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGWINCH, _ignore)
    outer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(outer)
        signal.signal(signal.SIGWINCH, before)
        os.close(reader)
        os.close(writer)


def _ignore(number: int, frame: object) -> None:
    """Do nothing: a signal wakes `terminal_keys` only if it has a handler."""


def show(text: str) -> None:
    """Write text to the terminal at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def terminal_keys(resized: int) -> Iterator[str | None]:
    """Yield the keys that are pressed, until the terminal is closed; and None when it has changed its size.

    Args:
        resized: The file descriptor of `resizes`.
    """
    fd = sys.stdin.fileno()
    rest = ""
    while True:
        ready = select.select([fd, resized], [], [], WAIT if rest else None)[0]
        if resized in ready:
            os.read(resized, 1024)
            yield None
        if fd in ready:
            got = os.read(fd, 1024)
            if not got:
                return
            rest += got.decode(errors="replace")
        keys, rest = typed(rest, complete=not ready)
        yield from keys
