"""From planned samples to arrays."""
