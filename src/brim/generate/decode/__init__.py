"""The loop that generates: rows of a cache that leave when their response ends and make room for others."""
