"""The contents of files of brim, as plain numbers and words that can be compared between two versions of brim.

`write.py` calls this with the version that writes the files, the tests with the version that reads them. So it uses
only names that both have at the top of the package, and command lines that both understand.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import brim

DATA = Path("train.jsonl")
LENGTHS = ("lengths.brim", "lengths.jsonl", "grouped.brim", "grouped.jsonl", "nested.brim", "nested.jsonl")
NESTED = ("nested.h5", "nested.npz", "nested-shards")
PLANS = {
    "plans/budget": "lengths.brim",
    "plans/packed": "lengths.brim",
    "plans/buckets": "lengths.jsonl",
    "plans/split": "lengths.brim",
    "plans/lazy": "lengths.brim",
    "plans/grouped": "grouped.brim",
    "plans/nested": "nested.brim",
}
SHARDS = ("shards/rank_0", "shards/rank_1", "shards/rank_2")
BATCHES = {"batches/padded": 0, "batches/packed": 1, "batches/rank_1": 0}
"""Directories of batches, and the epoch that each holds."""
WINDOW = {
    "min_samples": 8,
    "window_microbatches": 6,
    "overlap_fraction": 0.5,
    "batching": brim.BatchingConfig(token_budget=128),
}
CURRICULUM = {"lowest": 0.3, "highest": 0.7, "block": 4}

COMMANDS = (
    "lengths build -d train.jsonl -t byte -o lengths.brim -q",
    "lengths build -d train.jsonl -t byte -o lengths.jsonl -q",
    "lengths build -d train.jsonl -t byte --group-field task -o grouped.brim -q",
    "lengths build -d train.jsonl -t byte --group-field task -o grouped.jsonl -q",
    "lengths build -d nested.h5 -o nested.brim -q",
    "lengths build -d nested.npz --axis-cost context=3 -o nested.jsonl -q",
    "plan build -l lengths.brim -b 384 -e 3 -o plans/budget",
    "plan build -l lengths.brim -b 384 -e 2 --pack --pack-max-len 192 --overflow truncate --microbatches-per-step 2 "
    "-o plans/packed",
    "plan build -l lengths.jsonl -b 384 --bucket-edges 64,128 --predictable -o plans/buckets",
    "plan build -l lengths.brim -b 256 --overflow-max 60 --overflow split --no-shuffle -o plans/split",
    "plan build -l lengths.brim -b 384 -e 2 --lazy -s 7 -o plans/lazy",
    "plan build -l grouped.brim -b 384 --drop-last -o plans/grouped",
    "plan build -l nested.brim -b 96 -e 2 -o plans/nested",
    "plan shard -p plans/packed -w 3 -o shards",
    "batch write -p plans/budget -d train.jsonl -e 0 --tokens tokens.brim -o batches/padded -q",
    "batch write -p plans/packed -d train.jsonl --tokens tokens.brim -e 1 -o batches/packed -q",
    "batch write -p plans/budget -d train.jsonl --tokens tokens.brim -e 0 -r 1 -w 3 -o batches/rank_1 -q",
)
"""They read and write in the current directory. What they write depends on nothing but what they read."""

WRITTEN = (*LENGTHS, "tokens.brim", *PLANS, *SHARDS, *BATCHES)
"""What they write."""

MODEL = "--model model --no-tensorboard --record-samples --log-every 1 --keep 99 -q"
RUNS = {
    "sft": f"train sft {MODEL} --data train.jsonl --batchplan plans/packed --eval-data eval.jsonl --lr 0.01 "
    "--save-every 3 -o sft",
    "lora": f"train sft {MODEL} --data train.jsonl -b 384 --lora-rank 2 --lora-dropout 0.1 --epochs 2 --save-every 5 "
    f"-o "
    "lora",
    "online": (
        f"train sft {MODEL} --online --gym-port PORT --games lights --difficulty-max 0.3 --lanes 4 "
        "--max-episode-steps 4 --rounds 3 --episodes-per-round 6 --guided 0.75 --min-samples 4 "
        "--window-microbatches 3 --passes 2 -b 384 --data few.jsonl --overflow skip --save-every 3 -o online"
    ),
    "distill": "train distill distill.yaml --no-plot -q -o distill",
}
"""Runs, as they are started. PORT is that of a puzzle server."""
RESUMES = {
    "sft": "train sft --resume sft -q",
    "lora": "train sft --resume lora -q",
    "online": "train sft --resume online/CHECKPOINT --gym-port PORT -q",
    "distill": "train distill --resume --no-plot -q -o distill",
}
"""The same runs, continued. CHECKPOINT is one of the run."""
ENDS = {
    "sft": "sft/model",
    "lora": "lora/model",
    "online": "online/model",
    "distill": "distill/seed-0/checkpoint-00000009",
}
"""Where their weights are in the end."""


def call(line: str) -> tuple[int, str]:
    """Run a command line of brim in this process. Returns its exit status and what it printed to stdout."""
    from brim.cli import main

    before = sys.argv, sys.stdout
    sys.argv, sys.stdout = ["brim", *line.split()], StringIO()
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0), sys.stdout.getvalue()
    finally:
        sys.argv, sys.stdout = before
    raise AssertionError("a command ends with its exit status")


def digest(*arrays: Any) -> str:
    """A fingerprint of arrays: their types, shapes and bytes."""
    hash = hashlib.sha256()
    for array in map(np.asarray, arrays):
        hash.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return hash.hexdigest()[:16]


def tree_digest(tree: Any) -> Any:
    """A nested sample with each of its arrays replaced by a fingerprint."""
    if isinstance(tree, dict):
        return {key: tree_digest(value) for key, value in sorted(tree.items())}
    if isinstance(tree, list):
        return [tree_digest(value) for value in tree]
    return tree if isinstance(tree, str | int | float | None) else digest(tree)


def file_digests(path: Path) -> dict[str, str]:
    """The fingerprint of a file, or of every file of a directory, by name. Locks, which are empty, are left out."""
    inside = sorted(child for child in path.rglob("*") if child.is_file() and child.name != ".lock")
    files = {child.relative_to(path.parent).as_posix(): child.read_bytes() for child in inside or [path]}
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in files.items()}


def of_lengths(path: Path) -> dict[str, Any]:
    cache = brim.LengthCache.load(path)
    entries = [[entry.sample_id, int(entry.length)] for entry in cache]
    hashes = [cache.dataset_hash, cache.tokenizer_hash]
    fingerprint = table_fingerprint(cache)
    return {"fingerprint": fingerprint, "hashes": hashes, "entries": entries, "source": dict(cache.source)}


def table_fingerprint(cache: brim.LengthCache) -> str:
    """The fingerprint that 0.5.0 gives a table, by which it knew what its plans were built from."""
    try:
        from brim.data.lengths import fingerprint_1
    except ImportError:  # this is 0.5.0
        return cache.fingerprint
    return fingerprint_1(cache)


def of_tokens(path: Path) -> dict[str, Any]:
    store = brim.TokenStore.load(path)
    hashes = [store.dataset_hash, store.tokenizer_hash]
    columns = digest(store.tokens, store.learned, store.lengths)
    return {"rows": len(store), "hashes": hashes, "pad": store.pad_id, "columns": columns}


def of_nested(path: Path) -> dict[str, Any]:
    source = brim.open_nested(path)
    samples = [tree_digest(sample) for sample in source]
    return {"fingerprint": source.fingerprint, "lengths": table_fingerprint(source.table), "samples": samples}


def of_plan(path: Path) -> dict[str, Any]:
    plan = brim.BatchPlan.load(path)
    epochs = [[of_microbatch(spec) for spec in plan.iter_epoch(epoch)] for epoch in range(plan.num_epochs)]
    return {
        "fingerprint": plan.fingerprint,
        "share": [plan.rank, plan.world_size, plan.step_size],
        "epochs": [digest(json.dumps(epoch)) for epoch in epochs],
        "first": epochs[0][0],
        "batch fingerprint": brim.compute_batch_fingerprint(plan.iter_epoch(0)).fingerprint,
    }


def of_microbatch(spec: brim.MicrobatchSpec) -> list[Any]:
    return [spec.index, list(spec.samples), spec.starts.tolist(), spec.lengths.tolist(), spec.max_len, spec.group]


def of_batches(path: Path) -> dict[str, Any]:
    reader = brim.BatchReader(path)
    names = ("tokens", "segment_ids", "positions", "loss_mask", "labels", "cu_seqlens")
    batches = [
        [batch.index, list(batch.ids), digest(*(getattr(batch, name) for name in names))]
        for batch in reader.iter_epoch(BATCHES[path.as_posix()])
    ]
    return {"fingerprint": reader.fingerprint, "num_epochs": reader.num_epochs, "batches": batches}


def of_buffer(path: Path) -> dict[str, Any]:
    buffer = brim.ReplayBuffer.load(path)
    statistics = json.loads(json.dumps(buffer.statistics()))
    draws = [buffer.sample(4), buffer.sample(6, replace=True), buffer.sample_uniform(3)]
    return {
        "statistics": statistics,
        "counts": [buffer.total_added, buffer.total_evicted, buffer.removed, buffer.stale_updates],
        "ids": [sample.sample_id for sample in buffer.get_all()],
        "draws": [draw.keys.tolist() for draw in draws],
        "fingerprint": buffer.snapshot().fingerprint,
    }


def of_window(path: Path, buffer: Path) -> dict[str, Any]:
    """The rest of the window, and the window after it."""
    rolling = brim.RollingBatchPlanWindow(brim.ReplayBuffer.load(buffer), tokenizer_hash="byte", **WINDOW)
    rolling.load(path)
    rest = [[batch.index, list(batch.ids), digest(batch.tokens, batch.labels)] for batch in rolling.batches()]
    return {"rest": rest, "next": rolling.build_next_window().fingerprint}


def of_curriculum(path: Path) -> dict[str, Any]:
    curriculum = brim.Curriculum(**CURRICULUM)
    curriculum.load_state_dict(json.loads(path.read_text()))
    curriculum.record_batch([True, True])
    return {"target": curriculum.target, "levels": curriculum.levels(range(8), seed=3)}


def stream() -> brim.OfflineDatasetStream:
    return brim.OfflineDatasetStream(DATA, "byte", shuffle=True, buffer_size=16, epochs=2)


def of_stream(path: Path) -> dict[str, Any]:
    """The samples that are left of a stream whose state was saved."""
    resumed = stream()
    resumed.load_state_dict(json.loads(path.read_text()))
    rest = [[sample.sample_id, digest(sample.input_ids, sample.loss_mask)] for sample in resumed]
    return {"rest": rest, "metrics": resumed.metrics.to_dict()}


def of_capacity(path: Path) -> dict[str, Any]:
    try:
        from brim.analyze import Capacity
    except ImportError:  # 0.5.0 has no names in its rooms
        from brim import Capacity
    capacity = Capacity.load(path)
    largest = capacity.largest.size
    return {**capacity.to_dict(), "knee": capacity.knee.size, "largest": largest, "advice": capacity.advice}


def of_position(path: Path) -> dict[str, Any]:
    """The samples that are left of the plan from a position on."""
    position = brim.CheckpointPosition.load(path)
    rest = brim.BatchPlan.load("plans/budget").iter_from(position)
    at = [position.epoch, position.microbatch_idx, position.global_step]
    return {"position": at, "rest": [[epoch, index, *spec.samples] for epoch, index, spec in rest]}


FACTS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: partial(of_lengths, Path(name)) for name in LENGTHS},
    **{name: partial(of_nested, Path(name)) for name in NESTED},
    **{name: partial(of_plan, Path(name)) for name in (*PLANS, *SHARDS)},
    **{name: partial(of_batches, Path(name)) for name in BATCHES},
    **{name: partial(of_buffer, Path(name)) for name in ("buffer.brim", "buffer.json")},
    "tokens.brim": partial(of_tokens, Path("tokens.brim")),
    "window.brim": partial(of_window, Path("window.brim"), Path("buffer.brim")),
    "curriculum.json": partial(of_curriculum, Path("curriculum.json")),
    "stream.json": partial(of_stream, Path("stream.json")),
    "capacity.json": partial(of_capacity, Path("capacity.json")),
    "position.json": partial(of_position, Path("position.json")),
}
"""For every file in the current directory that is not of a training run: what it holds, as JSON has it."""


def of_run(name: str) -> dict[str, Any]:
    """The end of a run: norm and sum of every weight, the loss of every step, and which samples each step had."""
    from safetensors.numpy import load_file

    [weights] = Path(ENDS[name]).glob("*model.safetensors")
    log = Path("distill/seed-0/log.jsonl") if name == "distill" else Path(name, "log.jsonl")
    losses = {str(line["step"]): line["loss"] for line in map(json.loads, log.read_text().splitlines())}
    samples = Path(name, "samples-rank0.jsonl")
    found = load_file(weights)
    return {
        "weights": {key: [float(np.linalg.norm(value)), float(value.sum(dtype=float))] for key, value in found.items()},
        "losses": losses,
        "samples": [json.loads(line) for line in samples.read_text().splitlines()] if samples.exists() else None,
    }
