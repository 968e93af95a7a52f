"""Write animated GIF (89a) of at most 16 colours: every frame after the first holds only the part that changed.

The same frames give the same bytes everywhere. A library would have to be told not to reduce colours that are exact
already, and most write full frames.
"""

import struct
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

MARK = b"brim arc picture"
"""Comment in every file, by which an earlier animation is recognised."""
BITS = 4
"""Bits of a colour: the table has 16."""
MOST_CODES = 4096


def gif_bytes(frames: Sequence[NDArray[np.uint8]], colours: NDArray[np.uint8], delays: Sequence[int]) -> bytes:
    """Return a GIF file that is repeated without end.

    Args:
        frames: Images of the same shape [height, width], numbers of colours.
        colours: [at most 16, 3], red, green and blue.
        delays: How long each frame is shown, in hundredths of a second.
    """
    assert len({frame.shape for frame in frames}) == 1
    assert len(frames) == len(delays)
    height, width = frames[0].shape
    table = np.zeros((1 << BITS, 3), np.uint8)
    table[: len(colours)] = colours
    parts = [
        b"GIF89a",
        struct.pack("<HHBBB", width, height, 0xF0 | (BITS - 1), 0, 0),
        table.tobytes(),
        b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00",  # repeat without end
        b"\x21\xfe" + _blocks(MARK),
    ]
    before: NDArray[np.uint8] | None = None
    for frame, delay in zip(frames, delays, strict=True):
        parts.append(_image(frame, before, delay))
        before = frame
    return b"".join([*parts, b"\x3b"])


def _image(frame: NDArray[np.uint8], before: NDArray[np.uint8] | None, delay: int) -> bytes:
    """Return the smallest rectangle that changed, with its delay. What is outside of it stays as it was."""
    top, left, bottom, right = 0, 0, *frame.shape
    if before is not None:
        changed = frame != before
        rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        # A frame that is the same still needs a pixel to take its time.
        top, bottom = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 1)
        left, right = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 1)
    part = frame[top:bottom, left:right]
    keep = 1 << 2
    control = b"\x21\xf9\x04" + struct.pack("<BHB", keep, delay, 0) + b"\0"
    place = b"\x2c" + struct.pack("<HHHHB", left, top, right - left, bottom - top, 0)
    return control + place + bytes([BITS]) + _blocks(compress(part.tobytes()))


def compress(pixels: bytes) -> bytes:
    """Return pixels of four bits, compressed by LZW with codes of variable length as GIF has them."""
    held, used = 0, 0
    packed = bytearray()
    for code, length in _codes(pixels):
        held |= code << used
        used += length
        while used >= 8:
            packed.append(held & 0xFF)
            held >>= 8
            used -= 8
    if used:
        packed.append(held)
    return bytes(packed)


def _codes(pixels: bytes) -> Iterator[tuple[int, int]]:
    """Yield every code with its length in bits."""
    clear, end = 1 << BITS, (1 << BITS) + 1
    length = BITS + 1
    known: dict[int, int] = {}
    free = end + 1
    yield clear, length
    prefix = pixels[0]
    for pixel in pixels[1:]:
        key = prefix << BITS | pixel
        code = known.get(key)
        if code is not None:
            prefix = code
            continue
        yield prefix, length
        prefix = pixel
        if free < MOST_CODES:
            known[key] = free
            # The decoder learns a code one step later, so the length grows when the first longer code is given away.
            if free == 1 << length:
                length += 1
            free += 1
        else:
            yield clear, length
            known.clear()
            free = end + 1
            length = BITS + 1
    yield prefix, length
    # The decoder has by now learned one more code than before the last one.
    if free == 1 << length and free < MOST_CODES:
        length += 1
    yield end, length


def _blocks(content: bytes) -> bytes:
    """Return content in blocks of at most 255 bytes, each behind its length, and the empty block that ends them."""
    blocks = [content[at : at + 255] for at in range(0, len(content), 255)]
    return b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"
