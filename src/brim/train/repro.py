"""Kept for the scripts that runs of version 0.5 left beside a failed step; the module is `brim.train.failed_step`."""

from brim.train.failed_step import load_repro as load_repro
