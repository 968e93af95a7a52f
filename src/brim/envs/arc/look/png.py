"""Write PNG: an image of at most 16 colours, four bits for a pixel, with a mark that says who wrote it.

The same pixels give the same bytes with the same version of zlib. Pillow would do this too; a picture of few colours
takes one header, one table and one compressed block, which is not worth a dependency.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MARK = b"brim arc picture"
"""Text in every file, by which an earlier picture is recognised."""
MOST_COLOURS = 16


def png_bytes(pixels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> bytes:
    """Return a PNG file.

    Args:
        pixels: [height, width], numbers of colours.
        colours: [at most 16, 3], red, green and blue.
    """
    assert len(colours) <= MOST_COLOURS
    assert pixels.max() < len(colours)
    height, width = pixels.shape
    even = np.pad(pixels, ((0, 0), (0, width % 2)))
    packed = even[:, ::2] << 4 | even[:, 1::2]
    # Every line begins with the number of its filter; 0 is none, which suits tables of colours.
    lines = np.pad(packed, ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    return SIGNATURE + b"".join(
        [
            _chunk(b"IHDR", header),
            _chunk(b"tEXt", b"Software\0" + MARK),
            _chunk(b"PLTE", colours.astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
