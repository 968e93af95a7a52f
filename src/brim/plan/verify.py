"""Compare a plan with lengths and options, and list all differences, one line each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.progress import Progress, silent
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.plan.config import BatchingConfig
from brim.plan.epochs import BuiltEpochs, plan_fingerprint
from brim.plan.plan import BatchPlan
from brim.plan.store import StoredEpochs

NAMED = 5
"""Number of samples that the message of a difference names; it only counts the others."""


@dataclass(frozen=True)
class Difference:
    kind: str
    """One of: added, removed, longer, shorter, group, order, tokenizer, data, config, damaged, epoch"""
    message: str
    samples: tuple[str, ...] = ()


def verify_plan(
    plan: BatchPlan,
    lengths: LengthCache | None = None,
    config: BatchingConfig | None = None,
    *,
    report: Progress = silent,
) -> list[Difference]:
    """Return the differences between `plan` and the plan for these lengths and options; an empty list if they are equal
    in every number.

    Files are checked against their checksums. If nothing differs so far, epochs that are stored are planned again and
    compared. A search for patterns of packed rows calls `report` with its progress.
    """
    found: list[Difference] = []
    if isinstance(plan.epochs, StoredEpochs):
        found += [Difference("damaged", message) for message in plan.epochs.damage()]
    if any(difference.kind == "damaged" for difference in found):
        return found
    if lengths is not None:
        found += compare_lengths(plan.table, lengths)
    if config is not None:
        found += compare_configs(plan.config, config)
    if not found and isinstance(plan.epochs, StoredEpochs) and not plan.epochs.has_units(plan.units):
        found.append(Difference("damaged", "the plan's units are not what these lengths and options give"))
    is_lazy = isinstance(plan.epochs, StoredEpochs) and plan.epochs.lazy
    found = found or _compare_fingerprint(plan)
    return found if is_lazy else found or _compare_epochs(plan, report)


def compare_lengths(old: LengthCache, new: LengthCache) -> list[Difference]:
    """Return how `new` differs from `old`: samples added and removed, lengths, groups, order, tokenizer, data."""
    if old.fingerprint == new.fingerprint:
        return []
    found: list[Difference] = []
    old_rows, new_rows, removed, added = _matched(old.ids, new.ids)
    _note(found, "added", new.ids, added)
    _note(found, "removed", old.ids, removed)
    grown = new.lengths[new_rows].astype(np.int64) - old.lengths[old_rows]
    _note(found, "longer", new.ids, new_rows[grown > 0])
    _note(found, "shorter", new.ids, new_rows[grown < 0])
    regrouped = (
        np.array([old.entry(a).group != new.entry(b).group for a, b in zip(old_rows, new_rows, strict=True)], np.bool_)
        if (old.groups is not None or new.groups is not None)
        else np.zeros(len(old_rows), np.bool_)
    )
    _note(found, "group", new.ids, new_rows[regrouped], "in another group")
    if np.any(np.diff(new_rows) < 0):
        found.append(Difference("order", "the samples are in another order"))
    if old.tokenizer_hash != new.tokenizer_hash:
        found.append(
            Difference(
                "tokenizer",
                f"other tokenizer ({old.tokenizer_hash[:6] or 'none'}.. -> {new.tokenizer_hash[:6] or 'none'}..)",
            )
        )
    if old.dataset_hash != new.dataset_hash:
        found.append(
            Difference("data", f"other data ({old.dataset_hash[:6] or 'none'}.. -> {new.dataset_hash[:6] or 'none'}..)")
        )
    return found


def _matched(old: Ids, new: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of `old` and of `new` with equal ids, in the order of `old`; and the rows of each whose ids the
    other does not have.
    """
    if not old.columns and not new.columns:
        both = min(len(old), len(new))
        return np.arange(both), np.arange(both), np.arange(both, len(old)), np.arange(both, len(new))
    row_in_new = {id: row for row, id in enumerate(new)}
    at = np.array([row_in_new.get(id, -1) for id in old], np.int64)
    kept = np.flatnonzero(at >= 0)
    is_new = np.ones(len(new), np.bool_)
    is_new[at[kept]] = False
    return kept, at[kept], np.flatnonzero(at < 0), np.flatnonzero(is_new)


def _note(found: list[Difference], kind: str, ids: Ids, rows: NDArray[np.int64], words: str | None = None) -> None:
    if len(rows) == 0:
        return
    names = tuple(str(id) for id in ids.take(rows))
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    found.append(Difference(kind, f"{len(rows)} {words or kind}: {shown}", names))


def compare_configs(old: BatchingConfig, new: BatchingConfig) -> list[Difference]:
    """Return which options differ; those of packing and of the cost model one by one, if both plans have them."""
    old_values, new_values = old.to_dict(), new.to_dict()
    for name in ("packing", "cost"):
        before, after = old_values[name], new_values[name]
        if before is not None and after is not None:
            old_values |= {f"{name}.{option}": value for option, value in before.items()}
            new_values |= {f"{name}.{option}": value for option, value in after.items()}
            del old_values[name], new_values[name]
    return [
        Difference("config", f"other {name} ({old_values[name]} -> {new_values[name]})")
        for name in old_values
        if old_values[name] != new_values[name]
    ]


def _compare_epochs(plan: BatchPlan, report: Progress) -> list[Difference]:
    """Plan the epochs again and compare their fingerprints, which cover every number.

    A partial share is compared with the same share of a plan that is built again.
    """
    algorithm = plan.epochs.algorithm
    built = BuiltEpochs(plan.table, plan.config, plan.num_epochs, algorithm=algorithm, report=report)
    again = BatchPlan(built, plan.config, plan.num_epochs)
    if plan.share.partial:
        again = again.shard(plan.rank, plan.world_size)
        expected = [again.get_epoch(epoch) for epoch in range(plan.num_epochs)]
        fingerprints = [view.columns.take(view.places).fingerprint for view in expected]
    else:
        fingerprints = [again.columns(epoch).fingerprint for epoch in range(plan.num_epochs)]
    found = [
        Difference("epoch", f"epoch {epoch} is not what these lengths and options give")
        for epoch, expected_fingerprint in enumerate(fingerprints)
        if plan.columns(epoch).fingerprint != expected_fingerprint
    ]
    return found


def _compare_fingerprint(plan: BatchPlan) -> list[Difference]:
    if plan_fingerprint(plan.table, plan.config, plan.num_epochs, algorithm=plan.epochs.algorithm) == plan.fingerprint:
        return []
    return [Difference("damaged", "the plan's fingerprint is not that of its lengths and options")]
