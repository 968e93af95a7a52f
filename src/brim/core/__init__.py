"""Errors, options, randomness, fingerprints, files. Every other folder may import this one; it imports none."""
