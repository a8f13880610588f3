"""Cache of round costs: one file per hardware and pair; errors only cause warnings."""

import logging
from pathlib import Path

import pytest

from specpipe.core import CostPoint
from specpipe.pipeline.store.cost_cache import CostCache
from specpipe.speculation.estimates.cost_table import CostTable

PAIR = {"target": "a" * 40, "draft": "b" * 40}
TABLE = CostTable([CostPoint(proposer="none", k=0, running=4, context=100, rounds=50, seconds=1.0)])


def test_costs_are_loaded_for_same_hardware_and_pair_only(tmp_path: Path) -> None:
    CostCache(PAIR, tmp_path).save({"H200": TABLE, "L4": CostTable()})
    assert CostCache(PAIR, tmp_path).load("H200") == TABLE
    assert not CostCache(PAIR, tmp_path).load("L4")
    assert not CostCache({**PAIR, "draft": "c" * 40}, tmp_path).load("H200")
    assert len(list(tmp_path.rglob("*"))) == 2, "one folder, one file and nothing temporary"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99}', b"\xff"])
def test_invalid_file_is_ignored_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CostCache(PAIR, tmp_path)
    cache.save({"H200": TABLE})
    (cached,) = tmp_path.rglob("*.json")
    cached.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert not cache.load("H200")
    assert str(cached) in caplog.text
    cache.save({"H200": TABLE})
    assert cache.load("H200") == TABLE


def test_unwritable_folder_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        CostCache(PAIR, tmp_path / "file").save({"H200": TABLE})
    assert "round costs cannot be written" in caplog.text
