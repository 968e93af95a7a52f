"""The commands of `brim train`."""
