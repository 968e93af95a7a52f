"""Rows of text: where they are read from, their formats, and their tokens."""
