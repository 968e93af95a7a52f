"""Plans that commands read: one whose epochs are not stored is packed again, and says how far that is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brim.core.progress import Progress
    from brim.plan.plan import BatchPlan


def open_plan(path: str, searched: "Progress") -> "BatchPlan":
    """Open a plan directory. `searched` is called while patterns for the rows of a lazy plan are searched."""
    from brim.plan.plan import BatchPlan
    from brim.plan.store import StoredEpochs

    plan = BatchPlan.load(path)
    if plan.config.packing is None or not isinstance(plan.epochs, StoredEpochs) or not plan.epochs.lazy:
        return plan
    return BatchPlan.build(
        plan.table, plan.config, num_epochs=plan.num_epochs, algorithm=plan.epochs.algorithm, report=searched
    )
