"""Cache of round costs: one file per hardware and pair; errors only cause warnings."""

import logging
from pathlib import Path

import pytest

from specpipe.core import CostPoint
from specpipe.pipeline.store.cost_cache import MIN_ROUNDS, CostCache
from specpipe.speculation.estimates.round_costs import RoundCosts

PAIR = {"target": "a" * 40, "draft": "b" * 40}
COSTS = RoundCosts().with_points(
    [CostPoint(proposer="none", k=0, running=4, context=100, rounds=MIN_ROUNDS, seconds=1.0)]
)


def test_costs_are_loaded_for_same_hardware_and_pair_only(tmp_path: Path) -> None:
    CostCache(PAIR, tmp_path).save({"H200": COSTS, "L4": RoundCosts()})
    assert CostCache(PAIR, tmp_path).load("H200").to_json() == {**COSTS.to_json(), "rounds": 1.0}
    assert not CostCache(PAIR, tmp_path).load("L4")
    assert not CostCache({**PAIR, "draft": "c" * 40}, tmp_path).load("H200")
    assert len(list(tmp_path.rglob("*"))) == 2, "one folder, one file and nothing temporary"


def test_short_run_leaves_the_file_of_a_longer_one(tmp_path: Path) -> None:
    few = RoundCosts().with_points(
        [CostPoint(proposer="draft", k=2, running=1, context=15, rounds=MIN_ROUNDS - 1, seconds=90.0)]
    )
    cache = CostCache(PAIR, tmp_path)
    cache.save({"H200": few})
    assert not cache.load("H200")
    cache.save({"H200": COSTS})
    cache.save({"H200": few})
    assert cache.load("H200").to_json() == {**COSTS.to_json(), "rounds": 1.0}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2, "cells": []}', b'{"version": 99}', b"\xff"])
def test_invalid_file_is_ignored_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CostCache(PAIR, tmp_path)
    cache.save({"H200": COSTS})
    (cached,) = tmp_path.rglob("*.json")
    cached.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert not cache.load("H200")
    assert str(cached) in caplog.text
    cache.save({"H200": COSTS})
    assert cache.load("H200").to_json() == {**COSTS.to_json(), "rounds": 1.0}


def test_unwritable_folder_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        CostCache(PAIR, tmp_path / "file").save({"H200": COSTS})
    assert "round costs cannot be written" in caplog.text
