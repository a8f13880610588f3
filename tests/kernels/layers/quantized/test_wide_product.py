"""Products of many rows with 8-bit weights, and rows of 8 bits, against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specpipe_kernels import QuantizedWeight, dequantize, quantize_fp8
from specpipe_kernels.layers import rms_norm, silu_mul
from specpipe_kernels.layers.quantized.fp8_gemm import Fp8Tiling, beats_library, fp8_gemm, fp8_tiling
from specpipe_kernels.layers.quantized.quantize_rows import quantize_rows
from specpipe_kernels.layers.quantized.wide_product import wide_product
from specpipe_kernels.reference.layers import rms_norm as reference_norm
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows as reference_rows
from specpipe_kernels.weights import Fp8Rows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPE = {"cpu": torch.float16, "cuda": torch.bfloat16}
TOLERANCE = {"cpu": 1e-3, "cuda": 5e-3}
EPS = 1e-5

on_each_device = pytest.mark.parametrize("device", DEVICES)


def random(device: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, DTYPE[device])


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def product64(x: Fp8Rows, weight: QuantizedWeight) -> Tensor:
    return dequantize_rows(x, torch.float64) @ dequantize(weight, torch.float64).T


def weight_of(device: str, n: int, k: int, block: tuple[int, int]) -> QuantizedWeight:
    """Returns a weight whose scales differ by two orders of magnitude from one to the next."""
    scales = torch.rand(-(-n // block[0]), -(-k // block[1]), generator=torch.Generator().manual_seed(1)) + 0.5
    scales[1::2] *= 100
    scales[:, 1::2] *= 0.01
    return QuantizedWeight(quantize_fp8(random(device, n, k)).values, scales.to(device) / 100, None, block)


def same(got: Fp8Rows, want: Fp8Rows) -> None:
    """Rounding differs where values differ in their last bits: a step of 1/8 of few entries."""
    assert got.dtype == want.dtype and got.group == want.group
    torch.testing.assert_close(got.scale, want.scale, rtol=1e-5, atol=0.0)
    assert error(dequantize_rows(got, torch.float64), dequantize_rows(want, torch.float64)) < 2e-3


@on_each_device
@pytest.mark.parametrize("block", [(1, 200), (1, 128), (128, 128)])
@pytest.mark.parametrize(
    ("rows", "splits", "by_descriptor"),
    [(67, 1, False), (5, 3, True), pytest.param(130, 2, True, marks=pytest.mark.slow)],
)
def test_own_product_applies_scales_of_channels_and_blocks(
    device: str, block: tuple[int, int], rows: int, splits: int, by_descriptor: bool
) -> None:
    k = 512 if by_descriptor else 200
    x, bias = quantize_rows(random(device, rows, k, seed=2)), random(device, 133, seed=3)
    weight = weight_of(device, 133, k, (1, k) if block == (1, 200) else block)
    tiles = Fp8Tiling(64, 64, 128, 3, 4, by_descriptor, splits)
    assert error(fp8_gemm(x, weight, bias, tiles=tiles), product64(x, weight) + bias.double()) < TOLERANCE[device]


@on_each_device
def test_rows_are_rounded_with_one_scale_each(device: str) -> None:
    x = random(device, 5, 200) * torch.logspace(-2, 2, 5, device=device)[:, None].to(DTYPE[device])
    x[3] = 0
    same(quantize_rows(x), reference_rows(x, 200))


@on_each_device
def test_norms_write_rows_in_8_bits(device: str) -> None:
    x, residual, by = (random(device, *shape, seed=len(shape)) for shape in ((5, 200), (5, 200), (200,)))
    same(rms_norm.rms_norm_fp8(x, by, EPS), reference_norm.rms_norm_fp8(x, by, EPS))
    h, eight = rms_norm.add_rms_norm(x, residual, by, EPS, fp8=True)
    assert isinstance(eight, Fp8Rows)
    assert torch.equal(h, x + residual)
    same(eight, reference_norm.rms_norm_fp8(h, by, EPS))
    complete = reference_norm.rms_norm(h, by, EPS)
    assert error(dequantize_rows(eight, torch.float64), complete.double()) < 0.04


@on_each_device
def test_activations_are_written_in_8_bits(device: str) -> None:
    x = random(device, 5, 2 * 136)
    gate, up = x.float().chunk(2, dim=1)
    eight = silu_mul.silu_mul(x, fp8=True)
    assert isinstance(eight, Fp8Rows)
    same(eight, reference_rows(gate / (1 + torch.exp(-gate)) * up, 136)._replace(dtype=x.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [65, 100, 127, 128, 129, 1000, 4096])
@pytest.mark.parametrize(
    ("n", "k", "block"), [(1024, 512, 0), (96, 4096, 0), (1024, 512, 128), (130, 200, 0), (130, 200, 128)]
)
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_all_sizes_on_a_gpu(rows: int, n: int, k: int, block: int, biased: bool) -> None:
    x = quantize_rows(random("cuda", rows, k, seed=2))
    weight = weight_of("cuda", n, k, (block, block) if block else (1, k))
    bias = random("cuda", n, seed=3) if biased else None
    out = torch.empty(rows, n, dtype=x.dtype, device="cuda")
    assert wide_product(x, weight, bias, out) is out
    assert error(out, product64(x, weight) + (0 if bias is None else bias.double())) < TOLERANCE["cuda"]


@pytest.mark.gpu
@pytest.mark.parametrize("block", [0, 128])
def test_wide_products_can_be_captured(block: int) -> None:
    x = random("cuda", 200, 512, seed=2)
    weight = weight_of("cuda", 1024, 512, (block, block) if block else (1, 512))
    want = wide_product(quantize_rows(x), weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = wide_product(quantize_rows(x), weight)
    got.zero_()
    graph.replay()
    assert torch.equal(got, want)


def test_own_product_where_the_library_leaves_processors_idle() -> None:
    own = [rows for rows in (65, 128, 129, 256, 512) if beats_library(rows, 4096, 132)]
    assert own == [65, 128, 129, 256]
    assert beats_library(136, 10240, 132)  # 160 tiles of the library: a second turn for 28
    assert [fp8_tiling(rows, 4096, 14336, 132).splits for rows in (128, 256, 512, 1024)] == [4, 2, 1, 1]
