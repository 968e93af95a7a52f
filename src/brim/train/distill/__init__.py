"""Compressed algorithm distillation."""
