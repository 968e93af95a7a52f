"""The rank of this process, and its share of a plan. No process group is created here, and nothing is communicated."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.core.errors import OptionError

if TYPE_CHECKING:
    from brim.plan.epoch import MicrobatchSpec
    from brim.plan.plan import BatchPlan


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Rank of this process and number of processes, over all nodes and on its own node (local)."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    def __post_init__(self) -> None:
        for size, rank in (("world_size", "rank"), ("local_world_size", "local_rank")):
            if getattr(self, size) < 1:
                raise OptionError(f"{size} must be at least 1, got {getattr(self, size)}")
            if not 0 <= getattr(self, rank) < getattr(self, size):
                raise OptionError(
                    f"{rank} must lie between 0 and {size} - 1 = {getattr(self, size) - 1}, got {getattr(self, rank)}"
                )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "DistributedConfig":
        """Read the environment variables of torchrun, OpenMPI or SLURM, in this order; one process if none are set.

        Raises:
            OptionError: A launcher's variables are incomplete or not numbers. A guess would train every rank on all of
                the data.
        """
        environ = os.environ if environ is None else environ
        for names in LAUNCHERS:
            if names["rank"] in environ:
                return cls._from(names, environ)
        for names in LAUNCHERS[:2]:  # SLURM's task count is also set where there is one process
            if environ.get(names["world_size"], "1") != "1":
                raise OptionError(
                    f"{names['world_size']} is {environ[names['world_size']]} but {names['rank']} is not set"
                )
        return cls()

    @classmethod
    def _from(cls, names: Mapping[str, str], environ: Mapping[str, str]) -> "DistributedConfig":
        values: dict[str, int] = {}
        for field, name in names.items():
            if name in environ:
                try:
                    values[field] = int(environ[name])
                except ValueError:
                    raise OptionError(f"{name} is not a number: {environ[name]!r}") from None
        if "world_size" not in values:
            raise OptionError(f"{names['rank']} is {values['rank']} but {names['world_size']} is not set")
        if "local_world_size" not in values:
            values["local_world_size"] = max(values.get("local_rank", 0) + 1, 1)
        return cls(**values)


LAUNCHERS: tuple[Mapping[str, str], ...] = (
    {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_world_size": "LOCAL_WORLD_SIZE"},
    {
        "rank": "OMPI_COMM_WORLD_RANK",
        "world_size": "OMPI_COMM_WORLD_SIZE",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    {
        "rank": "SLURM_PROCID",
        "world_size": "SLURM_NTASKS",
        "local_rank": "SLURM_LOCALID",
        "local_world_size": "SLURM_NTASKS_PER_NODE",
    },
)


def shard_batch_plan(plan: "BatchPlan", config: DistributedConfig | None = None) -> "BatchPlan":
    """Return the share of one process: of `config`, or by default as the launcher's environment variables say."""
    config = config or DistributedConfig.from_env()
    return plan.shard(config.rank, config.world_size)


def interleave_microbatches(microbatches: "Sequence[MicrobatchSpec]") -> "list[MicrobatchSpec]":
    """Spread every bucket evenly over the sequence, so that any stretch of it, and any rank, sees about the same mix.

    Item j of a bucket with c items is placed at the fraction (j + 1/2) / c of the sequence. Microbatches are
    renumbered.
    """
    count: dict[int, int] = {}
    for microbatch in microbatches:
        count[microbatch.bucket_id] = count.get(microbatch.bucket_id, 0) + 1
    seen: dict[int, int] = {}
    placed: list[tuple[float, int, int]] = []
    for at, microbatch in enumerate(microbatches):
        bucket = microbatch.bucket_id
        seen[bucket] = seen.get(bucket, -1) + 1
        placed.append(((seen[bucket] + 0.5) / count[bucket], bucket, at))
    return [microbatches[at].renumbered(index) for index, (_, _, at) in enumerate(sorted(placed))]
