"""A real browser, for tests marked `browser`: Chromium on the PATH, or the one that CHROMIUM names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """playwright's Browser: headless, with a profile of its own, and nothing that calls home."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "no chromium on the PATH; expected one, or its path in CHROMIUM"
    switches = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=[*switches, "--disable-component-update", "--disable-sync"]
        )
        yield browser
        browser.close()
