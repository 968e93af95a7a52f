"""Fingerprints of batches, to tell whether two runs saw the same batches in the same order."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from brim.core.fingerprint import fingerprint, new_hash
from brim.plan.config import BatchingConfig
from brim.plan.epoch import MicrobatchSpec
from brim.plan.sampler import BatchSpec


@dataclass(frozen=True, kw_only=True)
class BatchFingerprint:
    """Fingerprint of a sequence of batches. Two are equal if the batches, and the configs if given, are equal."""

    fingerprint: str
    num_batches: int
    total_samples: int
    total_tokens: int
    config_hash: str = ""

    def matches(self, other: "BatchFingerprint") -> bool:
        return self == other


def compute_batch_fingerprint(
    batches: Iterable[BatchSpec | MicrobatchSpec], config: BatchingConfig | None = None
) -> BatchFingerprint:
    """Compute the fingerprint of a sequence of batches.

    It covers the order of the batches, the order and boundaries inside them, widths, pieces and packs; and the config,
    if given.
    """
    hash = new_hash()
    num_batches = samples = tokens = 0
    for batch in batches:
        hash.update(fingerprint(**_parts(batch)).encode())
        num_batches += 1
        samples += len(batch.samples if isinstance(batch, MicrobatchSpec) else batch.sample_ids)
        tokens += batch.token_count
    return BatchFingerprint(
        fingerprint=hash.hexdigest(),
        num_batches=num_batches,
        total_samples=samples,
        total_tokens=tokens,
        config_hash=config.fingerprint if config is not None else "",
    )


def _parts(batch: BatchSpec | MicrobatchSpec) -> dict[str, Any]:
    if isinstance(batch, BatchSpec):
        return {
            "ids": batch.sample_ids,
            "bucket": batch.bucket_id,
            "width": batch.max_length,
            "tokens": batch.token_count,
        }
    return {
        "ids": batch.samples,
        "starts": batch.starts,
        "lengths": batch.lengths,
        "rows": batch.row_ptr,
        "bucket": batch.bucket_id,
        "width": batch.max_len,
        "group": batch.group,
    }


def verify_batch_fingerprint(
    batches: Iterable[BatchSpec | MicrobatchSpec],
    expected: BatchFingerprint | str,
    config: BatchingConfig | None = None,
) -> tuple[bool, str]:
    """Return whether the batches are the expected ones, and a message that says how they differ.

    With a `BatchFingerprint`, configs are compared too if either side has one.
    """
    actual = compute_batch_fingerprint(batches, config)
    if isinstance(expected, str):
        same = actual.fingerprint == expected
        return (
            same,
            "the batches are the same"
            if same
            else f"other batches: {actual.fingerprint} instead of {expected or 'nothing'}",
        )
    for name in ("num_batches", "total_samples", "total_tokens", "config_hash", "fingerprint"):
        ours, theirs = getattr(actual, name), getattr(expected, name)
        if ours != theirs:
            return False, f"{name.replace('_', ' ')} differs: {ours or 'none'} instead of {theirs or 'none'}"
    return True, "the batches are the same"
