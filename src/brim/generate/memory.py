"""Lack of memory: how it is noticed, and how a limit is halved and remembered."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brim.analyze.capacity.memory import is_out_of_memory
from brim.core.extras import need

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="generate", user="brim.generate")


class OutOfMemory(Exception):  # noqa: N818  it never leaves this room
    """A device, or the allocator of the CPU, had no memory left."""


@contextmanager
def watching_memory() -> Generator[None, None, None]:
    """Turn every error that means a lack of memory into `OutOfMemory`, without the frames that hold tensors."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = str(error).strip().split("\n")[0][:200]
    else:
        return
    # Outside of the except block: the traceback kept the tensors of the failed step alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise OutOfMemory(said)
