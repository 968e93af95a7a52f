"""Training runs in processes of their own, one for each rank, forked from a server that has torch loaded: a world
starts in under a second.

Every wait is bounded, and only processes that were started here are ended.
"""

import faulthandler
import json
import os
import signal
import socket
import time
import traceback
from pathlib import Path

from brim.train.config import SftConfig
from brim.train.grpo.config import GrpoConfig
from brim.train.online.config import OnlineConfig
from support.forked import CONTEXT, PATIENCE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank(rank: int, world_size: int, port: int, config: dict, resume: str | None, outcome: str) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size)
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    faulthandler.dump_traceback_later(PATIENCE - 30, exit=True)  # where it hangs, if it does
    import torch

    from brim.train.grpo.run import train_grpo
    from brim.train.online.run import train_online
    from brim.train.sft import find_checkpoint, train_sft

    torch.set_num_threads(1)
    checkpoint = find_checkpoint(resume) if resume is not None else None
    try:
        if "sft" in config:
            result = train_online(OnlineConfig.from_dict(config), resume=checkpoint).sft
        elif "group_size" in config:
            found = train_grpo(GrpoConfig.from_dict(config), resume=checkpoint)
            Path(outcome).write_text(json.dumps({"taken": found.taken, "stopped": found.stopped}))
            return
        else:
            result = train_sft(SftConfig.from_dict(config), resume=checkpoint)
        Path(outcome).write_text(
            json.dumps({"taken": result.taken, "stopped": result.stopped, "loss": result.last_loss})
        )
    except Exception as error:
        Path(outcome).write_text(
            json.dumps({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        )
        raise SystemExit(2) from None


class World:
    """The ranks of one run."""

    def __init__(
        self, config: SftConfig | OnlineConfig | GrpoConfig, world_size: int = 1, resume: str | None = None
    ) -> None:
        self.output = Path(config.output)
        self.output.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.outcomes = [self.output.parent / f"outcome-{self.output.name}-{rank}.json" for rank in range(world_size)]
        for outcome in self.outcomes:
            outcome.unlink(missing_ok=True)
        self.ranks = [
            CONTEXT.Process(
                target=_rank, args=(rank, world_size, port, config.to_dict(), resume, str(self.outcomes[rank]))
            )
            for rank in range(world_size)
        ]
        for rank in self.ranks:
            rank.start()

    def wait(self) -> list[dict]:
        """How every rank ended."""
        deadline = time.monotonic() + PATIENCE
        try:
            for rank in self.ranks:
                rank.join(max(0.1, deadline - time.monotonic()))
                assert rank.exitcode is not None, f"a rank did not end in {PATIENCE} s"
        finally:
            for rank in self.ranks:
                rank.kill()
        return [json.loads(path.read_text()) if path.exists() else {"error": "killed"} for path in self.outcomes]

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        """Until a rank has written that it took a step."""
        path, deadline = self.output / f"samples-rank{rank}.jsonl", time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.ranks[rank].is_alive():
            if path.exists() and any(line["step"] >= step for line in lines(path)):
                return
            time.sleep(0.002)

    def kill(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.ranks)):
            os.kill(self.ranks[rank].pid, signal.SIGKILL)


def lines(path: Path) -> list[dict]:
    """The whole lines of a file that is being written."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def trained(output: Path) -> list[tuple[int, int, str]]:
    """(epoch, step, sample) of everything a run says it was trained on, over all ranks."""
    return [
        (line["epoch"], line["step"], id)
        for path in sorted(output.glob("samples-rank*.jsonl"))
        for line in lines(path)
        for id in line["samples"]
    ]


def weights(output: Path) -> dict:
    from safetensors.torch import load_file

    return load_file(output / "model" / "model.safetensors")
