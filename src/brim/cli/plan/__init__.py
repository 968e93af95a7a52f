"""The commands of `brim plan`."""
