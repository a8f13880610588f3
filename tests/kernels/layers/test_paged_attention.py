"""`paged_attention`, reference and Triton, against a dense fp64 oracle without pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.attention_cases import Case, build, check
from support.engines import slow
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specpipe_kernels.layers import paged_attention as triton_module
from specpipe_kernels.reference.layers.paged_attention import paged_attention as reference
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.runtime.backend import VARIABLE

triton_kernel = triton_module.paged_attention
DECODE = ((0, 1), (63, 1), (64, 1), (200, 1))
VERIFY = ((5, 4), (61, 4), (130, 4))
MIXED = ((0, 70), (129, 1), (40, 0), (7, 4), (-1, 2), (62, 3), (64, 130))


CASES = {
    "decode": Case(rows=DECODE),
    "decode, one head": Case(rows=DECODE, q_heads=1, kv_heads=1, head_dim=16),
    "verify": Case(rows=VERIFY),
    "verify, G=7, head 80": Case(rows=VERIFY, q_heads=7, kv_heads=1, head_dim=80),
    "verify, window": Case(rows=VERIFY, window=9),
    "verify, window of one": Case(rows=VERIFY, window=1),
    "verify, softcap": Case(rows=VERIFY, softcap=2.0),
    "verify, sinks": Case(rows=VERIFY, sinks=True),
    "verify, fp16": Case(rows=VERIFY, dtype=torch.float16),
    "verify, pages of 16": Case(rows=VERIFY, page_size=16),
    "mixed": Case(rows=MIXED, q_heads=4, kv_heads=4),
    "mixed, all features": Case(
        rows=MIXED, q_heads=6, kv_heads=3, head_dim=20, window=70, softcap=3.0, sinks=True, spare_tokens=3
    ),
    "mixed, values of another size": Case(rows=MIXED, head_dim=24, value_dim=16),
    "a row fed its last two tokens": Case(rows=((-1, 2), (0, 2), (5, 2)), sinks=True),
    "8 bits, verify": Case(rows=VERIFY, fp8=True),
    "8 bits, head 80, fp16": Case(rows=VERIFY, q_heads=7, kv_heads=1, head_dim=80, dtype=torch.float16, fp8=True),
    "8 bits, all features": Case(
        rows=VERIFY, q_heads=6, kv_heads=3, head_dim=20, window=70, softcap=3.0, sinks=True, spare_tokens=3, fp8=True
    ),
    "8 bits, values of another size": Case(rows=MIXED, head_dim=24, value_dim=16, fp8=True),
    "no query at all": Case(rows=((4, 0), (0, 0)), spare_tokens=2),
}


SLOW_CASES = ("mixed", "8 bits, values of another size")


@pytest.mark.parametrize("name", [slow(name) if name in SLOW_CASES else name for name in CASES])
def test_matches_the_oracle_over_shuffled_pages_and_stale_nan(kernel: Callable[..., Tensor], name: str) -> None:
    inputs = build(CASES[name])
    check(inputs.call(kernel, CASES[name]), inputs, CASES[name])


@pytest.mark.parametrize(
    "processors", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8, 32]
)
@pytest.mark.parametrize("sinks", [False, True])
def test_any_number_of_splits_gives_the_same(monkeypatch: pytest.MonkeyPatch, processors: int, sinks: bool) -> None:
    """1 (small blocks), 1, 2 and 8 splits per row; some of them have no work."""
    case = Case(rows=((-1, 2), (3, 4), (0, 0), (188, 3)), kv_heads=1, window=100, sinks=sinks, spare_tokens=2)
    monkeypatch.setattr(triton_module, "_processors", lambda device: processors)
    inputs = build(case)
    check(inputs.call(triton_kernel, case), inputs, case)


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 40])
@pytest.mark.parametrize(
    ("block_n", "splits"), [pytest.param(16, 1, marks=pytest.mark.slow), (16, 4), (32, 2), (64, 8)]
)
def test_any_tiling_gives_the_same(block_n: int, splits: int, window: int | None) -> None:
    """Blocks that are part of a page, rows of several tiles, more splits than blocks, tables with no entry to spare."""
    case = Case(rows=((0, 17), (190, 2), (-1, 2), (60, 5)), kv_heads=1, window=window, softcap=2.0)
    inputs = build(case)
    inputs.block_tables = inputs.block_tables[:, :-1].contiguous()
    tiles = triton_module.AttentionTiling(block_m=16, block_n=block_n, splits=splits, warps=4, stages=3)
    check(inputs.call(triton_kernel, case, tiles=tiles), inputs, case)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (((0, 2), (190, 2), (-1, 2), (60, 2)), {"groups": ((2, (1,)),)}),
        (
            ((0, 5), (190, 1), (60, 0)),
            {"head_dim": 24, "value_dim": 20, "window": 40, "sinks": True, "spare_tokens": 3},
        ),
        pytest.param(((0, 60), (70, 9)), {}, marks=pytest.mark.slow),  # more rows than a skinny product takes
    ],
)
def test_results_in_8_bits_are_the_rounded_ones(
    kernel: Callable[..., Any], rows: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    case = Case(rows=rows, dtype=dtype, **options)
    inputs = build(case)
    full = inputs.call(kernel, case).flatten(1)
    got = inputs.call(kernel, case, fp8=True)
    assert got.dtype == dtype
    want = quantize_rows(full, got.group)
    assert torch.equal(got.scale, want.scale) and torch.equal(got.values.float(), want.values.float())
    assert got.group in ((case.value_dim or case.head_dim), full.shape[1])


def test_strides_of_a_fused_projection_are_honoured(kernel: Callable[..., Tensor]) -> None:
    case = Case(rows=VERIFY)
    inputs = build(case)
    tokens, heads, dim = inputs.query.shape
    fused = torch.randn(heads, tokens, 3 * dim)
    fused[:, :, dim : 2 * dim] = inputs.query.transpose(0, 1)
    inputs.query = fused[:, :, dim : 2 * dim].transpose(0, 1)
    assert not inputs.query.is_contiguous()
    check(inputs.call(kernel, case), inputs, case)


def test_padding_rows_do_not_change_other_rows(kernel: Callable[..., Tensor]) -> None:
    rows = ((5, 2), (130, 2))
    inputs = build(Case(rows=rows))
    alone = inputs.call(kernel, Case(rows=rows))
    padded = build(Case(rows=rows))
    padded.k_pages[0], padded.v_pages[0] = 1.0, 1.0
    padded.query = torch.cat((inputs.query, torch.ones(4, 4, 32)))
    padded.block_tables = torch.cat(
        (inputs.block_tables, torch.zeros(2, inputs.block_tables.shape[1], dtype=torch.int32))
    )
    padded.cu_queries = torch.tensor([0, 2, 4, 6, 8], dtype=torch.int32)
    padded.starts = torch.tensor([5, 130, 0, -1])
    out = padded.call(kernel, Case(rows=rows))
    torch.testing.assert_close(out[:4], alone, rtol=1e-6, atol=1e-6)
    assert torch.isfinite(out).all()


def test_narrower_block_tables_give_the_same_result(kernel: Callable[..., Tensor]) -> None:
    case = Case(rows=VERIFY, window=90)
    inputs = build(case)
    used = inputs.block_tables.shape[1] - 1
    wide = torch.cat((inputs.block_tables[:, :used], torch.full((3, 5), 10_000, dtype=torch.int32)), dim=1)
    inputs.block_tables = wide[:, :used]
    assert not inputs.block_tables.is_contiguous()
    check(inputs.call(kernel, case), inputs, case)


def test_queries_beyond_their_table_are_finite_and_isolated(kernel: Callable[..., Tensor]) -> None:
    """Results of drafts beyond a row's end are unused, but NaN would spread through the batch's statistics."""
    case = Case(rows=((5, 2), (60, 4)))
    inputs = build(case)
    full = torch.nan_to_num(inputs.k_pages), torch.nan_to_num(inputs.v_pages)
    expected = inputs.call(kernel, case)
    inputs.block_tables = inputs.block_tables[:, :1]
    inputs.starts[1] = 62
    inputs.k_pages, inputs.v_pages = full
    out = inputs.call(kernel, case)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[:2], expected[:2], rtol=1e-6, atol=1e-6)


def test_nan_among_visible_keys_reaches_the_output(kernel: Callable[..., Tensor]) -> None:
    """Masked NaN must not leak; visible NaN must not be hidden, because sampling reports such rows."""
    case = Case(rows=((5, 2), (9, 2)))
    inputs = build(case)
    inputs.v_pages[inputs.block_tables[1, 0], :, 3] = float("nan")
    out = inputs.call(kernel, case)
    assert torch.isfinite(out[:2]).all() and torch.isnan(out[2:]).all()


@pytest.mark.parametrize("size", [2e37, 1e-30])
def test_queries_of_any_size_attend_to_pages_in_8_bits(size: float) -> None:
    """Products are in fp16 there, which ends at 65,504."""
    case = Case(rows=VERIFY, dtype=torch.bfloat16, fp8=True)
    inputs = build(case)
    inputs.query *= size
    out = inputs.call(triton_kernel, case, scale=0.3 / size)
    inputs.query /= size
    check(out, inputs, case)


def test_nan_in_pages_of_8_bits_reaches_the_output(kernel: Callable[..., Tensor]) -> None:
    case = Case(rows=((5, 2), (9, 2)), fp8=True)
    inputs = build(case)
    inputs.v_pages[inputs.block_tables[1, 0], :, 3] = torch.tensor(torch.nan).to(torch.float8_e4m3fn)
    out = inputs.call(kernel, case)
    assert torch.isfinite(out[:2]).all() and torch.isnan(out[2:]).all()


def test_long_ragged_prefill_uses_tiles_and_groups() -> None:
    case = Case(rows=((0, 700), (650, 1), (0, 3), (100, 333)), q_heads=2, kv_heads=1)
    inputs = build(case)
    check(inputs.call(reference, case), inputs, case)


class _NoSync(TorchDispatchMode):
    """Refuses operations whose shape or value would have to be copied back from a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "lift_fresh"}, name
        if name in {"index", "index_put", "index_put_"}:
            assert all(index is None or index.dtype != torch.bool for index in args[1]), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [VERIFY, MIXED], ids=["verify", "mixed"])
def test_reference_never_synchronises_with_the_device(rows: tuple[tuple[int, int], ...]) -> None:
    case = Case(rows=rows, window=20, softcap=4.0, sinks=True)
    inputs = build(case)
    with _NoSync():
        inputs.call(reference, case)


LLAMA_8B = Case(rows=MIXED, q_heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
GPU_CASES = CASES | {
    "Llama 8B, mixed": LLAMA_8B,
    "Llama 8B, decode": Case(rows=DECODE, q_heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16),
    "Llama 8B, one long row": Case(rows=((3000, 4),), q_heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16),
    "Llama 1B, verify": Case(rows=VERIFY, q_heads=32, kv_heads=8, head_dim=64, dtype=torch.bfloat16),
    "Gemma 2": Case(
        rows=MIXED, q_heads=8, kv_heads=4, head_dim=256, dtype=torch.bfloat16, window=64, softcap=50.0, spare_tokens=5
    ),
    "gpt-oss": Case(rows=MIXED, q_heads=64, kv_heads=8, head_dim=64, dtype=torch.bfloat16, window=128, sinks=True),
    "Llama 8B, mixed, 8 bits": replace(LLAMA_8B, fp8=True),
    "Llama 8B, decode, 8 bits": replace(LLAMA_8B, rows=DECODE, fp8=True),
    "Llama 8B, one long row, 8 bits": replace(LLAMA_8B, rows=((3000, 4),), fp8=True),
    "Llama 1B, verify, 8 bits": replace(LLAMA_8B, rows=VERIFY, head_dim=64, fp8=True),
    "head 96, 8 bits": replace(LLAMA_8B, head_dim=96, fp8=True),
    "gpt-oss, 8 bits": replace(LLAMA_8B, q_heads=64, head_dim=64, window=128, sinks=True, fp8=True),
    "fp32, head 256": Case(rows=MIXED, q_heads=4, kv_heads=1, head_dim=256),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_CASES)
def test_matches_the_oracle_on_a_gpu(kernel: Callable[..., Tensor], name: str) -> None:
    inputs = build(GPU_CASES[name])
    check(inputs.call(kernel, GPU_CASES[name], "cuda"), inputs, GPU_CASES[name])


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["reference", "triton"])
def test_one_captured_graph_serves_all_lengths(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from specpipe_kernels import paged_attention

    shapes = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
    cases = [Case(rows=rows, **shapes) for rows in (((640, 4), (3, 4)), ((-1, 4), (64, 4)), ((700, 4), (10, 4)))]
    built = [build(case) for case in cases]  # on the CPU, before the implementation is forced
    longest = max(built, key=lambda inputs: inputs.block_tables.shape[1])
    monkeypatch.setenv(VARIABLE, implementation)
    names = ("query", "k_pages", "v_pages", "block_tables", "cu_queries", "starts")
    static = {name: torch.zeros_like(getattr(longest, name), device="cuda") for name in names}
    static["cu_queries"].copy_(longest.cu_queries)

    def step() -> Tensor:
        return paged_attention(**static, max_queries=4, scale=0.3)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for case, inputs in zip(cases, built, strict=True):
        for name in names:
            given = getattr(inputs, name)
            static[name].zero_()[tuple(slice(n) for n in given.shape)].copy_(given)
        graph.replay()
        check(out, inputs, case)
