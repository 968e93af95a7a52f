"""Figures of a plan that `brim plan build` and `brim plan info` show: for people, and as values for programs."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from brim.plan.plan import BatchPlan


class Figures(NamedTuple):
    shown: dict[str, Any]
    """Facts for people, by their names."""
    values: dict[str, Any]
    """The same for JSON: numbers, None where there are none."""

    def __or__(self, other: "Figures") -> "Figures":
        return Figures({**self.shown, **other.shown}, {**self.values, **other.values})


def packed_figures(plan: "BatchPlan", epoch: int) -> Figures:
    """Return the number of packed rows, and by how much it may be above the fewest possible; nothing if samples are
    not packed, or if it is not known.
    """
    packed = plan.epochs.packed(epoch)
    if packed is None:
        return Figures({}, {})
    gap = packed.rows / max(packed.bound, 1) - 1
    shown = {
        f"packed rows in epoch {epoch}": packed.rows,
        "lower bound of packed rows": packed.bound,
        "above their lower bound": f"{gap:.2%}",
    }
    return Figures(shown, {"packed_rows": packed.rows, "lower_bound": packed.bound, "gap": gap})


def balance_figures(plan: "BatchPlan", epoch: int) -> Figures:
    """Return the balance of the optimizer steps, if they have several microbatches."""
    if plan.step_size == 1 or plan.share.partial:
        return Figures({}, {})
    found = balance(plan, epoch)
    return Figures({} if found is None else {f"balance in epoch {epoch}": f"{found:.1%}"}, {"balance": found})


def balance(plan: "BatchPlan", epoch: int) -> float | None:
    """Return the mean cost of a microbatch divided by the mean cost of the most expensive one of each step.

    It is the share of their time in which ranks work, if each takes one microbatch of a step. Empty microbatches cost
    nothing. None if there is no step.
    """
    import numpy as np

    from brim.analyze.plan_report.view import imbalance

    view, deal = plan.get_epoch(epoch), plan.deal(epoch)
    if deal.steps == 0:
        return None
    order = np.arange(deal.length) % deal.total
    places = order if view.order is None else view.order[order]
    costs = np.zeros(deal.steps * deal.step_size, np.int64)
    costs[: deal.length] = view.parts.cost(plan.config.cost_model)[places]
    return 1 / (1 + imbalance(costs.reshape(deal.steps, deal.step_size)))


def dropped_figures(plan: "BatchPlan", epoch: int) -> Figures:
    """Return the number of sequences that `drop_last` and `remainder="drop"` leave out of an epoch.

    Of the share of a rank that was written by itself, the microbatches of a short last step are not known.
    """
    sequences, microbatches = len(plan.dropped_units(epoch)), plan.deal(epoch).dropped
    shown: str | int = sequences
    if microbatches and plan.share.partial:
        shown = f"{_count(microbatches, 'microbatch')} of a short step, over all ranks"
    elif microbatches:
        sequences += _sequences_behind(plan, epoch, plan.deal(epoch).length)
        shown = f"{sequences:,}, with {_count(microbatches, 'microbatch')} of a short step"
    return Figures(
        {f"dropped in epoch {epoch}": shown},
        {f"dropped in epoch {epoch}": sequences, "dropped_microbatches": microbatches},
    )


def _sequences_behind(plan: "BatchPlan", epoch: int, length: int) -> int:
    """Return the number of sequences in the microbatches that follow the first `length` of the global order."""
    import numpy as np

    view = plan.get_epoch(epoch)
    columns = view.columns
    places = np.arange(length, len(columns)) if view.order is None else view.order[length:]
    return len(columns.take(places).unit)


def last_step_figures(plan: "BatchPlan", epoch: int) -> Figures:
    """Return what becomes of a short last step: it stays short, or is filled up with microbatches that are repeated."""
    deal = plan.deal(epoch)
    short = deal.length % deal.step_size
    shown: dict[str, Any] = {}
    if short:
        shown[f"last step in epoch {epoch}"] = f"short: {short:,} of {deal.step_size:,} microbatches"
    if deal.repeated:
        shown[f"repeated in epoch {epoch}"] = _count(deal.repeated, "microbatch")
    last_step = {"microbatches": short, "of": deal.step_size} if short else None
    return Figures(shown, {"last_step": last_step, "repeated_microbatches": deal.repeated})


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 'es'}"
