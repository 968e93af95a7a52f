"""The puzzle gym: a client for the server of chuk-puzzles-gym, and policies that play on it."""
