"""Everything that the five documents behind brim name, and whether brim has it: the contract.

There is one row for each class, function, method or enum (`NAMES`), each command line (`LINES`) and each file
(`FILES`). A row is "built" or "pending". `test_contract.py` imports, calls and runs what is built, and checks that what
is pending is still missing: whoever builds something has to move its row to "built" and, where the row has attributes
or keys, say in `instances.py` how an instance is made.

The documents are numbered as in the design: 000 batching and its command, 001 structural bucketing, 002 batched model
calls, 003 batched ARC environments, 004 sequence generation and log-probabilities.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["built", "pending"]

REQUIRED = "a parameter without a default"
ANY = "a parameter whose default the document does not say"


@dataclass(frozen=True)
class Name:
    """A class, function, method or enum, by its dotted path below `brim`."""

    document: str
    status: Status
    path: str
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameter -> its default, or REQUIRED or ANY."""
    attributes: tuple[str, ...] = ()
    """What an instance has; of a function, what its result has."""
    keys: tuple[str, ...] = ()
    """Keys of the mapping that a call returns."""
    members: tuple[str, ...] = ()
    """Members of an enum."""


@dataclass(frozen=True)
class Line:
    """A command line, exactly as the document writes it."""

    document: str
    status: Status
    text: str
    writes: str | None = None
    """A path that exists afterwards."""
    shortened: str = ""
    """Options that the test adds, where the line as written would take minutes."""


@dataclass(frozen=True)
class File:
    document: str
    status: Status
    path: str


def built(document: str, path: str, parameters: dict[str, Any] | None = None, **facts: str) -> Name:
    return _name(document, "built", path, parameters, facts)


def pending(document: str, path: str, parameters: dict[str, Any] | None = None, **facts: str) -> Name:
    return _name(document, "pending", path, parameters, facts)


def _name(document: str, status: Status, path: str, parameters: dict[str, Any] | None, facts: dict[str, str]) -> Name:
    return Name(document, status, path, parameters or {}, **{key: tuple(words.split()) for key, words in facts.items()})


BATCHING = [
    # 1. token budgets
    built("000", "Sample", {"id": REQUIRED, "input_ids": REQUIRED, "loss_mask": REQUIRED}, attributes="id length"),
    built("000", "LengthCache", attributes="items save fingerprint"),
    built("000", "LengthCache.load"),
    built("000", "LengthEntry", attributes="sample_id length"),
    built("000", "BucketSpec", {"edges": REQUIRED, "overflow_max": REQUIRED}, attributes="edges overflow_max"),
    built("000", "BucketStats", attributes="efficiency"),
    built(
        "000",
        "TokenBudgetBatchSampler",
        {"lengths": REQUIRED, "bucket_spec": REQUIRED, "token_budget": REQUIRED, "seed": ANY},
        attributes="iter_epoch compute_metrics",
    ),
    built("000", "TokenBudgetBatchSampler.iter_epoch", {"epoch": ANY}),
    built("000", "BatchSpec", attributes="batch_size max_length"),
    built("000", "BatchMetrics", attributes="efficiency padding_waste"),
    built("000", "BatchShapeHistogram", attributes="shapes"),
    # 2. packing
    built("000", "PackingConfig", {"mode": ANY, "max_length": ANY}, attributes="mode max_length"),
    built("000", "PackingMode", members="FIRST_FIT BEST_FIT GREEDY"),
    built("000", "PackedSequence", attributes="input_ids segment_ids efficiency"),
    built("000", "pack_sequences"),
    built("000", "create_segment_attention_mask", {"segment_ids": REQUIRED}),
    built("000", "PackingMetrics", attributes="efficiency"),
    # 3. plans
    built("000", "BatchPlanBuilder", {"lengths": REQUIRED}, attributes="build"),
    built("000", "BatchingConfig", {"seed": ANY, "token_budget": ANY}),
    built("000", "BatchingConfig.predictable"),
    built("000", "PadPolicy", members="PAD_TO_BUCKET PAD_TO_MAX"),
    built("000", "BatchPlan", attributes="save shard iter_epoch iter_from fingerprint"),
    built("000", "BatchPlan.load"),
    built("000", "EpochPlan", attributes="fill"),
    built("000", "compute_batch_fingerprint", {"batches": REQUIRED}, attributes="fingerprint"),
    # 4. ranks
    built("000", "DistributedConfig", {"rank": ANY, "world_size": ANY}, attributes="rank world_size"),
    built("000", "DistributedConfig.from_env"),
    built("000", "shard_batch_plan", {"plan": REQUIRED}),
    built("000", "interleave_microbatches", {"microbatches": REQUIRED}),
    built(
        "000",
        "CheckpointPosition",
        {"epoch": REQUIRED, "microbatch_idx": REQUIRED},
        attributes="epoch microbatch_idx",
    ),
    # 5. files of batches
    built("000", "BatchWriter", {"output_dir": REQUIRED}, attributes="write_all"),
    built("000", "BatchReader", attributes="iter_epoch"),
    built("000", "CollatedBatch", attributes="input_ids loss_mask"),
    # 6. analysis
    built("000", "compute_length_histogram", {"lengths": REQUIRED}, attributes="percentile"),
    built("000", "analyze_bucket_efficiency", {"lengths": REQUIRED, "bucket_spec": REQUIRED}),
    built("000", "suggest_bucket_edges", {"lengths": REQUIRED, "num_buckets": ANY, "goal": ANY}, attributes="edges"),
    built("000", "create_efficiency_report", {"lengths": REQUIRED}, attributes="histogram"),
    built("000", "OptimizationGoal", members="MINIMIZE_WASTE BALANCE_BUCKETS MINIMIZE_MEMORY"),
    # 7. streams
    built("000", "OfflineDatasetStream", {"path": REQUIRED, "tokenizer": ANY}, attributes="metrics __iter__"),
    built("000", "AsyncOfflineDatasetStream", {"path": REQUIRED, "tokenizer": ANY}, attributes="metrics __aiter__"),
    built(
        "000",
        "StreamSample",
        {"sample_id": REQUIRED, "input_ids": REQUIRED, "loss_mask": REQUIRED},
        attributes="length difficulty success replay_count with_replay model_dump __get_pydantic_core_schema__",
    ),
    built("000", "StreamSample.model_validate"),
    built("000", "StreamMetrics", attributes="samples mean_length mean_difficulty success_rate"),
    built("000", "SampleStream"),
    built("000", "AsyncSampleStream"),
    # 8. online learning
    built("000", "MockGymStream", {"tokenizer": REQUIRED, "num_episodes": ANY}, attributes="metrics"),
    built("000", "GymEpisodeStream", {"config": REQUIRED, "tokenizer": REQUIRED}),
    built("000", "GymConfig", {"host": "localhost", "port": 8023}, attributes="host port"),
    built("000", "ReplayBuffer", attributes="add sample update_priorities snapshot save"),
    built("000", "BufferEvictionPolicy", members="FIFO PRIORITY RANDOM"),
    built("000", "RollingBatchPlanWindow", {"buffer": REQUIRED}, attributes="build_next_window iter_current"),
    built("000", "WindowConfig"),
]

STRUCTURES = [
    built(
        "001",
        "BucketSampler",
        {"dataset": REQUIRED, "batch_size": ANY, "shuffle": True},
        attributes="buckets __iter__ __len__",
    ),
    built(
        "001",
        "collate_compressed_batch",
        {"batch": REQUIRED},
        keys="num_compression_stages compression_stages",
    ),
    built("001", "train.distill.CompressedAD"),
]

MODEL_CALLS = [
    built("002", "batch_encode_queries"),
    # The document's 8 threads are an upper limit here; without one, the capacity of the server is found out.
    built("002", "batch_mutate_queries", {"max_workers": None}),
    built("002", "batch_query_target_model", {"max_workers": None}),
    built("002", "QueryMutationEnv"),
    built("002", "BatchedQueryMutationEnv", attributes="batch_reset batch_step"),
]

KEYS_CONFIG_TASK = {"keys": REQUIRED, "config": REQUIRED, "task": REQUIRED}
ARC = [
    built("003", "JaxArcConfig", {"environment": ANY, "dataset": ANY, "action": ANY}),
    built("003", "EnvironmentConfig", {"max_episode_steps": ANY}),
    built("003", "UnifiedDatasetConfig", {"max_grid_height": ANY, "max_grid_width": ANY}),
    built("003", "UnifiedActionConfig", {"selection_format": ANY}),
    built("003", "JaxArcTask"),
    built(
        "003",
        "ArcEnvState",
        attributes="working_grid target_grid similarity_score step_count episode_done",
    ),
    built("003", "StructuredAction"),
    built("003", "PointAction", {"operation": REQUIRED, "row": REQUIRED, "col": REQUIRED}),
    built("003", "create_mock_task"),
    built("003", "batch_reset", {"keys": REQUIRED, "config": REQUIRED, "task_data": REQUIRED}),
    built("003", "batch_step", {"states": REQUIRED, "actions": REQUIRED, "config": REQUIRED}),
    built(
        "003",
        "run_batch_episode",
        {"initial_keys": REQUIRED, "config": REQUIRED, "task": REQUIRED, "max_steps": 50},
        keys="final_states episode_rewards episode_lengths completion_rate",
    ),
    built(
        "003",
        "find_optimal_batch_size",
        {"config": REQUIRED, "task": REQUIRED, "max_batch_size": 1024},
        keys="per_env_time throughput total_time",
    ),
    built(
        "003",
        "analyze_memory_usage",
        {"config": REQUIRED, "task": REQUIRED, "batch_sizes": [1, 16, 64, 256]},
        keys="total_mb per_env_mb state_mb obs_mb",
    ),
    built("003", "compiled_batch_reset", {"keys": REQUIRED, "config": REQUIRED, "task_data": REQUIRED}),
    built("003", "compiled_batch_step", {"states": REQUIRED, "actions": REQUIRED, "config": REQUIRED}),
    built("003", "warm_up_batch_functions", {"batch_size": REQUIRED, "config": REQUIRED, "task": REQUIRED}),
    built("003", "conditional_batch_processing", {"batch_states": REQUIRED, "config": REQUIRED}),
    built(
        "003",
        "process_dynamic_batch",
        {"states_list": REQUIRED, "actions_list": REQUIRED, "config": REQUIRED, "max_batch_size": 64},
    ),
    built("003", "stack_states", {"states_list": REQUIRED}),
    built("003", "stack_actions", {"actions_list": REQUIRED}),
    built("003", "combine_batch_results"),
    built("003", "pad_states"),
    built("003", "pad_actions"),
    built("003", "unpad_results"),
    built(
        "003",
        "hierarchical_batch_processing",
        {"num_episodes": 100, "envs_per_episode": 16, "steps_per_episode": 50, "config": None, "task": None},
        keys="episode rewards mean_reward std_reward",
    ),
    built(
        "003",
        "batch_policy_rollout",
        {"policy_fn": REQUIRED, "batch_states": REQUIRED, "config": REQUIRED, "num_steps": 10},
        keys="states actions rewards dones log_probs",
    ),
    built("003", "example_policy", {"states": REQUIRED}, keys="actions log_probs"),
    built("003", "example_value_fn", {"features": REQUIRED}),
    built("003", "compute_batch_values", {"value_fn": REQUIRED, "batch_states": REQUIRED}),
    built(
        "003",
        "extract_state_features",
        {"batch_states": REQUIRED},
        keys="working_grid target_grid similarity step_count",
    ),
    built("003", "inspect_batch_states", {"batch_states": REQUIRED, "indices": [0, 1, 2]}),
    built("003", "BatchPerformanceMonitor", attributes="reset_times step_times batch_sizes"),
    built("003", "BatchPerformanceMonitor.time_batch_reset", KEYS_CONFIG_TASK),
    built(
        "003",
        "BatchPerformanceMonitor.time_batch_step",
        {"states": REQUIRED, "actions": REQUIRED, "config": REQUIRED},
    ),
    built(
        "003",
        "BatchPerformanceMonitor.get_stats",
        keys="reset_time_mean reset_time_std step_time_mean step_time_std avg_batch_size total_operations",
    ),
]

GENERATION = [
    built(
        "004",
        "GenerationConfig",
        {
            "temperature": 1.0,
            "top_p": 1.0,
            "max_new_tokens": 200,
            "do_sample": True,
            "gen_batch_size": 32,
            "tf_batch_size": 64,
        },
    ),
    built("004", "BatchedSequences", attributes="sequences prompt_lens gen_lens attention_masks responses_text"),
    built("004", "LogprobResults", attributes="logprobs entropies sequence_logprobs"),
    built("004", "SequenceProcessor", {"model": REQUIRED, "tokenizer": REQUIRED, "config": None}),
    built(
        "004",
        "SequenceProcessor.generate_with_logprobs",
        {
            "prompts": None,
            "G": 8,
            "dataset_name": None,
            "split": "train",
            "num_prompts": None,
            "seed": None,
            "with_grad": False,
            "gen_batch_size": None,
            "tf_batch_size": None,
        },
    ),
    built("004", "SequenceProcessor.generate_batched", {"prompts": REQUIRED, "G": ANY}),
    built("004", "SequenceProcessor.teacher_force_logprobs", {"sequences": REQUIRED, "with_grad": False}),
    built("004", "SequenceProcessor.sample_prompts", {"seed": None}),
    built("004", "StopAfterAnswer"),
    built("004", "DATASET_REGISTRY", keys="gsm8k_r1_template"),
    built("004", "Example"),
]

NAMES = [*BATCHING, *STRUCTURES, *MODEL_CALLS, *ARC, *GENERATION]


SHORT_RUN = "--num-env-steps 512"


def query_mutator(options: str, shortened: str = "") -> Line:
    return Line("002", "built", f"python train_query_mutator.py {options}", shortened=shortened)


def lazarus(text: str, writes: str | None = None, shortened: str = "") -> Line:
    return Line("000", "built", f"lazarus {text}", writes, shortened)


PLAYING = (
    "--rounds 1 --episodes-per-round 4 --games lights --difficulty-max 0.3 --guided 1 --max-episode-steps 4"
    " --min-samples 4 --window-microbatches 1 --passes 1 --overflow truncate --token-budget 256"
)

LINES = [
    lazarus("data lengths build -d train.jsonl -t gpt2 -o lengths.jsonl", "lengths.jsonl"),
    lazarus("data lengths stats -c lengths.jsonl"),
    lazarus("data batchplan build -l lengths.jsonl -e 3 -b 4096 -o batch_plan/", "batch_plan/plan.json"),
    lazarus("data batchplan info -p batch_plan/"),
    lazarus("data batchplan verify -p batch_plan/ -l lengths.jsonl"),
    lazarus("data batchplan shard -p batch_plan/ -w 4 -o shards/", "shards/rank_3/plan.json"),
    lazarus("data batching histogram -c lengths.jsonl --bins 15"),
    lazarus("data batching histogram -c lengths.jsonl --bins 20"),
    lazarus("data batching analyze -c lengths.jsonl --bucket-edges 128,256,512"),
    lazarus("data batching suggest -c lengths.jsonl --num-buckets 4 --goal waste"),
    lazarus("data batch generate -p batch_plan/ -d train.jsonl -t gpt2 -o batches/", "batches/manifest.json"),
    lazarus("gym run -t gpt2 --mock --num-episodes 10"),
    lazarus("gym run -t gpt2 --host localhost --port 8023", shortened="--num-episodes 2 --games lights"),
    lazarus("gym run -t gpt2 --mock --output buffer.json", "buffer.json"),
    lazarus("gym info"),
    lazarus("train sft --model model --data train.jsonl --batchplan batch_plan/", "checkpoints/sft/model"),
    lazarus(
        "train sft --model model --data train.jsonl --bucket-edges 128,256,512 --token-budget 4096",
        "checkpoints/sft-2/model",
    ),
    lazarus("train sft --model model --data train.jsonl --pack --pack-max-len 2048", "checkpoints/sft-3/model"),
    lazarus(
        "train sft --model model --data train.jsonl --online --gym-host localhost --gym-port 8023",
        "checkpoints/sft-4/model",
        PLAYING,
    ),
    Line(
        "001",
        "built",
        "python train.py config/algorithm/ppo_base.yaml config/env/darkroom.yaml config/model/ad_compressed_dr.yaml",
    ),
    query_mutator("--num-processes 16", shortened=SHORT_RUN),
    query_mutator("--num-processes 16 --use-batching", shortened=SHORT_RUN),
    query_mutator("--num-processes 16 --no-batching", shortened=SHORT_RUN),
    query_mutator(
        "--num-processes 16 --num-steps 32 --ppo-epoch 4 --num-mini-batch 4 --use-batching", shortened=SHORT_RUN
    ),
    query_mutator("--num-processes 16 --num-env-steps 1000 --no-batching"),
    query_mutator("--num-processes 16 --num-env-steps 1000 --use-batching"),
]
"""Lines of one document are run in this order: later ones read what earlier ones wrote."""

FILES = [
    File("000", "built", "examples/batching/01_basic_batching.py"),
    File("000", "built", "examples/batching/02_sequence_packing.py"),
    File("000", "built", "examples/batching/03_batch_plan.py"),
    File("000", "built", "examples/batching/04_distributed.py"),
    File("000", "built", "examples/batching/05_e2e_pipeline.py"),
    File("000", "built", "examples/batching/06_analyze.py"),
    File("000", "built", "examples/batching/07_streaming.py"),
    File("000", "built", "examples/batching/08_online_learning.py"),
    File("001", "built", "examples/compressed_ad/train.py"),
    File("001", "built", "examples/compressed_ad/config/algorithm/ppo_base.yaml"),
    File("001", "built", "examples/compressed_ad/config/env/darkroom.yaml"),
    File("001", "built", "examples/compressed_ad/config/model/ad_compressed_dr.yaml"),
    File("002", "built", "examples/train_query_mutator.py"),
    File("003", "built", "examples/advanced/batch_processing_demo.py"),
]
"""`tests/test_examples.py` runs the scripts."""
