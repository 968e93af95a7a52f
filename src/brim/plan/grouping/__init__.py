"""Cut rows into microbatches under a token budget: `brim.plan.grouping.group`."""
