"""The number of torch's threads, fixed for a while: the last bits of sums depend on it."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brim.core.extras import need

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")


@contextmanager
def torch_threads(count: int) -> Generator[None, None, None]:
    """Inside, torch computes with `count` threads, whatever the machine has. Small models gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
