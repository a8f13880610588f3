"""`paged_attention` over groups of rows that share pages, reference and Triton, against the dense fp64 oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.attention_cases import Case, build, check
from torch import Tensor

from specpipe_kernels.reference.layers.paged_attention import paged_attention as reference

ROWS = ((130, 1), (70, 1), (200, 1), (64, 1), (128, 1), (9, 1), (-1, 1))
GROUPS = ((1, (0, 3)), (2, (4, 2)))


def fed(tokens: int, rows: tuple[tuple[int, int], ...] = ROWS) -> tuple[tuple[int, int], ...]:
    """Returns the rows with so many query tokens each."""
    return tuple((start, tokens) for start, _ in rows)


CASES = {
    "two groups and rows in none": Case(rows=ROWS, groups=GROUPS),
    "all rows in one group": Case(rows=ROWS[:5], groups=((1, (3, 0, 4, 1, 2)),)),
    "drafts, one head of odd size": Case(rows=fed(3), groups=GROUPS, q_heads=7, kv_heads=1, head_dim=20),
    "a first step that feeds the last shared token": Case(rows=((63, 2), (127, 2), (90, 2)), groups=((1, (0, 2, 1)),)),
    "window within own pages": Case(rows=fed(2), groups=GROUPS, window=5),
    "window over shared pages": Case(rows=fed(4), groups=GROUPS, window=75),
    "softcap": Case(rows=fed(2), groups=GROUPS, softcap=2.0),
    "sinks": Case(rows=fed(2), groups=GROUPS, sinks=True),
    "all features, values of another size": Case(
        rows=fed(5), groups=GROUPS, q_heads=6, kv_heads=3, head_dim=24, value_dim=16, window=70, softcap=3.0, sinks=True
    ),
    "fp16": Case(rows=fed(2), groups=GROUPS, dtype=torch.float16),
    "pages of 16": Case(rows=fed(2), groups=((4, (0, 1, 3)), (7, (2, 4))), page_size=16),
    "a member that is not ready": Case(rows=((70, 2), (-1, 2), (-2, 2), (100, 2)), groups=((1, (2, 0, 3)),)),
}


@pytest.fixture(params=[reference], ids=["reference"])
def kernel(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = request.param
    return function


@pytest.mark.parametrize("name", CASES)
def test_groups_match_the_oracle_over_shuffled_pages_and_stale_nan(kernel: Callable[..., Tensor], name: str) -> None:
    inputs = build(CASES[name])
    check(inputs.call(kernel, CASES[name]), inputs, CASES[name])
