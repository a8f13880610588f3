"""`specpipe bench engine --against-transformers`: three ways to the same tokens, and a refusal where they differ."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from specpipe.benchmark.transformers_comparison import _check_same
from specpipe.cli.main import main
from specpipe.errors import MachineError


def test_all_ways_are_timed_on_the_same_tokens() -> None:
    options = "--against-transformers --batch 3 --new-tokens 9 --k 2 --json"
    result = CliRunner().invoke(main, ["bench", "engine", *options.split()], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    ours, *others = found["ways"]
    assert [way["name"].split(",")[0] for way in found["ways"]] == ["specpipe", "transformers", "transformers"]
    assert all(way["tokens_per_s"] == pytest.approx(27 / way["seconds"]) for way in found["ways"])
    assert found["ratio"] == pytest.approx(ours["tokens_per_s"] / max(way["tokens_per_s"] for way in others))


def test_other_tokens_are_no_comparison() -> None:
    with pytest.raises(MachineError, match="assisted: 1 of 2 rows differ from specpipe's first run, row 1 first"):
        _check_same("assisted", [[1], [2]], [[1], [3]])
