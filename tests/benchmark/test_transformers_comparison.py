"""The comparison with transformers; tests/cli/test_bench_engine.py runs it."""

from __future__ import annotations

import pytest

from specpipe.benchmark.transformers_comparison import check_same_tokens
from specpipe.errors import MachineError


def test_different_tokens_end_the_comparison() -> None:
    with pytest.raises(MachineError, match="assisted: 1 of 2 rows differ from specpipe's first run, row 1 first"):
        check_same_tokens("assisted", [[1], [2]], [[1], [3]])
