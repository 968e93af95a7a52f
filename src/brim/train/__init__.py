"""Training that follows a plan. Everything here but the options needs torch."""
