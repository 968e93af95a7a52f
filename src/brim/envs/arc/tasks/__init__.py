"""Tasks: reading them, changing them, and the bank that environments read."""
