"""Streams of samples from files."""
