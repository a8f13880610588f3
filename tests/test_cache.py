"""Location of the cache folder."""

from pathlib import Path

import pytest

from specpipe.cache import cache_folder


def test_cache_folder_follows_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPECPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "specpipe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/specpipe")
