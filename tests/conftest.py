"""Hypothesis draws the same examples every time, and never fails because a machine is slow."""

from hypothesis import HealthCheck, settings

settings.register_profile("brim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False)
settings.load_profile("brim")
