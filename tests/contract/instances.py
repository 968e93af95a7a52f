"""How the tests make an instance of each class, and call each function, whose attributes or keys the contract lists."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import brim
from brim.data.tokenizer.base import ByteTokenizer
from brim.envs.arc import split_key
from brim.envs.query import ScriptedModel, scripted_questions

SPEC = {"edges": (128, 256, 512), "overflow_max": 1024}
HISTORIES = [
    {
        "compression_depth": depth,
        "num_compression_stages": depth,
        "compression_stages": [{"states": np.zeros((3 + number, 2)), "actions": np.zeros(3 + number)}] * depth,
    }
    for number, depth in enumerate((0, 2, 1, 2))
]


@cache
def samples() -> list[brim.Sample]:
    tokens = {f"s{size}": np.arange(size) for size in range(100, 160, 5)}
    return [brim.Sample(id=id, input_ids=row, loss_mask=np.ones_like(row)) for id, row in tokens.items()]


@cache
def lengths() -> brim.LengthCache:
    return brim.LengthCache.from_lengths({sample.id: sample.length for sample in samples()})


@cache
def sampler() -> brim.TokenBudgetBatchSampler:
    spec = brim.BucketSpec(**SPEC)
    return brim.TokenBudgetBatchSampler(lengths=lengths(), bucket_spec=spec, token_budget=2048, seed=42)


@cache
def plan() -> brim.BatchPlan:
    return brim.BatchPlanBuilder(lengths(), brim.BatchingConfig(token_budget=512)).build(num_epochs=2)


@cache
def buffer() -> brim.ReplayBuffer:
    replay = brim.ReplayBuffer(max_size=20, eviction_policy=brim.BufferEvictionPolicy.PRIORITY)
    replay.add_batch([stream_sample(number) for number in range(12)])
    return replay


@cache
def generated() -> "tuple[brim.BatchedSequences, brim.LogprobResults]":
    """As the document's first example does it."""
    from support.models import tiny

    config = brim.GenerationConfig(temperature=0.8, max_new_tokens=3, gen_batch_size=64, tf_batch_size=128)
    processor = brim.SequenceProcessor(tiny(), ByteTokenizer(), config)
    return processor.generate_with_logprobs(prompts=["Solve: 2+2=", "What is 5*3?"], G=2)


def stream_sample(number: int = 0) -> brim.StreamSample:
    tokens = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
    return brim.StreamSample(sample_id=f"e{number}", **tokens, difficulty=0.3, success=True)


def written(folder: Path) -> brim.BatchReader:
    brim.BatchWriter(plan(), samples(), output_dir=folder / "batches").write_all()
    return brim.BatchReader(folder / "batches")


def stream(kind: Any, folder: Path) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": number, "text": "a row of text"}) + "\n" for number in range(4)))
    return kind(path, "byte")


def arc(call: Callable[[Any, brim.JaxArcConfig, brim.JaxArcTask], Any]) -> Callable[[Path], Any]:
    """Call something with the keys of two environments of NumPy, a configuration and a task."""

    return lambda _: call(split_key(0, 2, arrays="numpy"), brim.JaxArcConfig(), brim.create_mock_task())


def monitor(keys: Any, config: brim.JaxArcConfig, task: brim.JaxArcTask) -> brim.BatchPerformanceMonitor:
    watching = brim.BatchPerformanceMonitor()
    states, _ = watching.time_batch_reset(keys, config, task)
    watching.time_batch_step(states, brim.conditional_batch_processing(states, config), config)
    return watching


def query_environments() -> brim.BatchedQueryMutationEnv:
    with brim.LLMPool(ScriptedModel(), model="scripted") as pool:
        return brim.BatchedQueryMutationEnv(2, scripted_questions(4), pool=pool, reward="numeric")


INSTANCES: dict[str, Callable[[Path], Any]] = {
    "Sample": lambda _: samples()[0],
    "LengthCache": lambda _: lengths(),
    "LengthEntry": lambda _: next(iter(lengths())),
    "BucketSpec": lambda _: brim.BucketSpec(**SPEC),
    "BucketStats": lambda _: sampler().compute_metrics(0).bucket_stats[0],
    "TokenBudgetBatchSampler": lambda _: sampler(),
    "BatchSpec": lambda _: next(iter(sampler().iter_epoch(epoch=0))),
    "BatchMetrics": lambda _: sampler().compute_metrics(0),
    "BatchShapeHistogram": lambda _: sampler().compute_metrics(0).shape_histogram,
    "PackingConfig": lambda _: brim.PackingConfig(mode=brim.PackingMode.GREEDY, max_length=512),
    "PackedSequence": lambda _: brim.pack_sequences(samples(), brim.PackingConfig(max_length=512))[0],
    "PackingMetrics": lambda _: brim.compute_packing_metrics(brim.pack_sequences(samples())),
    "BatchPlanBuilder": lambda _: brim.BatchPlanBuilder(lengths(), brim.BatchingConfig()),
    "BatchPlan": lambda _: plan(),
    "EpochPlan": lambda _: plan().get_epoch(0),
    "compute_batch_fingerprint": lambda _: brim.compute_batch_fingerprint(plan().iter_epoch(0)),
    "DistributedConfig": lambda _: brim.DistributedConfig.from_env(),
    "CheckpointPosition": lambda _: brim.CheckpointPosition(epoch=0, microbatch_idx=3),
    "BatchWriter": lambda folder: brim.BatchWriter(plan(), samples(), output_dir=folder),
    "BatchReader": written,
    "CollatedBatch": lambda folder: next(iter(written(folder).iter_epoch(0))),
    "compute_length_histogram": lambda _: brim.compute_length_histogram(lengths()),
    "suggest_bucket_edges": lambda _: brim.suggest_bucket_edges(lengths(), num_buckets=4, goal="minimize_waste"),
    "create_efficiency_report": lambda _: brim.create_efficiency_report(lengths()),
    "OfflineDatasetStream": lambda folder: stream(brim.OfflineDatasetStream, folder),
    "AsyncOfflineDatasetStream": lambda folder: stream(brim.AsyncOfflineDatasetStream, folder),
    "StreamSample": lambda _: stream_sample(),
    "StreamMetrics": lambda _: brim.StreamMetrics(),
    "MockGymStream": lambda _: brim.MockGymStream("byte", num_episodes=2),
    "GymConfig": lambda _: brim.GymConfig(),
    "ReplayBuffer": lambda _: buffer(),
    "RollingBatchPlanWindow": lambda _: brim.RollingBatchPlanWindow(buffer(), min_samples=4),
    "BucketSampler": lambda _: brim.BucketSampler(HISTORIES, batch_size=2, shuffle=True),
    "collate_compressed_batch": lambda _: brim.collate_compressed_batch([HISTORIES[1], HISTORIES[3]]),
    "ArcEnvState": arc(lambda *given: brim.batch_reset(*given)[0]),
    "run_batch_episode": arc(lambda *given: brim.run_batch_episode(*given, max_steps=2)),
    "find_optimal_batch_size": arc(
        lambda _, config, task: brim.find_optimal_batch_size(config, task, max_batch_size=2, arrays="numpy")[1][2]
    ),
    "analyze_memory_usage": arc(
        lambda _, config, task: brim.analyze_memory_usage(config, task, batch_sizes=[2], arrays="numpy")[2]
    ),
    "hierarchical_batch_processing": arc(
        lambda _, config, task: brim.hierarchical_batch_processing(2, 2, 2, config, task, arrays="numpy")[1]
    ),
    "batch_policy_rollout": arc(
        lambda keys, config, task: brim.batch_policy_rollout(
            brim.example_policy, brim.batch_reset(keys, config, task)[0], config, num_steps=2
        )
    ),
    "example_policy": arc(lambda *given: brim.example_policy(brim.batch_reset(*given)[0])),
    "extract_state_features": arc(lambda *given: brim.extract_state_features(brim.batch_reset(*given)[0])),
    "BatchedQueryMutationEnv": lambda _: query_environments(),
    "BatchedSequences": lambda _: generated()[0],
    "LogprobResults": lambda _: generated()[1],
    "DATASET_REGISTRY": lambda _: brim.DATASET_REGISTRY,
    "BatchPerformanceMonitor": arc(monitor),
    "BatchPerformanceMonitor.get_stats": arc(lambda *given: monitor(*given).get_stats()),
}
"""By the name in the contract. They are given a directory to write into."""
