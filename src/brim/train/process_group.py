"""The ranks of a torch process group: joining and leaving it, sums over it, and modules wrapped for it.

A single process joins nothing and pays for nothing.
"""

import gc
import os
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from brim.core.errors import BrimError, OptionError
from brim.core.extras import need
from brim.plan.distributed import DistributedConfig
from brim.train.ranks import Ranks

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.rendezvous import rendezvous
    from torch.nn.parallel import DistributedDataParallel
else:
    torch = need("torch", extra="train", user="brim.train")
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous
    from torch.nn.parallel import DistributedDataParallel

Result = TypeVar("Result")

PATIENCE = timedelta(hours=2)
"""Upper limit of the wait for other ranks: one of them may be tokenizing. A rank that died is noticed at once."""

MEETING = timedelta(minutes=5)
"""Upper limit of the wait for other ranks to start."""

LOST = (
    "closed by peer",
    "connection reset",
    "broken pipe",
    "timed out",
    "gloo",
    "nccl",
    "connection refused",
    "store->",
    "heartbeat",
)


class ProcessGroup(Ranks):
    """One of several ranks, which are connected by torch."""

    def total(self, values: Sequence[float]) -> list[float]:
        # NCCL and gloo both add float64.
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def share(self, value: Result | None) -> Result:
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]  # pyright: ignore[reportReturnType]

    def gather(self, value: Result) -> list[Result]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


@contextmanager
def join_ranks(*, resume: str = "continue with --resume") -> Generator[Ranks, None, None]:
    """Join the process group that the launcher's variables describe, and leave it at the end.

    `resume` says, in the message about a lost rank, how to go on. The body should only call a function, so that no
    local variable keeps a wrapped module alive.

    Raises:
        BrimError: Contact with another rank was lost on the way.
    """
    me = DistributedConfig.from_env()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", me.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not me.is_distributed:
        yield Ranks(me, device)
        return
    if not dist.is_initialized():
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise OptionError(f"there are {me.world_size} ranks but {missing[0]} is not set; start them with torchrun")
        store, _, _ = next(rendezvous("env://", me.rank, me.world_size, timeout=MEETING))
        dist.init_process_group(
            "nccl" if cuda else "gloo", store=store, rank=me.rank, world_size=me.world_size, timeout=PATIENCE
        )
    try:
        yield ProcessGroup(me, device)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in LOST):
            reason = str(error).splitlines()[0][:120]
            raise BrimError(
                f"rank {me.rank} lost contact with another rank, which died or was stopped; {resume} ({reason})"
            ) from None
        raise
    finally:
        # A wrapped module that outlives its process group ends that group itself, while it holds the interpreter's
        # lock, and waits for a thread that wants the lock: it must be collected first.
        gc.collect()
        with suppress(RuntimeError):  # the others may have left already
            dist.destroy_process_group()


def wrap(module: "nn.Module", ranks: Ranks, *, fsdp: bool) -> Any:
    """Wrap a module so that its gradients are means over the ranks."""
    module.to(ranks.device)
    if fsdp:
        return _shard(module, ranks)
    if not ranks.several:
        return module
    ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)


def without_sync(module: Any, ranks: Ranks, *, fsdp: bool, last: bool) -> Any:
    """Return a context for a microbatch: only the last one of a step sends the gradients, which are sums over all of
    them.
    """
    if fsdp:
        module.set_requires_gradient_sync(last)
        return nullcontext()
    return nullcontext() if last or not ranks.several else module.no_sync()


def _shard(module: Any, ranks: Ranks) -> Any:
    if not ranks.several:
        raise OptionError(
            "--fsdp shards the model over ranks: start several with torchrun --nproc-per-node N -m brim train sft ..."
        )
    fsdp = need("torch.distributed.fsdp", extra="train", user="brim.train")
    if not hasattr(fsdp, "fully_shard"):
        raise OptionError(
            f"--fsdp needs FSDP2, which torch {torch.__version__} does not have; update torch, or leave it out"
        )
    mesh = need("torch.distributed.device_mesh", extra="train", user="brim.train").init_device_mesh(
        ranks.device.type, (ranks.world_size,)
    )
    for layer in _layers(module):
        fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(module, mesh=mesh)


def _layers(module: Any) -> list[Any]:
    """Return the blocks of the model: the longest list of modules in it."""
    lists = [list(child) for child in module.modules() if isinstance(child, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
