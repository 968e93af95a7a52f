"""What a program wrote to a terminal."""

import os
from contextlib import suppress


def read_to_end(ours):
    """Read what was written to a terminal, until its other end is closed by everybody who holds it."""
    shown = bytearray()
    with suppress(OSError):  # Linux says "the other end is closed" with an error
        while read := os.read(ours, 1 << 16):
            shown += read
    return shown.decode()
