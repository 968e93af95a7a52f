"""Which samples share a batch, and in which order: pure, deterministic, and blind to tokens."""
