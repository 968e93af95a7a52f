"""Nested samples: their structure, and the files they are read from and written to."""
