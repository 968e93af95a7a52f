"""A browser for the tests of pages.

Without one they are skipped; where $BRIM_REQUIRE_BROWSER is set, they fail instead.
"""

import os
from pathlib import Path

import pytest
from support.chromium import Opened, find_chromium, running


@pytest.fixture(scope="module")
def browser():
    executable = find_chromium()
    if executable is None:
        reason = "no Chromium: set BRIM_CHROMIUM to one, or install chromium"
        pytest.fail(reason) if os.environ.get("BRIM_REQUIRE_BROWSER") else pytest.skip(reason)
    with running(executable) as browser:
        yield browser


@pytest.fixture
def opened(browser, tmp_path):
    """Opens reports, HTML or files, each in a page of its own; none of them may complain or ask for anything."""
    every = []

    def open_page(what, **context):
        path = what if isinstance(what, Path) else tmp_path / f"page-{len(every)}.html"
        if not isinstance(what, Path):
            path.write_text(what if isinstance(what, str) else what.html(), encoding="utf-8")
        every.append(Opened(browser, path, **context))
        return every[-1].page

    yield open_page
    for one in every:
        one.context.close()
    assert [complaint for one in every for complaint in one.complaints] == []
