"""Find a browser, and the options to start it without a window, for tests and scripts."""

from __future__ import annotations

import shutil

#: Commands of Chromium and Chrome, the first choice first.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> str | None:
    """Return the path of a browser on PATH, or None: Playwright then takes its own."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)
