"""Pack sequences into rows of fixed capacity: `brim.plan.packing.pack`."""
