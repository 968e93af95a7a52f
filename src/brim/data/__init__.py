"""Samples, where they come from, and how long they are."""
