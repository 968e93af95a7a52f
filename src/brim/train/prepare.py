"""From options to a plan and its tokens: measure, tokenise, plan, hold out, refuse what does not fit together.

No torch here: what can be refused is refused before a model is loaded. Where several ranks run, one prepares and the
others open what it wrote; a second run of the same output finds everything there.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from brim.batch.token_source import check_belongs, check_identity
from brim.core.errors import DataError, OptionError
from brim.core.fingerprint import fingerprint
from brim.core.rng import permutation
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.measure import open_as_measured
from brim.data.rows.encode import identity
from brim.data.rows.format import Layout, RowFormat
from brim.data.rows.open import layout_of, open_source
from brim.data.rows.source import Source
from brim.data.token_store import TokenStore
from brim.data.tokenize import measure_and_tokenize
from brim.data.tokenizer.base import Tokenizer
from brim.plan.config import BatchingConfig, PadPolicy
from brim.plan.plan import BatchPlan
from brim.train.config import SftConfig

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Given what is being done, a bar that is told how much of how much is."""

Part = tuple[LengthCache, TokenStore]


def no_bar(_: str) -> AbstractContextManager[Callable[[int, int], None]]:
    return nullcontext(_ignored)


def _ignored(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Prepared:
    """A plan, and the tokens its rows are in; the same for evaluation, if there is one.

    Both pairs were checked to belong together, so loaders of them need not check again.
    """

    plan: BatchPlan
    store: TokenStore
    eval_plan: BatchPlan | None = None
    eval_store: TokenStore | None = None


def prepare(
    config: SftConfig,
    tokenizer: Tokenizer,
    plan: BatchPlan | None = None,
    bar: Bar = no_bar,
    *,
    resumed: str | None = None,
    on_read: Callable[[], object] = lambda: None,
) -> Prepared:
    """Tokenise the data of a run, and plan it unless `plan` is given, which is then the one at `config.batchplan`.

    The data is opened once, read once and tokenised once; what an earlier run of the same output left is used again.
    `resumed` is the fingerprint of the plan of a run that is resumed, which an earlier version of the planner may have
    made. `on_read` is called when the data is open and other processes are about to tokenise it: this one has time now.

    Raises:
        MismatchError: The plan does not belong to the data or the tokenizer.
        LengthError: A sample does not fit the budget.
    """
    folder = Path(config.output) / "data"
    if plan is not None and plan.world_size > 1:
        raise OptionError(
            f"{config.batchplan} is the share of rank {plan.rank}; give the whole plan, ranks take their shares by "
            "themselves"
        )
    table, store = _tokens(config.data, tokenizer, config.format, plan, folder / "train", bar, on_read)
    eval_table, eval_store = None, None
    if config.eval_data is not None:
        eval_table, eval_store = _tokens(config.eval_data, tokenizer, config.format, plan, folder / "eval", bar)
    elif config.eval_split:
        (table, store), (eval_table, eval_store) = _hold_out(table, store, config.eval_split, config.seed)
    if plan is None:
        plan = _planned(table, config, bar)
        plan = plan if resumed is None else plan.planned_as(resumed)
    elif config.epochs is not None and config.epochs > plan.num_epochs:
        raise OptionError(
            f"{config.epochs} epochs were asked for, {config.batchplan} has {plan.num_epochs}; plan more, or ask for "
            "fewer"
        )
    check_belongs(plan, store)
    check_something_to_learn(store)
    eval_plan = None
    if eval_table is not None and eval_store is not None:
        eval_plan = BatchPlan.build(
            eval_table, _for_evaluation(plan.config), num_epochs=1, algorithm=plan.epochs.algorithm
        )
        check_belongs(eval_plan, eval_store)
    return Prepared(plan, store, eval_plan, eval_store)


def check_something_to_learn(store: TokenStore) -> None:
    """
    Raises:
        DataError: No sample has a token to be learned behind its first one.
    """
    firsts = int(np.count_nonzero(store.learned[store.starts[store.lengths > 0]]))
    if int(np.count_nonzero(store.learned)) <= firsts:
        raise DataError(
            "there is nothing to learn in this data: every loss mask is 0, or every sample is one token long"
        )


def left_out(plan: BatchPlan) -> dict[str, int]:
    """Count what the options of the plan skip, truncate, split, drop or repeat. Empty if all data is trained on."""
    counts, deal = plan.counts, plan.deal(0)
    found = {
        "samples skipped": counts.skipped,
        "samples truncated": counts.truncated,
        "tokens truncated": counts.truncated_tokens,
        "samples split": counts.split,
        "samples dropped in the first epoch": len(plan.dropped(0)),
        "microbatches dropped in the first epoch": deal.dropped,
        "microbatches repeated in the first epoch": deal.repeated,
    }
    return {name: many for name, many in found.items() if many}


def _planned(table: LengthCache, config: SftConfig, bar: Bar) -> BatchPlan:
    """Plan the data. If rows are packed, that is done here and shown, because a search for patterns takes seconds."""
    batching, epochs = _batching(config), config.epochs or 1
    if batching.packing is None:
        return BatchPlan.build(table, batching, num_epochs=epochs)
    with bar("packing") as progress:
        plan = BatchPlan.build(
            table, batching, num_epochs=epochs, report=lambda rows, bound: progress(min(bound, rows), rows)
        )
        plan.num_microbatches(0)
    return plan


def _batching(config: SftConfig) -> BatchingConfig:
    batching = replace(config.batching, seed=config.seed)
    if config.tokens_per_step is None:
        return batching
    return replace(batching, microbatches_per_step=step_size(config.tokens_per_step, batching.token_budget))


def step_size(tokens_per_step: int, token_budget: int) -> int:
    """Return the number of microbatches that hold about `tokens_per_step` tokens."""
    return max(1, round(tokens_per_step / token_budget))


def _for_evaluation(batching: BatchingConfig) -> BatchingConfig:
    """All samples, padded to the longest: evaluation needs neither fixed shapes nor steps."""
    shapes: dict[str, Any] = {"bucket_edges": None, "num_buckets": None, "pad_policy": PadPolicy.PAD_TO_MAX}
    return replace(batching, drop_last=False, remainder="null", microbatches_per_step=None, **shapes)


def _opened(data: str, format: RowFormat, like: BatchPlan | None) -> tuple[Source, Layout]:
    """A data set and what its rows look like; with a plan, read as the plan's data was."""
    source, layout = open_as_measured(data, like.table) if like is not None else (open_source(data), None)
    return source, layout if layout is not None and format == RowFormat() else layout_of(source, format)


def _tokens(
    data: str,
    tokenizer: Tokenizer,
    format: RowFormat,
    like: BatchPlan | None,
    target: Path,
    bar: Bar,
    on_read: Callable[[], object] = lambda: None,
) -> Part:
    source, layout = _opened(data, format, like)
    if like is not None and like.table.dataset_hash:
        check_identity(like, identity(tokenizer, layout))  # before anything is tokenised for nothing
    target.parent.mkdir(parents=True, exist_ok=True)
    lengths, tokens = target.with_suffix(".lengths"), target.with_suffix(".tokens")
    on_read()
    with bar(f"tokenizing {source.path.name}") as progress:
        return measure_and_tokenize(source, lengths, tokens, tokenizer, layout, progress=progress)


def _hold_out(table: LengthCache, store: TokenStore, share: float, seed: int) -> tuple[Part, Part]:
    """Split at random, by the seed alone. Both parts keep the order of the data."""
    order = permutation(len(table), seed=seed, purpose="eval-split", epoch=0)
    held = max(1, round(len(table) * share))
    if held >= len(table):
        raise OptionError(f"holding out {share:.0%} of {len(table)} samples leaves none to train on")
    return _part(table, store, np.sort(order[held:]), "train"), _part(table, store, np.sort(order[:held]), "eval")


def _part(table: LengthCache, store: TokenStore, rows: Any, name: str) -> Part:
    dataset = fingerprint(dataset=table.dataset_hash, part=name, rows=rows)
    part = LengthCache(
        Ids.of(table.ids.take(rows)),
        table.lengths[rows],
        groups=None if table.groups is None else table.groups[rows],
        group_names=table.group_names,
        dataset_hash=dataset,
        tokenizer_hash=table.tokenizer_hash,
        source=table.source,
    )
    return part, store.take(rows, dataset_hash=dataset)
