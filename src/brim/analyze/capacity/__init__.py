"""Measurement of capacity: the largest size, such as a token budget, that fits in memory, and the speed of each."""
