"""Hypothesis draws the same examples every time, and never fails because a machine is slow. Tests share the cores, so torch takes one."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("brim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False)
settings.load_profile("brim")
