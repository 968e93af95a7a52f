"""How near packed rows are to the fewest possible, as `brim plan build` and `brim plan info` show it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.plan.plan import BatchPlan


def packed_facts(plan: "BatchPlan", epoch: int) -> dict[str, Any]:
    """Return the number of packed rows, and by how much it may be above the fewest possible; nothing if samples are
    not packed, or if it is not known.
    """
    packed = plan.epochs.packed(epoch)
    if packed is None:
        return {}
    more = packed.rows / max(packed.bound, 1) - 1
    return {f"packed rows in epoch {epoch}": packed.rows, "above their lower bound": f"{more:.2%}"}
