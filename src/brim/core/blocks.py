"""Checksums of blocks, by which bytes are verified where they are read.

Bytes are cut into blocks of 4 KB, whose checksums form a list. A list that is longer than a block is cut into blocks as
well, until one fits in a block: its checksum is the root, which stands for all the bytes (a hash tree; Merkle 1987).
Verifying a block reads it and one block of each list above it, however many there are.

Version 1 of brim's files has one checksum for a column. That is the same with one block, as long as the column, and no
list.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div
from brim.core.fingerprint import DIGEST_BYTES, digest

BLOCK_BITS = 12
BLOCK = 1 << BLOCK_BITS
ONE_BLOCK = 62
"""The bits of a block that is longer than any bytes."""
AT_ONCE = 1 << 16
"""Number of blocks that are verified at once when all of them are."""


@dataclass(frozen=True)
class HashTree:
    """The lists of checksums of some bytes, that of the blocks first, and the root."""

    lists: tuple[bytes | memoryview, ...]
    root: str

    @classmethod
    def of(cls, data: bytes | memoryview) -> "HashTree":
        return cls.above(_checksums(data))

    @classmethod
    def above(cls, checksums: bytes) -> "HashTree":
        """Return the tree of bytes whose blocks have these checksums."""
        lists = [checksums]
        while len(lists[-1]) > BLOCK:
            lists.append(_checksums(lists[-1]))
        return cls(tuple(lists), digest(lists[-1]).hex())

    @classmethod
    def read(cls, data: memoryview, nbytes: int, root: str) -> "HashTree":
        """Return the tree of `nbytes` bytes whose lists lie end to end at the start of `data`."""
        lists: list[memoryview] = []
        for size in list_sizes(nbytes):
            lists.append(data[:size])
            data = data[size:]
        return cls(tuple(lists), root)


def list_sizes(nbytes: int) -> list[int]:
    """Return how many bytes each list of checksums of `nbytes` bytes has."""
    sizes: list[int] = []
    while not sizes or nbytes > BLOCK:
        nbytes = ceil_div(nbytes, BLOCK) * DIGEST_BYTES
        sizes.append(nbytes)
    return sizes


class GrowingTree:
    """The hash tree of bytes that arrive piece by piece."""

    def __init__(self) -> None:
        self._checksums = bytearray()
        self._rest = bytearray()

    def update(self, data: memoryview) -> None:
        if self._rest:
            missing = BLOCK - len(self._rest)
            self._rest += data[:missing]
            data = data[missing:]
            if len(self._rest) < BLOCK:
                return
            self._checksums += digest(self._rest)
        whole = len(data) // BLOCK * BLOCK
        self._checksums += _checksums(data[:whole])
        self._rest = bytearray(data[whole:])

    def close(self) -> HashTree:
        return HashTree.above(bytes(self._checksums + _checksums(self._rest)))


def _checksums(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    return b"".join([digest(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK)])


class Blocks:
    """Bytes with their checksums, and which blocks have been verified."""

    def __init__(self, data: memoryview, checksums: "Blocks | bytes", *, bits: int = BLOCK_BITS) -> None:
        """`checksums` is the list, which is verified in turn, or the checksum of bytes that are a single block."""
        self.bits = bits
        self._data, self._checksums = data, checksums
        self.verified = np.zeros(ceil_div(len(data), 1 << bits), np.bool_)  # pages of zeros take no memory

    @classmethod
    def under(cls, tree: HashTree, data: memoryview) -> "Blocks":
        checksums: Blocks | bytes = bytes.fromhex(tree.root)
        for above in reversed(tree.lists):
            checksums = cls(memoryview(above), checksums)
        return cls(data, checksums)

    def check(self, blocks: NDArray[np.int64]) -> bool:
        """Verify some blocks, unless they have been; return False if one is damaged."""
        seen = self.verified[blocks]
        if seen.all():
            return True
        return self._check_new(sorted(set(blocks[~seen].tolist())))

    def check_all(self) -> bool:
        """Verify all blocks in turn."""
        count = len(self.verified)
        return all(
            self.check(np.arange(start, min(start + AT_ONCE, count), dtype=np.int64))
            for start in range(0, count, AT_ONCE)
        )

    def _check_new(self, blocks: list[int]) -> bool:
        checksums = self._checksums
        if isinstance(checksums, Blocks):
            if not checksums.check(np.array([block * DIGEST_BYTES >> checksums.bits for block in blocks], np.int64)):
                return False
            checksums = checksums._data
        data, bits = self._data, self.bits
        for block in blocks:
            at = block * DIGEST_BYTES
            if digest(data[block << bits : (block + 1) << bits]) != checksums[at : at + DIGEST_BYTES]:
                return False
        self.verified[blocks] = True
        return True
