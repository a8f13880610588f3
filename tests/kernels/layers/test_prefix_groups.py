"""`paged_attention` over groups of rows that share pages, reference and Triton, against the dense fp64 oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.attention_cases import Case, build, check
from support.engines import slow
from torch import Tensor

from specpipe_kernels import PrefixArgs, paged_attention
from specpipe_kernels.layers import prefix_attention
from specpipe_kernels.layers.paged_attention import paged_attention as triton_kernel
from specpipe_kernels.layers.prefix_attention import PrefixTiling
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
    "8 bits, window over shared pages": Case(rows=fed(4), groups=GROUPS, window=75, fp8=True),
    "8 bits, all features": Case(
        rows=fed(2), groups=GROUPS, q_heads=6, kv_heads=3, head_dim=24, value_dim=16, softcap=3.0, sinks=True, fp8=True
    ),
    "a member that is not ready": Case(rows=((70, 2), (-1, 2), (-2, 2), (100, 2)), groups=((1, (2, 0, 3)),)),
}


SLOW_CASES = ("all rows in one group", "window within own pages", "softcap", "sinks", "fp16")
PREFILLS = {
    "all rows in one group, in order": Case(rows=((64, 4), (130, 4), (70, 4)), groups=((1, (0, 1, 2)),), sinks=True),
    "chunks of one tile and of several": Case(
        rows=((130, 70), (64, 100), (128, 3), (40, 30), (64, 129)), groups=((2, (0, 2)), (1, (1, 4)))
    ),
    "window, sinks": Case(
        rows=((66, 65), (0, 64), (64, 1), (70, 0)), groups=((1, (2, 0)),), window=40, sinks=True, spare_tokens=2
    ),
    "softcap, values of another size": Case(
        rows=((64, 65), (64, 130)), groups=((1, (0, 1)),), softcap=2.0, value_dim=16
    ),
}


@pytest.mark.parametrize("name", [slow(name) if name in SLOW_CASES else name for name in CASES])
def test_groups_match_the_oracle_over_shuffled_pages_and_stale_nan(kernel: Callable[..., Tensor], name: str) -> None:
    inputs = build(CASES[name])
    check(inputs.call(kernel, CASES[name]), inputs, CASES[name])


@pytest.mark.parametrize("name", PREFILLS)
def test_chunks_of_any_length_share_pages_on_a_cpu(name: str) -> None:
    inputs = build(PREFILLS[name])
    check(inputs.call(reference, PREFILLS[name]), inputs, PREFILLS[name])


@pytest.mark.parametrize(
    ("block_m", "block_n", "splits", "min_pages", "programs"),
    [slow(16, 64, 16, 1, 3), (16, 16, 2, 1, 7), slow(32, 32, 1, 9, 1), slow(16, 32, 5, 2, 64)],
)
@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 100])
def test_any_tiling_of_shared_pages_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
    block_m: int,
    block_n: int,
    splits: int,
    min_pages: int,
    programs: int,
    window: int | None,
) -> None:
    """Groups of several tiles, splits with less work than others, more programs than work and fewer."""
    rows = tuple((start, 3) for start in (330, 320, 210, 192, 64, 200, 128, 7))
    groups = ((5, (1, 0)), (3, (2, 5, 3)), (1, (4, 6)))
    case = Case(rows=rows, groups=groups, q_heads=6, kv_heads=2, window=window, sinks=True)
    tiles = PrefixTiling(block_m, block_n, splits, min_pages, programs, warps=4, stages=2)
    monkeypatch.setattr(prefix_attention, "prefix_tiling", lambda *args: tiles)
    inputs = build(case)
    check(inputs.call(triton_kernel, case), inputs, case)


def test_a_round_without_groups_gives_the_same_as_without_prefix(kernel: Callable[..., Tensor]) -> None:
    case = Case(rows=fed(2), groups=())
    inputs = build(case)
    none = PrefixArgs(*(torch.zeros(n, dtype=torch.int64) for n in (7, 7, 4)))
    check(inputs.call(kernel, case, prefix=none), inputs, case)


def test_nan_among_shared_values_reaches_the_rows_of_the_group_alone(kernel: Callable[..., Tensor]) -> None:
    case = Case(rows=ROWS, groups=GROUPS)
    inputs = build(case)
    inputs.v_pages[inputs.block_tables[4, 1], :, 3] = float("nan")
    bad = torch.isnan(inputs.call(kernel, case)).flatten(1)
    assert bad[[2, 4]].all() and not bad[[0, 1, 3, 5, 6]].any()


SHAPE_8B = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
MANY = tuple((1000 + 3 * row, 1) for row in range(40))
GPU_CASES = CASES | {
    "8B, one group": Case(rows=MANY, groups=((15, tuple(range(40))),), **SHAPE_8B),
    "8B, one group, 8 bits": Case(rows=MANY, groups=((15, tuple(range(40))),), fp8=True, **SHAPE_8B),
    "8B, groups of all sizes": Case(
        rows=fed(4, MANY),
        groups=((15, (3, 1)), (1, tuple(range(4, 30))), (9, (0, 2, 30)), (4, (31, 39, 32, 33))),
        **SHAPE_8B,
    ),
    "gpt-oss": Case(
        rows=fed(2, MANY),
        groups=((14, tuple(range(1, 39))),),
        q_heads=64,
        kv_heads=8,
        head_dim=64,
        window=128,
        sinks=True,
        dtype=torch.bfloat16,
    ),
    "Gemma 2": Case(
        rows=fed(3, MANY),
        groups=((8, tuple(range(20))), (11, tuple(range(20, 40)))),
        q_heads=8,
        kv_heads=4,
        head_dim=256,
        window=400,
        softcap=50.0,
        dtype=torch.bfloat16,
    ),
    "fp32, head 256": Case(rows=fed(2, MANY), groups=((15, tuple(range(9))),), q_heads=4, kv_heads=1, head_dim=256),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_CASES)
def test_groups_match_the_oracle_on_a_gpu(name: str) -> None:
    inputs = build(GPU_CASES[name])
    check(inputs.call(triton_kernel, GPU_CASES[name], "cuda"), inputs, GPU_CASES[name])


@pytest.mark.gpu
def test_one_captured_graph_serves_all_groups() -> None:
    rows = tuple((start, 2) for start in (700, 320, 210, 192, 640, 200, 128, 7))
    all_groups = (((5, (1, 0)), (3, (2, 5, 3)), (2, (4, 6))), (), ((3, (0, 1, 2, 3, 4, 5)),))
    cases = [Case(rows=rows, groups=groups, **SHAPE_8B) for groups in all_groups]
    built = [build(case) for case in cases]
    names = ("query", "k_pages", "v_pages", "block_tables", "cu_queries", "starts")
    static = {name: getattr(built[0], name).to("cuda") for name in names}
    prefix = PrefixArgs(*(torch.zeros(n, dtype=torch.int64, device="cuda") for n in (8, 8, 5)))

    def step() -> Tensor:
        return paged_attention(**static, max_queries=2, scale=0.3, prefix=prefix)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for case, inputs in zip(cases, built, strict=True):
        for name in names:
            static[name].copy_(getattr(inputs, name))
        for fixed, given in zip(prefix, inputs.prefix or (0, 0, 0), strict=True):
            fixed.copy_(torch.as_tensor(given))
        graph.replay()
        check(out, inputs, case)
