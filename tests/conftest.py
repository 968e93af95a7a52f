"""Fixtures for all tests: a browser for those of pages."""

from support.chromium import browser as browser
from support.chromium import opened as opened
