"""The tiers of the tests, and the doctests.

Every test gets its marks from its source (see `tests/support/tiers.py`). With `--quick` those with a mark are left out,
properties are tried on fewer examples, and torch and JAX are hidden from all processes, as if they were not installed.

Hypothesis draws the same examples every time, and never fails because a machine is slow.
"""

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from support import tiers

HIDING = Path(__file__).parent / "tests" / "support" / "as_if_missing"
QUICK_EXAMPLES = 10

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests share the cores, so torch takes one
# In a background job of a shell Ctrl-C is ignored, and the processes that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "brim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("brim")


def pytest_addoption(parser):
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out tests that need torch, JAX, a server, a browser or processes, and slow ones",
    )


def pytest_configure(config):
    for mark, meaning in tiers.MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    if config.option.quick:
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(HIDING) not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HIDING), *paths]))
        exec((HIDING / "sitecustomize.py").read_text(), {"__name__": "as_if_missing"})


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without the garbage collector, which would look at millions of objects that stay, again and again;
    and never look at them later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path, config):
    """Leave out modules of brim without examples and, in the quick tier, files that import torch."""
    if collection_path.suffix != ".py":
        return None
    if not collection_path.name.startswith("test_") and (
        "tests" in collection_path.parts or not _has_examples(collection_path)
    ):
        return True
    return True if config.option.quick and tiers.marks_of_import(collection_path) else None


def _has_examples(path):
    return path.name != "conftest.py" and ">>>" in path.read_text()


def pytest_collection_modifyitems(config, items):
    for item in items:
        for mark in sorted(_marks(item)):
            item.add_marker(mark)
    if config.option.quick:
        marked = [item for item in items if any(item.get_closest_marker(mark) for mark in tiers.NOT_QUICK)]
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in set(marked)]
        for item in items:
            _draw_fewer_examples(item)


def _marks(item):
    marks = set(tiers.marks_of_import(item.path))
    if isinstance(item, pytest.Function):
        marks |= tiers.marks_of_name(item.path, item.originalname)
        for name in item.fixturenames:
            for fixture in item._fixtureinfo.name2fixturedefs.get(name, ()):
                file = Path(fixture.func.__code__.co_filename)
                if file.is_relative_to(tiers.ROOT / "tests"):
                    marks |= tiers.marks_of_name(file, fixture.func.__name__)
    return marks


def _draw_fewer_examples(item):
    """Also where a test asks for more than the profile. Hypothesis offers no other way to change a decorated test."""
    test = getattr(item, "obj", None)
    if is_hypothesis_test(test):
        asked = getattr(test, "_hypothesis_internal_use_settings", settings())
        test._hypothesis_internal_use_settings = settings(asked, max_examples=min(asked.max_examples, QUICK_EXAMPLES))


@pytest.fixture(autouse=True)
def _doctests_print_arrays_in_one_way(request):
    """Whatever the environment or an earlier test has set."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with np.printoptions(
        precision=8, threshold=1000, edgeitems=3, linewidth=75, suppress=False, sign="-", floatmode="maxprec"
    ):
        yield
