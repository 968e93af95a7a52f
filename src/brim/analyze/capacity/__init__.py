"""The largest token budget that fits in memory."""
