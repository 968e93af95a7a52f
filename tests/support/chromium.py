"""A Chromium that is already on the machine, driven by Playwright: nothing is downloaded, and nothing but files may be
asked for.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
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
