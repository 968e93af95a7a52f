"""brim fills every batch to the brim.

Names are loaded when they are first used, so `import brim` costs nothing and pulls in no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.5.0"

_HOMES = {
    "brim.core.errors": ("BrimError", "DamagedError", "DataError", "LengthError", "MismatchError", "MissingExtraError", "OptionError"),
    "brim.core.fill": ("Fill",),
    "brim.data.sample": ("Sample",),
    "brim.data.lengths": ("LengthCache", "LengthEntry"),
    "brim.data.token_store": ("TokenStore",),
    "brim.data.nested.structure": ("Structure", "structure_of"),
    "brim.data.nested.lengths": ("measure_structures",),
    "brim.data.nested.source": ("NestedSource", "open_nested", "write_nested"),
    "brim.plan.buckets": ("BucketSpec", "BucketStats"),
    "brim.plan.packing": ("PackingConfig", "PackingMetrics", "PackingMode", "pack"),
    "brim.plan.config": ("BatchingConfig", "BatchingMode", "PadPolicy"),
    "brim.plan.epoch": ("EpochPlan", "MicrobatchSpec"),
    "brim.plan.plan": ("BatchPlan", "BatchPlanBuilder"),
    "brim.plan.position": ("CheckpointPosition",),
    "brim.plan.distributed": ("DistributedConfig", "interleave_microbatches", "shard_batch_plan"),
    "brim.plan.metrics": ("BatchMetrics", "BatchShapeHistogram"),
    "brim.plan.sampler": ("BatchSpec", "TokenBudgetBatchSampler"),
    "brim.plan.batch_fingerprint": ("BatchFingerprint", "compute_batch_fingerprint", "verify_batch_fingerprint"),
    "brim.batch.packed": ("PackedSequence", "compute_packing_metrics", "pack_sequences"),
    "brim.batch.masks": ("create_segment_attention_mask",),
    "brim.batch.batch": ("Batch", "CollatedBatch"),
    "brim.batch.collate": ("collate", "default_collate", "pad_sequences"),
    "brim.batch.nested": ("NestedBatch", "nested_collate"),
    "brim.batch.compressed": ("collate_compressed_batch",),
    "brim.batch.bucket_sampler": ("BucketSampler",),
    "brim.batch.files.writer": ("BatchWriter",),
    "brim.batch.files.reader": ("BatchReader",),
    "brim.plan.edges": ("OptimizationGoal",),
    "brim.analyze.histogram": ("HistogramBin", "LengthHistogram", "compute_length_histogram"),
    "brim.analyze.buckets": ("BucketAnalysis", "analyze_bucket_efficiency", "visualize_buckets"),
    "brim.analyze.suggest": ("BucketSuggestion", "suggest_bucket_edges"),
    "brim.analyze.strategies": ("Strategy", "compare_strategies"),
    "brim.analyze.capacity.search": ("Capacity", "find_capacity"),
    "brim.analyze.plan_report.report": ("PlanReport", "create_plan_report"),
    "brim.analyze.report": ("BatchingEfficiencyReport", "create_efficiency_report"),
    "brim.stream.sample": ("EpisodeStatus", "SampleSource", "StreamSample"),
    "brim.stream.metrics": ("StreamMetrics",),
    "brim.stream.protocols": ("AsyncSampleStream", "SampleStream", "StreamState"),
    "brim.stream.offline.stream": ("AsyncOfflineDatasetStream", "OfflineDatasetStream"),
    "brim.stream.mock_gym": ("MockGymStream",),
    "brim.stream.replay.config": ("BufferEvictionPolicy", "ReplayBufferConfig"),
    "brim.stream.replay.buffer": ("ReplayBuffer",),
    "brim.stream.curriculum": ("Curriculum", "CurriculumConfig"),
    "brim.stream.window": ("RollingBatchPlanWindow", "WindowConfig"),
    "brim.envs.puzzle.policies": ("HintPolicy", "RandomPolicy", "ScriptedPolicy"),
    "brim.envs.puzzle.together": ("Together",),
    "brim.envs.puzzle.wire.server": ("PuzzleServer",),
    "brim.stream.gym_config": ("GymConfig", "RewardConfig"),
    "brim.stream.gym_episode": ("GymEpisode", "GymStep"),
    "brim.stream.gym": ("GymEpisodeStream",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'brim' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from brim.analyze.buckets import BucketAnalysis, analyze_bucket_efficiency, visualize_buckets
    from brim.analyze.capacity.search import Capacity, find_capacity
    from brim.analyze.histogram import HistogramBin, LengthHistogram, compute_length_histogram
    from brim.analyze.plan_report.report import PlanReport, create_plan_report
    from brim.analyze.report import BatchingEfficiencyReport, create_efficiency_report
    from brim.analyze.strategies import Strategy, compare_strategies
    from brim.analyze.suggest import BucketSuggestion, suggest_bucket_edges
    from brim.batch.batch import Batch, CollatedBatch
    from brim.batch.bucket_sampler import BucketSampler
    from brim.batch.collate import collate, default_collate, pad_sequences
    from brim.batch.compressed import collate_compressed_batch
    from brim.batch.files.reader import BatchReader
    from brim.batch.files.writer import BatchWriter
    from brim.batch.masks import create_segment_attention_mask
    from brim.batch.nested import NestedBatch, nested_collate
    from brim.batch.packed import PackedSequence, compute_packing_metrics, pack_sequences
    from brim.core.errors import BrimError, DamagedError, DataError, LengthError, MismatchError, MissingExtraError, OptionError
    from brim.core.fill import Fill
    from brim.data.lengths import LengthCache, LengthEntry
    from brim.data.nested.lengths import measure_structures
    from brim.data.nested.source import NestedSource, open_nested, write_nested
    from brim.data.nested.structure import Structure, structure_of
    from brim.data.sample import Sample
    from brim.data.token_store import TokenStore
    from brim.envs.puzzle.policies import HintPolicy, RandomPolicy, ScriptedPolicy
    from brim.envs.puzzle.together import Together
    from brim.envs.puzzle.wire.server import PuzzleServer
    from brim.plan.batch_fingerprint import BatchFingerprint, compute_batch_fingerprint, verify_batch_fingerprint
    from brim.plan.buckets import BucketSpec, BucketStats
    from brim.plan.config import BatchingConfig, BatchingMode, PadPolicy
    from brim.plan.distributed import DistributedConfig, interleave_microbatches, shard_batch_plan
    from brim.plan.edges import OptimizationGoal
    from brim.plan.epoch import EpochPlan, MicrobatchSpec
    from brim.plan.metrics import BatchMetrics, BatchShapeHistogram
    from brim.plan.packing import PackingConfig, PackingMetrics, PackingMode, pack
    from brim.plan.plan import BatchPlan, BatchPlanBuilder
    from brim.plan.position import CheckpointPosition
    from brim.plan.sampler import BatchSpec, TokenBudgetBatchSampler
    from brim.stream.curriculum import Curriculum, CurriculumConfig
    from brim.stream.gym import GymEpisodeStream
    from brim.stream.gym_config import GymConfig, RewardConfig
    from brim.stream.gym_episode import GymEpisode, GymStep
    from brim.stream.metrics import StreamMetrics
    from brim.stream.mock_gym import MockGymStream
    from brim.stream.offline.stream import AsyncOfflineDatasetStream, OfflineDatasetStream
    from brim.stream.protocols import AsyncSampleStream, SampleStream, StreamState
    from brim.stream.replay.buffer import ReplayBuffer
    from brim.stream.replay.config import BufferEvictionPolicy, ReplayBufferConfig
    from brim.stream.sample import EpisodeStatus, SampleSource, StreamSample
    from brim.stream.window import RollingBatchPlanWindow, WindowConfig

__all__ = [
    "BrimError",
    "DamagedError",
    "DataError",
    "LengthError",
    "MismatchError",
    "MissingExtraError",
    "OptionError",
    "Fill",
    "Sample",
    "LengthCache",
    "LengthEntry",
    "TokenStore",
    "Structure",
    "structure_of",
    "measure_structures",
    "NestedSource",
    "open_nested",
    "write_nested",
    "BucketSpec",
    "BucketStats",
    "PackingConfig",
    "PackingMetrics",
    "PackingMode",
    "pack",
    "BatchingConfig",
    "BatchingMode",
    "PadPolicy",
    "EpochPlan",
    "MicrobatchSpec",
    "BatchPlan",
    "BatchPlanBuilder",
    "CheckpointPosition",
    "DistributedConfig",
    "interleave_microbatches",
    "shard_batch_plan",
    "BatchMetrics",
    "BatchShapeHistogram",
    "BatchSpec",
    "TokenBudgetBatchSampler",
    "BatchFingerprint",
    "compute_batch_fingerprint",
    "verify_batch_fingerprint",
    "PackedSequence",
    "compute_packing_metrics",
    "pack_sequences",
    "create_segment_attention_mask",
    "Batch",
    "CollatedBatch",
    "collate",
    "default_collate",
    "pad_sequences",
    "NestedBatch",
    "nested_collate",
    "collate_compressed_batch",
    "BucketSampler",
    "BatchWriter",
    "BatchReader",
    "OptimizationGoal",
    "HistogramBin",
    "LengthHistogram",
    "compute_length_histogram",
    "BucketAnalysis",
    "analyze_bucket_efficiency",
    "visualize_buckets",
    "BucketSuggestion",
    "suggest_bucket_edges",
    "Strategy",
    "compare_strategies",
    "BatchingEfficiencyReport",
    "create_efficiency_report",
    "PlanReport",
    "create_plan_report",
    "Capacity",
    "find_capacity",
    "EpisodeStatus",
    "SampleSource",
    "StreamSample",
    "StreamMetrics",
    "AsyncSampleStream",
    "SampleStream",
    "StreamState",
    "AsyncOfflineDatasetStream",
    "OfflineDatasetStream",
    "MockGymStream",
    "BufferEvictionPolicy",
    "ReplayBufferConfig",
    "ReplayBuffer",
    "Curriculum",
    "CurriculumConfig",
    "RollingBatchPlanWindow",
    "WindowConfig",
    "HintPolicy",
    "RandomPolicy",
    "ScriptedPolicy",
    "Together",
    "PuzzleServer",
    "GymConfig",
    "RewardConfig",
    "GymEpisode",
    "GymStep",
    "GymEpisodeStream",
]
