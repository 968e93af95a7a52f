"""Rows of text: the sources they are read from, their formats, and their tokens."""
