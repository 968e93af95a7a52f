"""The floor that a trainer on another framework will stand on imports no torch."""

import subprocess
import sys

FLOOR = [
    "brim.train.callbacks",
    "brim.train.checkpoint",
    "brim.train.config",
    "brim.train.distill.config",
    "brim.train.given",
    "brim.train.log",
    "brim.train.measured_step",
    "brim.train.online.config",
    "brim.train.output",
    "brim.train.prepare",
    "brim.train.ranks",
    "brim.train.report",
    "brim.train.schedule",
    "brim.train.signals",
]
SCRIPT = """
import sys
from importlib import import_module
for name in ("torch", "transformers", "jax"):
    sys.modules[name] = None  # whoever imports it gets an ImportError
for name in sys.argv[1:]:
    import_module(name)
"""


def test_options_output_records_signals_ranks_and_the_checkpoint_container_import_no_torch():
    done = subprocess.run([sys.executable, "-c", SCRIPT, *FLOOR], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
