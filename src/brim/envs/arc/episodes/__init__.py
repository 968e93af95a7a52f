"""Recorded episodes: what an environment was told to do, and how it stood after every step."""
