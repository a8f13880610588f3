"""Skinny products in 8 bits against fp64 sums of the same 8-bit values, for every epilogue and kind of scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specpipe_kernels import Fp8Rows, QuantizedWeight, dequantize
from specpipe_kernels.layers import linear as triton_linear
from specpipe_kernels.layers.gemm_tiling import GemmTiling
from specpipe_kernels.layers.skinny_gemm import skinny_gemm
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL
from specpipe_kernels.reference.layers import linear as reference
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows, quantize_rows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EPS = 1e-5
# The interpreter multiplies bf16 tiles wrongly; results in fp16 take the same path.
DTYPE = {"cpu": torch.float16, "cuda": torch.bfloat16}
TOLERANCE = {"cpu": 4e-4, "cuda": 3e-3}  # of rounding results to 16 bits
TILES = GemmTiling(32, 64, 1, 3, 4, False)

on_each_device = pytest.mark.parametrize("device", DEVICES)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_rows(device: str, rows: int, k: int, group: int, pending: int = 0) -> tuple[Fp8Rows, Tensor]:
    """Returns rows in 8 bits whose scales differ by group and row, and the same in fp64.

    pending: parts of a pending norm; 0 for none.
    """
    given = draw(rows, k) * torch.logspace(0, 4, k, base=2) * torch.arange(1, rows + 1)[:, None] / 16
    x = quantize_rows(given.to(device, DTYPE[device]), group)
    exact = dequantize_rows(x, torch.float64)
    assert group == k or x.scale.unique().numel() > 1
    if not pending:
        return x, exact
    squares = torch.rand(pending, rows, generator=torch.Generator().manual_seed(1)).to(device) * k
    return x._replace(squares=squares, eps=EPS), exact * torch.rsqrt(squares.double().sum(0) / k + EPS)[:, None]


def make_weight(device: str, n: int, k: int, block: tuple[int, int]) -> tuple[QuantizedWeight, Tensor]:
    """Returns a weight in 8 bits whose scales all differ, and the same in fp64."""
    rows, columns = block
    shape = (-(-n // rows), -(-k // columns))
    scale = (torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.1) * 2**-7
    values = draw(n, k, seed=3).to(torch.float8_e4m3fn)
    weight = QuantizedWeight(values.to(device), scale.to(device), None, block)
    return weight, dequantize(weight, torch.float64)


def check_rows(got: Fp8Rows, want: Tensor, *, close: float = 1e-3) -> None:
    """Asserts that each entry of got is want rounded with got's scale, or its neighbour where want is at a boundary."""
    scale = got.scale.t().repeat_interleave(got.group, 1)[:, : want.shape[1]]
    by_scale = want / scale.double()
    assert torch.all(torch.frexp(got.scale)[0] == 0.5), "powers of two"
    largest = torch.stack([part.abs().amax(1) for part in by_scale.split(got.group, 1)])
    assert torch.all(largest <= 448.5) and torch.all(largest >= 223.5)
    low, high = ((by_scale * (1 + sign * close)).float().to(torch.float8_e4m3fn).float() for sign in (-1, 1))
    values = got.values.float()
    assert torch.all((values == low) | (values == high))
    assert (values != by_scale.float().to(torch.float8_e4m3fn).float()).float().mean() < 0.03


CASES = [
    # rows, n, k, group of x, block of the weight, splits
    (1, 96, 200, 200, (1, 200), 1),
    (3, 72, 512, 128, (1, 512), 4),
    (17, 40, 200, 64, (32, 64), 1),
    pytest.param(64, 80, 200, 64, (1, 64), 2, marks=pytest.mark.slow),
    pytest.param(5, 96, 256, 256, (128, 128), 1, marks=pytest.mark.slow),
    pytest.param(2, 200, 384, 96, (64, 128), 2, marks=pytest.mark.slow),
    pytest.param(33, 33, 240, 80, (1, 240), 1, marks=pytest.mark.slow),
]
by_case = pytest.mark.parametrize(("rows", "n", "k", "group", "block", "splits"), CASES)


@on_each_device
@by_case
def test_plain_products_equal_exact_sums(
    device: str, rows: int, n: int, k: int, group: int, block: Any, splits: int
) -> None:
    (x, x64), (weight, w64) = make_rows(device, rows, k, group, pending=3), make_weight(device, n, k, block)
    bias = draw(n, seed=4).to(device, DTYPE[device])
    out = skinny_gemm(x, weight, PLAIN, bias=bias, tiles=TILES._replace(splits=splits)).out
    assert out.dtype == DTYPE[device]
    assert error(out, x64 @ w64.T + bias.double()) < TOLERANCE[device]


@on_each_device
@by_case
def test_glu_rounds_each_tile_with_its_scale(
    device: str, rows: int, n: int, k: int, group: int, block: Any, splits: int
) -> None:
    (x, x64), (weight, w64) = make_rows(device, rows, k, group, pending=2), make_weight(device, 2 * n, k, block)
    gate, up = (x64 @ w64.T).to(DTYPE[device]).double().chunk(2, dim=-1)
    want = gate / (1 + torch.exp(-gate)) * up
    got = skinny_gemm(x, weight, GLU, tiles=TILES, fp8=True).fp8_rows(x.dtype)
    assert got.group == TILES.block_n and got.scale.shape == (-(-n // 32), rows)
    check_rows(got, want, close=4e-3 if device == "cpu" else 3e-2)
    out = skinny_gemm(x, weight, GLU, tiles=TILES).out
    assert error(out, want) < 4 * TOLERANCE[device]


@on_each_device
@by_case
def test_residual_leaves_a_norm_in_8_bits_pending(
    device: str, rows: int, n: int, k: int, group: int, block: Any, splits: int
) -> None:
    (x, x64), (weight, w64) = make_rows(device, rows, k, group), make_weight(device, n, k, block)
    residual, norm_weight = draw(rows, n, seed=5).to(device, DTYPE[device]), draw(n, seed=6).to(device, DTYPE[device])
    result = skinny_gemm(
        x, weight, RESIDUAL, residual=residual, norm_weight=norm_weight, tiles=TILES._replace(splits=splits), fp8=True
    )
    assert error(result.out, residual.double() + x64 @ w64.T) < TOLERANCE[device]
    normed = result.fp8_rows(residual.dtype, EPS)
    check_rows(normed, result.out.double() * norm_weight.double(), close=1e-6)
    assert normed.squares is not None
    torch.testing.assert_close(normed.squares.sum(0), result.out.float().square().sum(1))


@on_each_device
@pytest.mark.parametrize(
    ("rows", "hidden", "dim", "block"),
    [(9, 128, 24, (1, 128)), pytest.param(3, 200, 64, (32, 64), marks=pytest.mark.slow)],
)
def test_a_layer_of_products_equals_the_reference(device: str, rows: int, hidden: int, dim: int, block: Any) -> None:
    """o, gate and up, down, then q, k and v of the next layer, each on the 8-bit result of the one before."""
    q_heads, kv_heads, inner, dtype = 3, 1, 152, DTYPE[device]
    outputs = (q_heads + 2 * kv_heads) * dim
    x, _ = make_rows(device, rows, q_heads * dim, dim)
    shapes = ((hidden, q_heads * dim), (2 * inner, hidden), (hidden, inner), (outputs, hidden))
    weights = []
    for i, (n, k) in enumerate(shapes):
        values = (draw(n, k, seed=i) * 8).to(torch.float8_e4m3fn)
        by = block[0], min(block[1], k)
        scale = torch.rand(-(-n // by[0]), -(-k // by[1]), generator=torch.Generator().manual_seed(i)) + 0.5
        weights.append(QuantizedWeight(values.to(device), scale.to(device) / 64, None, by))
    residual, *norms = (draw(*shape, seed=7).to(device, dtype) for shape in ((rows, hidden), (hidden,), (hidden,)))
    cos, sin = (draw(40, dim, seed=seed).to(device, dtype) for seed in (8, 9))
    index = torch.arange(20, 20 + rows, device=device)

    def run(module: Any) -> list[Tensor]:
        pages = [torch.zeros(3, kv_heads, 16, dim, dtype=dtype, device=device) for _ in range(2)]
        h, normed = module.linear_residual(x, weights[0], residual, norms[0], EPS, fp8=True)
        active = module.linear_glu(normed, weights[1], fp8=True)
        h, normed = module.linear_residual(active, weights[2], h, norms[1], EPS, fp8=True)
        q = module.linear_rope_store_kv(normed, weights[3], None, cos, sin, index, *pages, index, q_heads=q_heads)
        return [h, q, *pages]

    for got, want in zip(run(triton_linear), run(reference), strict=True):
        assert error(got, want.double()) < 0.08  # of values that rounding to 8 bits moves to a neighbour


@on_each_device
def test_8_bit_results_of_16_bit_products(device: str) -> None:
    """A checkpoint may leave single projections in 16 bits."""
    x, weight, residual, norm_weight = (
        draw(*shape).to(device, DTYPE[device]) for shape in ((5, 96), (80, 96), (5, 80), (80,))
    )
    h, normed = triton_linear.linear_residual(x, weight, residual, norm_weight, EPS, fp8=True)
    assert isinstance(normed, Fp8Rows)
    check_rows(normed, h.double() * norm_weight.double(), close=1e-6)


@on_each_device
@pytest.mark.filterwarnings(
    "ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning", "ignore:All-NaN:RuntimeWarning"
)
@pytest.mark.parametrize("value", [torch.nan, 1e18])
def test_only_nan_becomes_nan(device: str, value: float) -> None:
    x, weight = torch.zeros(2, 64, dtype=torch.float8_e4m3fn, device=device), make_weight(device, 64, 64, (1, 64))[0]
    x.view(torch.uint8)[:, 3] = 0x7F if value != value else 0x38
    scale = torch.full((1, 2), 1.0 if value != value else value, device=device)
    rows = Fp8Rows(x, scale, 64, torch.bfloat16)
    out = skinny_gemm(rows, weight, GLU, tiles=TILES, fp8=True).fp8_rows(rows.dtype)
    assert bool(out.values.float().isnan().any()) == (value != value)
