"""Batches as NPZ files."""
