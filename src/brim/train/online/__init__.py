"""Training that plays."""
