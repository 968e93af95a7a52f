"""`OptimizationGoal`: what the choice of bucket edges minimizes. Without NumPy, because commands list the goals."""

from enum import StrEnum


class OptimizationGoal(StrEnum):
    """The sum that the choice of bucket edges minimizes."""

    MINIMIZE_WASTE = "minimize_waste"
    """Sum of slots: every sample costs the width of its bucket."""
    BALANCE_BUCKETS = "balance_buckets"
    """Sum of squared bucket sizes: least when all buckets hold equally many samples."""
    MINIMIZE_MEMORY = "minimize_memory"
    """Sum of squared widths: every sample costs the attention matrix of its padded row."""
