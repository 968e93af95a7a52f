"""Environments that are stepped in many lanes at once, with their state in plain sight."""
