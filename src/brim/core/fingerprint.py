"""Fingerprints: 32 hex digits of BLAKE2b over an unambiguous byte string.

Every part is written with its kind and its size before its bytes, so ("ab", "c") and ("a", "bc") differ, and so do 1,
1.0 and "1". Arrays are hashed as little-endian columns: the same numbers give the same fingerprint on every machine.

hashlib and json are imported when they are used: options have fingerprints, and the help of commands shows options.
"""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGEST_BYTES = 16


class Hash(Protocol):
    def update(self, data: Any, /) -> object: ...
    def hexdigest(self) -> str: ...


def new_hash() -> Hash:
    """The hash behind every fingerprint and checksum of ours."""
    import hashlib

    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def digest(data: "bytes | bytearray | memoryview") -> bytes:
    """The checksum of some bytes, as bytes."""
    import hashlib

    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def digest_bytes(data: "bytes | memoryview") -> str:
    """The checksum of some bytes, as hex digits."""
    return digest(data).hex()


def fingerprint(**parts: Any) -> str:
    """The fingerprint of named parts: JSON-like values and integer arrays. The order of the names does not matter.

    Example:
        >>> fingerprint(seed=42, edges=(128, 256)) == fingerprint(edges=[128, 256], seed=42)
        True
    """
    hash = new_hash()
    for name in sorted(parts):
        value = parts[name]
        if hasattr(value, "dtype"):
            kind, data = f"array {value.dtype.str[1:]} {value.shape}", array_bytes(value)
        else:
            kind, data = "json", canonical_json(value)
        hash.update(f"{len(name)}:{name} {kind} {len(data)}\n".encode())
        hash.update(data)
    return hash.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no blanks: equal values, equal bytes."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def array_bytes(array: "NDArray[Any]") -> memoryview:
    """The bytes of an integer array, little-endian and contiguous, without a copy where they are so already."""
    import numpy as np

    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
