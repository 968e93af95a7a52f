"""Data, plans and ranks that the loader tests share."""

import multiprocessing
import os
import traceback
import warnings
from dataclasses import replace
from datetime import timedelta

import numpy as np

from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig, Sample
from brim.data.ids import Ids
from brim.data.token_store import TokenStore

VOCABULARY = 97
PACKED = BatchingConfig(token_budget=128, packing=PackingConfig(max_length=64))
PADDED = BatchingConfig(token_budget=128)
CUT = BatchingConfig(token_budget=64, overflow_max=20, overflow="split")


def make_store(n=60, *, seed=0, longest=60, pad_id=0):
    """Samples of uneven length with random tokens; the numbers 0 .. n - 1 are their ids."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.exp(2.5 + random.standard_normal(n)), 1, longest).astype(int)
    rows = [
        Sample(i, random.integers(0, VOCABULARY, size), random.integers(0, 2, size))
        for i, size in enumerate(lengths.tolist())
    ]
    return TokenStore.from_samples(rows, pad_id=pad_id)


def make_plan(store, config=PADDED, *, num_epochs=1, **options):
    return BatchPlan.build(
        LengthCache(Ids.rows(len(store)), store.lengths), replace(config, **options), num_epochs=num_epochs
    )


def on_ranks(world_size, work, *args, seconds=60):
    """What `work(rank, *args)` gives on each of so many real processes, which form a gloo group under torchrun's
    variables.

    They are forked, because importing torch takes longer than all the rest. One thread each: those of a parent do not
    survive a fork.
    """
    context = multiprocessing.get_context("fork")
    store = f"/tmp/brim-test-{os.getpid()}-{os.urandom(4).hex()}"
    pipes, processes = [], []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)  # Python 3.12 about threads of the parent
        for rank in range(world_size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, world_size, store, theirs, work, args))
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
    try:
        answers = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(seconds), f"rank {rank} gave no answer in {seconds} s"
            answers.append(pipe.recv())
        failed = [answer for answer, error in answers if error]
        assert not failed, failed[0]
        return [answer for answer, _ in answers]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
        if os.path.exists(store):
            os.unlink(store)


def _rank(rank, world_size, store, pipe, work, args):
    import torch

    names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="localhost", MASTER_PORT="0")
    os.environ.update(ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1")  # Accelerate sets the number of threads to it
    warnings.simplefilter("ignore")  # what trainers warn about is theirs
    warnings.filterwarnings("error", module="brim")
    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=30)
        )
        pipe.send((work(rank, *args), False))
        torch.distributed.barrier()
    except BaseException:
        pipe.send((traceback.format_exc(), True))
    finally:
        pipe.close()
        os._exit(0)  # nothing that pytest has registered runs here
