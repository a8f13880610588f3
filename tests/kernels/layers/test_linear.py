"""Fused products and norms of a decoder layer against fp64, for few and many rows, and against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from specpipe_kernels import UNSCALED, KVScales, Normed, linear
from specpipe_kernels.layers import gemm_tiling as gemm_tiling_module
from specpipe_kernels.layers import linear as triton_linear
from specpipe_kernels.layers import skinny_gemm as skinny_gemm_module
from specpipe_kernels.layers.gemm_tiling import LARGE, MAX_GLU_ROWS, MAX_ROWS, GemmTiling, gemm_tiling
from specpipe_kernels.layers.layer_args import NO_NORMS, HeadNorms, RopeArgs
from specpipe_kernels.layers.rms_norm import add_rms_norm, rms_norm
from specpipe_kernels.layers.rope_store_kv import rope_store_kv
from specpipe_kernels.layers.silu_mul import silu_mul
from specpipe_kernels.layers.skinny_gemm import skinny_gemm
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.reference.layers import linear as reference
from specpipe_kernels.reference.layers.rms_norm import rms_norm as reference_norm
from specpipe_kernels.reference.layers.rope_store_kv import rope_store_kv as reference_rope

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EPS = 1e-5
# The interpreter multiplies bf16 tiles wrongly; fp16 takes the same path.
DTYPE = {"cpu": torch.float16, "cuda": torch.bfloat16}
TOLERANCE = {"cpu": 2e-3, "cuda": 1e-2}

on_each_device = pytest.mark.parametrize("device", DEVICES)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def norm64(h: Tensor, weight: Tensor) -> Tensor:
    h = h.double()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * weight.double()


def tensors(device: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, DTYPE[device]) for shape in shapes]


def open_norm(h: Tensor, weight: Tensor, parts: int) -> Normed:
    """Returns a pending norm as skinny products leave it, with its squares in `parts` parts."""
    chunks = [c.float().square().sum(-1) for c in h.chunk(parts, dim=-1)]
    return Normed((h * weight), torch.stack(chunks), EPS)


@on_each_device
@pytest.mark.parametrize("rows", [1, 17, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 16, 61))])
@pytest.mark.parametrize(("n", "k", "splits"), [(96, 200, 1), (40, 512, 4), (33, 72, 2)])
@pytest.mark.parametrize("by_descriptor", [False, True])
def test_skinny_gemm_with_bias(device: str, rows: int, n: int, k: int, splits: int, by_descriptor: bool) -> None:
    x, weight, bias = tensors(device, (rows, k), (n, k), (n,))
    tiles = GemmTiling(32, 64, splits, 3, 4, by_descriptor)
    out = skinny_gemm(x, weight, PLAIN, bias=bias, tiles=tiles).out
    assert error(out, x.double() @ weight.double().T + bias.double()) < TOLERANCE[device]


@on_each_device
def test_split_products_are_deterministic(device: str) -> None:
    x, weight = tensors(device, (5, 768), (64, 768))
    tiles = GemmTiling(32, 64, 4, 3, 4, False)
    runs = [skinny_gemm(x, weight, PLAIN, tiles=tiles).out for _ in range(4)]
    assert all(torch.equal(run, runs[0]) for run in runs), "the parts are added in a fixed order, arrivals left at zero"


@on_each_device
@pytest.mark.parametrize(
    ("rows", "k"),
    [
        (2, 160),
        pytest.param(19, 160, marks=pytest.mark.slow),
        pytest.param(47, 160, marks=pytest.mark.slow),
        (64, 152),
        (40, 155),
    ],
)
def test_skinny_glu_after_a_pending_norm(device: str, rows: int, k: int) -> None:
    """k = 155: rows whose alignment tensor descriptors do not support."""
    h, by, weight = tensors(device, (rows, k), (k,), (2 * 48, k))
    normed = open_norm(h, by, parts=5)
    gate, up = (norm64(h, by) @ weight.double().T).chunk(2, dim=-1)
    out = skinny_gemm(normed, weight, GLU).out
    assert error(out, gate / (1 + torch.exp(-gate)) * up) < 2 * TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize("rows", [65, pytest.param(100, marks=pytest.mark.slow), 128])
def test_glu_uses_the_skinny_kernel_up_to_128_rows(device: str, rows: int) -> None:
    x, weight = tensors(device, (rows, 96), (2 * 72, 96))
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=-1)
    out = triton_linear.linear_glu(Normed(x, None, EPS), weight)
    assert error(out, gate / (1 + torch.exp(-gate)) * up) < 2 * TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize(
    "rows",
    [
        2,
        pytest.param(21, marks=pytest.mark.slow),
        pytest.param(60, marks=pytest.mark.slow),
        100,
        pytest.param(128, marks=pytest.mark.slow),
    ],
)
def test_lm_head_uses_the_skinny_kernel_up_to_128_rows(device: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (triton_linear, gemm_tiling_module):
        monkeypatch.setattr(module, "LARGE", 300)
    monkeypatch.setattr(triton_linear, "wide_product", None)
    x, weight = tensors(device, (rows, 96), (333, 96))
    assert error(triton_linear.linear(x, weight), x.double() @ weight.double().T) < TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize("rows", [5, 200], ids=["narrow", "wide"])
def test_linear_writes_to_out(device: str, rows: int) -> None:
    x, weight, room = tensors(device, (rows, 96), (333, 96), (2, rows, 333))
    for function in (linear, reference.linear):
        out = room[1].fill_(torch.nan)
        assert function(x, weight, out=out) is out
        assert error(out, x.double() @ weight.double().T) < TOLERANCE[device]
    with pytest.raises(ValueError, match="contiguous"):
        linear(x, weight, out=room[1].t())


@on_each_device
def test_linear_of_no_rows_is_empty(device: str) -> None:
    (weight,) = tensors(device, (333, 96))
    room = weight.new_empty(0, 333)
    assert triton_linear.linear(weight[:0], weight).shape == room.shape
    assert triton_linear.linear(weight[:0], weight, out=room) is room


SHAPES = {"8b": (4096, 14336, 32, 8, 128), "1b": (2048, 8192, 32, 8, 64), "0.5b": (896, 4864, 14, 2, 64)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("rows", "fp8"), [(1, True), (16, False), (17, False), (64, True), (33, False), (64, False), (128, False)]
)
def test_tiles_in_flight_fit_into_shared_memory(shape: tuple[int, ...], rows: int, fp8: bool) -> None:
    hidden, inner, heads, kv_heads, dim = shape
    products = [
        (ROPE, (heads + 2 * kv_heads) * dim // 2, hidden),
        (RESIDUAL, hidden, heads * dim),
        (GLU, inner, hidden),
        (RESIDUAL, hidden, inner),
        (PLAIN, 128256, hidden),
        (PLAIN, hidden, hidden),
    ]
    for (epilogue, n, k), whole in itertools.product(products, (False, True)):
        if rows > MAX_ROWS and epilogue != GLU and n < LARGE:
            continue
        cut = gemm_tiling(
            rows, n, k, epilogue=epilogue, itemsize=1 if fp8 else 2, processors=132, head_dim=dim, whole_heads=whole
        )
        weight_rows = cut.block_n * (2 if epilogue in (GLU, ROPE) else 1)
        x_rows = max(16, triton.next_power_of_2(rows))
        bytes_a_step = cut.block_k * (weight_rows + x_rows) * (1 if fp8 else 2)
        assert cut.stages * bytes_a_step < 227 * 1024
        assert cut.splits == 1 or k // cut.splits >= 4 * cut.block_k, "a split has at least four steps"


@on_each_device
@pytest.mark.parametrize(
    ("rows", "early"),
    [
        (1, True),
        (7, False),
        pytest.param(31, True, marks=pytest.mark.slow),
        pytest.param(50, False, marks=pytest.mark.slow),
    ],
)
def test_skinny_residual_leaves_a_norm_for_the_next_product(
    device: str, rows: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """early: inputs of the epilogues are loaded before the products."""
    monkeypatch.setattr(skinny_gemm_module, "_PREFETCH_VALUES", 48 if early else 0)
    x, weight, residual, by, following = tensors(device, (rows, 96), (200, 96), (rows, 200), (200,), (64, 200))
    h, normed = triton_linear.linear_residual(x, weight, residual, by, EPS)
    want = residual.double() + x.double() @ weight.double().T
    assert error(h, want) < TOLERANCE[device]
    out = triton_linear.linear(normed, following)
    assert error(out, norm64(h, by) @ following.double().T) < 2 * TOLERANCE[device]


@on_each_device
def test_large_products_complete_their_norms(device: str) -> None:
    rows = MAX_GLU_ROWS + 3
    x, weight, residual, by = tensors(device, (rows, 64), (96, 64), (rows, 96), (96,))
    h, normed = triton_linear.linear_residual(x, weight, residual, by, EPS)
    assert normed.squares is None
    assert error(h, residual.double() + x.double() @ weight.double().T) < TOLERANCE[device]
    assert error(normed.values, norm64(h, by)) < TOLERANCE[device]
    (glu,) = tensors(device, (2 * 40, 96), seed=1)
    assert error(triton_linear.linear_glu(normed, glu), reference.linear_glu(normed, glu).double()) < TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize("hidden", [64, 200])
def test_norms(device: str, hidden: int) -> None:
    x, residual, by = tensors(device, (5, hidden), (5, hidden), (hidden,))
    assert error(rms_norm(x, by, EPS), norm64(x, by)) < TOLERANCE[device]
    assert error(reference_norm(x, by, EPS), norm64(x, by)) < TOLERANCE[device]
    h, normed = add_rms_norm(x, residual, by, EPS)
    assert error(h, x.double() + residual.double()) < TOLERANCE[device]
    assert error(normed, norm64(h, by)) < TOLERANCE[device]


@on_each_device
def test_silu_mul(device: str) -> None:
    (x,) = tensors(device, (3, 2 * 1100))
    gate, up = x.double().chunk(2, dim=-1)
    assert error(silu_mul(x), gate / (1 + torch.exp(-gate)) * up) < TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim"), [(4, 2, 32), (7, 1, 24), pytest.param(12, 4, 64, marks=pytest.mark.slow)]
)
def test_rope_store_kv_equals_the_reference(device: str, normed: bool, q_heads: int, kv_heads: int, dim: int) -> None:
    tokens, page_size, pages = 9, 16, 5
    qkv, cos, sin, q_norm, k_norm = tensors(
        device, (tokens, (q_heads + 2 * kv_heads) * dim), (40, dim), (40, dim), (dim,), (dim,)
    )
    positions = torch.tensor([-1, 0, 3, 39, 40, 77, 12, 5, 6], device=device)
    index = torch.tensor([0, 16, 17, 79, 33, 64, 50, 40, 41], device=device)
    options: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "eps": EPS} if normed else {}

    def run(function: Any) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (torch.zeros(pages, kv_heads, page_size, dim, dtype=qkv.dtype, device=device) for _ in range(2))
        q = function(qkv, cos, sin, positions, k, v, index, q_heads=q_heads, **options)
        return q, k, v

    for got, want in zip(run(rope_store_kv), run(reference_rope), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    assert run(rope_store_kv)[2].count_nonzero() == tokens * kv_heads * dim


@on_each_device
@pytest.mark.parametrize("splits", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("biased", "early"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim", "head_norm"),
    [
        (4, 2, 32, False),
        (3, 1, 24, True),
        pytest.param(4, 2, 32, True, marks=pytest.mark.slow),
        pytest.param(3, 1, 24, False, marks=pytest.mark.slow),
        pytest.param(4, 4, 64, False, marks=pytest.mark.slow),
    ],
)
def test_rope_epilogue_of_the_skinny_gemm(
    device: str,
    splits: int,
    biased: bool,
    early: bool,
    head_norm: bool,
    q_heads: int,
    kv_heads: int,
    dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens, hidden, page_size, pages = 9, 128, 16, 5
    outputs = (q_heads + 2 * kv_heads) * dim
    h, by, weight, bias, cos, sin, q_norm, k_norm = tensors(
        device, (tokens, hidden), (hidden,), (outputs, hidden), (outputs,), (40, dim), (40, dim), (dim,), (dim,)
    )
    positions = torch.tensor([-1, 0, 3, 39, 40, 77, 12, 5, 6], device=device)
    index = torch.tensor([0, 16, 17, 79, 33, 64, 50, 40, 41], device=device)
    given = bias if biased else None

    def memory() -> tuple[Tensor, Tensor]:
        k = torch.zeros(pages, kv_heads, page_size, dim, dtype=h.dtype, device=device)
        return k, torch.zeros_like(k)

    k, v = memory()
    rope = RopeArgs(cos, sin, positions, k, v, index, *UNSCALED)
    tiles = GemmTiling(16, 32, splits, 3, 4, False)
    monkeypatch.setattr(skinny_gemm_module, "_PREFETCH_VALUES", 48 if early else 0)
    normed = open_norm(h, by, parts=4)
    norms = HeadNorms(q_norm, k_norm) if head_norm else NO_NORMS
    options: dict[str, Any] = {"rope": rope, "q_heads": q_heads, "norms": norms, "head_eps": EPS}
    q = skinny_gemm(normed, weight, ROPE, bias=given, tiles=tiles, **options).out
    want_k, want_v = memory()
    complete = Normed(norm64(h, by).to(h.dtype), None, EPS)
    want_q = reference.linear_rope_store_kv(
        complete, weight, given, cos, sin, positions, want_k, want_v, index, q_heads=q_heads, q_norm=norms.q,
        k_norm=norms.k, eps=EPS,
    )  # fmt: skip
    for got, want in ((q.view_as(want_q), want_q), (k, want_k), (v, want_v)):
        assert error(got, want.double()) < 2 * TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize(
    ("rows", "normed"), [(9, False), (9, True), pytest.param(MAX_ROWS + 1, False, marks=pytest.mark.slow)]
)
def test_keys_and_values_are_stored_in_8_bits_by_every_path(device: str, rows: int, normed: bool) -> None:
    """The skinny product's epilogue, and the kernel behind other products; each head has scales of its own."""
    hidden, dim, q_heads, kv_heads, page_size = 48, 24, 3, 2, 64
    x, weight, cos, sin, q_norm, k_norm = tensors(
        device, (rows, hidden), ((q_heads + 2 * kv_heads) * dim, hidden), (99, dim), (99, dim), (dim,), (dim,)
    )
    scales = KVScales(*(torch.tensor(s, device=device) for s in ((0.02, 0.5), (0.9, 0.07))))
    index = torch.arange(70, 70 + rows, device=device)
    options: dict[str, Any] = {"q_heads": q_heads, "eps": EPS}
    options |= {"q_norm": q_norm, "k_norm": k_norm} if normed else {}

    def run(function: Any, dtype: torch.dtype, **more: Any) -> tuple[Tensor, ...]:
        k, v = (torch.zeros(3, kv_heads, page_size, dim, device=device).to(dtype) for _ in range(2))
        q = function(x, weight, None, cos, sin, index, k, v, index, **options, **more)
        return q, k, v

    q, *stored = run(triton_linear.linear_rope_store_kv, torch.float8_e4m3fn, scales=scales)
    same_q, *in_16_bits = run(triton_linear.linear_rope_store_kv, x.dtype)
    assert torch.equal(q, same_q), "the scales of pages do not concern queries"
    for pages, full, scale in zip(stored, in_16_bits, scales, strict=True):
        assert scale is not None
        want = (full.float() * scale.reciprocal()[:, None, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        torch.testing.assert_close(pages.float(), want.float(), rtol=0, atol=0)
