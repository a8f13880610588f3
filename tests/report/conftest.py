"""Fixtures: a browser for tests marked `browser`, and drawing without matplotlib's cost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium on the PATH, or named by CHROMIUM, through playwright: headless, a new profile, no network services."""
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


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces every plot with an empty <svg>, for tests of texts."""

    def save_empty(figure: object, sink: Any, **_: object) -> None:
        sink.write('<svg viewBox="0 0 1 1"></svg>')

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save_empty)
