"""What every test wants."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the cache folder of whoever runs the tests."""
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
