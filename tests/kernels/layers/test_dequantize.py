"""Dense weights of quantised ones, entry by entry, and 8-bit rounding."""

from __future__ import annotations

import pytest
import torch

from specpipe_kernels import QuantizedWeight, dequantize, pack_int4, quantize_fp8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8_weights_are_rounded_once(dtype: torch.dtype) -> None:
    given = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7)[:, None]
    given[2] = 0
    weight = given.to(dtype)
    first = quantize_fp8(weight)
    assert first.shape == (7, 33) and first.scale.shape == (7, 1) and first.block == (1, 33)
    dense = dequantize(first, dtype)
    assert torch.all((dense.double() - weight.double()).abs() <= weight.double().abs().amax(1, keepdim=True) * 2**-4)
    assert torch.equal(dense, first.values.to(dtype) * first.scale.to(dtype)), "exact in bf16"
    assert torch.equal(dequantize(quantize_fp8(dense), dtype), dense)


@pytest.mark.parametrize("block", [(1, 24), (4, 8), (1, 16)])
@pytest.mark.parametrize(("bits", "has_zeros"), [(8, False), (4, False), (4, True)])
def test_each_entry_is_value_less_zero_times_scale(block: tuple[int, int], bits: int, has_zeros: bool) -> None:
    n, k, (rows, columns) = 10, 24, block
    generator = torch.Generator().manual_seed(0)
    shape = (-(-n // rows), -(-k // columns))
    scale = torch.rand(shape, generator=generator)
    stored = torch.randint(0, 16, (n, k), generator=generator)
    zeros = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8) if has_zeros else None
    values = pack_int4(stored)
    if bits == 8:
        values = stored.to(torch.float8_e4m3fn)
    weight = QuantizedWeight(values, scale, zeros, block)
    dense = dequantize(weight, torch.float32)
    assert weight.shape == dense.shape == (n, k)
    for i in range(n):
        for j in range(k):
            at = i // rows, j // columns
            zero = int(zeros[at]) if zeros is not None else {8: 0, 4: 8}[bits]
            assert dense[i, j] == (int(stored[i, j]) - zero) * scale[at]


@pytest.mark.parametrize("k", [512, 1024, 828, 24])
def test_four_entries_a_quarter_block_apart_share_a_word(k: int) -> None:
    entries = torch.randint(0, 16, (3, k), generator=torch.Generator().manual_seed(k))
    values = pack_int4(entries)
    assert values.shape == (3, k // 2) and values.dtype == torch.uint8
    ones = torch.ones(3, 1)
    assert torch.equal(dequantize(QuantizedWeight(values, ones, None, (1, k)), torch.float32), entries - 8.0)
    for word in range(k // 4):
        block = max(start for start in (*range(0, k, 512), *range(k // 512 * 512, k, 128)) if start <= 4 * word)
        quarter = next(size for size in (512, 128, k % 128) if block + size <= k) // 4
        at = [block + word - block // 4 + i * quarter for i in range(4)]
        want = sum(entries[:, place] << 4 * i for i, place in enumerate(at))
        assert torch.equal(values[:, 2 * word].int() + 256 * values[:, 2 * word + 1].int(), want)
