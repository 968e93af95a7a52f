"""Answers to all rows of a file: prompts from rows, a journal to resume from, and the files that are written."""
