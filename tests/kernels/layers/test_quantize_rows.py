"""Rounding of activations to 8 bits."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from specpipe_kernels.layers.quantize_fp8 import fp8_scale as triton_scale
from specpipe_kernels.layers.quantize_fp8 import to_fp8
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows, fp8_scale, quantize_rows

EDGES = [0.0, 1e-45, 2.0**-126, 1e-30, 2.0**-9, 0.875, 0.8750001, 1.0, 447.9, 448.0, 448.1, 896.0, 65504.0, 3.3e38]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@triton.jit
def _round_kernel(x, scales, out, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    scale = triton_scale(tl.abs(value))
    tl.store(scales + at, scale)
    tl.store(out + at, to_fp8(value, scale))


@pytest.mark.parametrize("device", DEVICES)
def test_triton_rounds_as_the_reference(device: str) -> None:
    x = torch.tensor([*EDGES, -448.1, -1.0, *torch.randn(48, generator=torch.Generator().manual_seed(0))])
    scales, out = torch.empty(64), torch.empty(64, dtype=torch.float8_e4m3fn)
    x, scales, out = x.to(device), scales.to(device), out.to(device)
    _round_kernel[(1,)](x, scales, out, N=64)
    want = fp8_scale(x.abs())
    assert torch.equal(scales, want)
    assert torch.equal(out.float(), (x / want).to(torch.float8_e4m3fn).float())


def test_scale_is_the_smallest_power_of_two() -> None:
    largest = torch.tensor(EDGES[2:])
    scale = fp8_scale(largest)
    assert torch.all(torch.frexp(scale)[0] == 0.5)
    assert torch.all(largest / scale <= 448) and torch.all((largest / scale > 224) | (scale == 2.0**-126))


@pytest.mark.parametrize("group", [1, 7, 16, 40])
def test_values_do_not_depend_on_the_group(group: int) -> None:
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    rows = quantize_rows(x, group)
    assert rows.scale.shape == (-(-40 // group), 3) and rows.dtype == torch.bfloat16
    got = dequantize_rows(rows, torch.float32)
    large = x.abs() > 0.1  # smaller ones may be subnormal numbers of a wide group
    assert torch.equal(got[large], dequantize_rows(quantize_rows(x, 40), torch.float32)[large])
    assert torch.all((got - x.float()).abs()[large] <= x.float().abs()[large] / 16)


def test_nan_stays_nan_and_finite_values_finite() -> None:
    rows = quantize_rows(torch.tensor([[torch.nan, 1.0, 3.4e38, -3.4e38]]).float(), 1)
    assert rows.values.float().isnan().tolist() == [[True, False, False, False]]
