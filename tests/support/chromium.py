"""A Chromium that is already on the machine, driven by Playwright: nothing is downloaded, and nothing but files may be
asked for.

Without one, tests of pages are skipped; where $BRIM_REQUIRE_BROWSER is set, they fail instead. `browser` and `opened`
are fixtures, which tests/conftest.py offers to all tests.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one has the same engine without the window, and takes a third of the time."""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium():
    """The executable: $BRIM_CHROMIUM, or what is on the path under a usual name; None if there is none."""
    named = os.environ.get("BRIM_CHROMIUM")
    return shutil.which(named) if named else next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def running(executable):
    """A browser that ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page in a context of its own, and everything it should not have done."""

    def __init__(self, browser, path: Path, *, query="", **context):
        self.complaints = []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._on_request)
        self.page.goto(path.resolve().as_uri() + query)

    def _on_console(self, message):
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def _on_request(self, request):
        if not request.url.startswith(("file:", "data:")):
            self.complaints.append(f"request: {request.url}")


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
