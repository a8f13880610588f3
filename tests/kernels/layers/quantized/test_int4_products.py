"""Products with 4-bit weights against fp64: every epilogue, groups of 32, 64 and 128 columns, zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specpipe_kernels import Normed, QuantizedWeight, dequantize, pack_int4, with_scales_by_group
from specpipe_kernels.layers import dequantize as triton_dequantize
from specpipe_kernels.layers import linear as triton_linear
from specpipe_kernels.layers.gemm_tiling import MAX_INT4_GLU_ROWS, GemmTiling, max_int4_rows
from specpipe_kernels.layers.layer_args import RopeArgs
from specpipe_kernels.layers.quantized.int4_gemm import Int4Tiling, int4_gemm, int4_tiling
from specpipe_kernels.layers.skinny_gemm import skinny_gemm
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.reference.layers import linear as reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPE = {"cpu": torch.float16, "cuda": torch.bfloat16}
TOLERANCE = {"cpu": 2e-3, "cuda": 1e-2}
EPS = 1e-5
TILES = GemmTiling(64, 128, 2, 3, 4, False)
"""Steps of 32 words, a quarter of a block."""

on_each_device = pytest.mark.parametrize("device", DEVICES)


def random(device: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, DTYPE[device])


def weight_of(device: str, n: int, k: int, group: int = 128, *, zeros: bool = False) -> QuantizedWeight:
    """Returns a weight whose scales differ by an order of magnitude from one row and group to the next."""
    generator = torch.Generator().manual_seed(n + k)
    shape = (n, -(-k // group))
    scale = torch.rand(shape, generator=generator) / 20 + 0.02
    scale[1::2] *= 10
    scale[:, 1::2] *= 0.1
    zero = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8).to(device) if zeros else None
    values = pack_int4(torch.randint(0, 16, (n, k), generator=generator))
    return with_scales_by_group(QuantizedWeight(values.to(device), scale.to(device), zero, (1, group)))


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def product64(x: Tensor, weight: QuantizedWeight) -> Tensor:
    return x.double() @ dequantize(weight, torch.float64).T


@on_each_device
@pytest.mark.parametrize(
    ("rows", "group", "zeros"),
    [
        (1, 128, False),
        (17, 32, True),
        pytest.param(3, 64, False, marks=pytest.mark.slow),
        pytest.param(65, 128, True, marks=pytest.mark.slow),
        pytest.param(128, 256, False, marks=pytest.mark.slow),
    ],
)
def test_products_apply_scales_and_zeros_of_groups(device: str, rows: int, group: int, zeros: bool) -> None:
    x, bias, weight = (
        random(device, rows, 1408),  # two whole blocks and three short ones
        random(device, 133, seed=1),
        weight_of(device, 133, 1408, group, zeros=zeros),
    )
    got = skinny_gemm(x, weight, PLAIN, bias=bias, tiles=TILES).out
    assert error(got, product64(x, weight) + bias.double()) < TOLERANCE[device]
    shifted = weight._replace(scale=weight.scale.roll(1, 1))
    assert error(got, product64(x, shifted) + bias.double()) > 0.1


@on_each_device
@pytest.mark.parametrize("zeros", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gated_and_residual_products(device: str, zeros: bool) -> None:
    h, by, residual = random(device, 5, 640), random(device, 640, seed=1), random(device, 5, 96, seed=2)
    squares = torch.stack([part.float().square().sum(1) for part in h.chunk(2, 1)])
    weight = weight_of(device, 2 * 72, 640, zeros=zeros)
    weight = weight._replace(scale=weight.scale / 20)  # exponentials stay finite
    normed = (h * by).double() * torch.rsqrt(h.double().square().mean(1, keepdim=True) + EPS)
    gate, up = product64(normed, weight).chunk(2, 1)
    got = skinny_gemm(Normed(h * by, squares, EPS), weight, GLU, tiles=TILES).out
    assert error(got, gate / (1 + torch.exp(-gate)) * up) < 2 * TOLERANCE[device]
    weight = weight_of(device, 96, 640, zeros=zeros)
    result = skinny_gemm(h, weight, RESIDUAL, residual=residual, norm_weight=by[:96], tiles=TILES)
    want = product64(h, weight) + residual.double()
    assert error(result.out, want) < TOLERANCE[device]
    assert result.scaled is not None and result.squares is not None
    assert error(result.scaled, want * by[:96].double()) < TOLERANCE[device]
    assert error(result.squares.sum(0), want.square().sum(1)) < TOLERANCE[device]


@on_each_device
def test_rotated_queries_and_stored_keys(device: str) -> None:
    x, cos, sin = random(device, 9, 512), random(device, 40, 64, seed=1), random(device, 40, 64, seed=2)
    weight, index = weight_of(device, 4 * 64, 512), torch.arange(20, 29, device=device)
    pages = [torch.zeros(3, 1, 16, 64, dtype=x.dtype, device=device) for _ in range(4)]
    rope = RopeArgs(cos, sin, index, pages[0], pages[1], index, None, None)
    got = skinny_gemm(x, weight, ROPE, rope=rope, q_heads=2, tiles=TILES._replace(block_n=32, splits=1)).out
    want = reference.linear_rope_store_kv(x, weight, None, cos, sin, index, *pages[2:], index, q_heads=2)
    for mine, theirs in ((got.view_as(want), want), (pages[0], pages[2]), (pages[1], pages[3])):
        assert error(mine, theirs.double()) < 2 * TOLERANCE[device]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "group", "zeros", "tiling"),
    [
        (70, 32, True, Int4Tiling(64, 32, 6, programs=7)),
        (70, 128, True, Int4Tiling(64, 0, 4, shared=True, programs=6)),
        (200, 64, False, Int4Tiling(128, 64, 3, programs=1)),
        (300, 128, True, Int4Tiling(256, 0, 3, programs=20)),
        (150, 256, False, None),
    ],
)
@pytest.mark.parametrize("glu", [False, True])
def test_products_of_many_rows(rows: int, group: int, zeros: bool, tiling: Int4Tiling | None, glu: bool) -> None:
    x, bias, weight = (
        random("cuda", rows, 1408),  # two whole blocks and three short ones
        random("cuda", 272, seed=1),
        weight_of("cuda", 272, 1408, group, zeros=zeros),
    )
    weight = weight._replace(scale=weight.scale / 20)  # exponentials stay finite
    got = int4_gemm(x, weight, bias, glu=glu, tiling=tiling)

    def want(weight: QuantizedWeight) -> Tensor:
        result = product64(x, weight) + bias.double()
        gate, up = result.chunk(2, 1)
        return gate / (1 + torch.exp(-gate)) * up if glu else result

    assert error(got, want(weight)) < (1 + glu) * TOLERANCE["cuda"]
    assert error(got, want(weight._replace(scale=weight.scale.roll(1, 1)))) > 0.1
    assert all(torch.equal(int4_gemm(x, weight, bias, glu=glu, tiling=tiling), got) for _ in range(5))


@on_each_device
def test_gated_products_of_many_rows(device: str) -> None:
    h, by, weight = random(device, MAX_INT4_GLU_ROWS + 1, 512), random(device, 512, seed=1), weight_of(device, 144, 512)
    weight = weight._replace(scale=weight.scale / 20)  # exponentials stay finite
    squares = torch.stack([part.float().square().sum(1) for part in h.chunk(3, 1)])
    normed = (h * by).double() * torch.rsqrt(h.double().square().mean(1, keepdim=True) + EPS)
    gate, up = product64(normed, weight).chunk(2, 1)
    got = triton_linear.linear_glu(Normed(h * by, squares, EPS), weight)
    assert isinstance(got, Tensor)
    assert error(got, gate / (1 + torch.exp(-gate)) * up) < 2 * TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize("group", [32, pytest.param(128, marks=pytest.mark.slow)])
def test_dequantised_weights_equal_the_reference(device: str, group: int) -> None:
    weight = weight_of(device, 133, 768, group, zeros=True)
    dense = triton_dequantize.dequantize(weight, DTYPE[device])
    assert torch.equal(dense, dequantize(weight, DTYPE[device]))


@on_each_device
def test_weights_that_blocks_do_not_divide_are_dequantised(device: str) -> None:
    x, weight = random(device, 3, 200), weight_of(device, 40, 200, 40)
    assert error(triton_linear.linear(x, weight), product64(x, weight)) < TOLERANCE[device]
    squares = torch.stack([part.float().square().sum(1) for part in x.chunk(2, 1)])
    normed = x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + EPS)
    got = triton_linear.linear(Normed(x, squares, EPS), weight)
    assert error(got, product64(normed, weight)) < TOLERANCE[device]


@on_each_device
def test_dense_copies_are_read_for_many_rows_alone(device: str) -> None:
    x, residual = random(device, 65, 128), random(device, 65, 32, seed=1)
    weight = weight_of(device, 32, 128)
    weight = weight._replace(scale=weight.scale / 20)  # exponentials stay finite
    copied = weight._replace(dense=-dequantize(weight, DTYPE[device]))  # another sign shows which one is read
    want = product64(x, weight)
    assert error(triton_linear.linear(x, copied), -want) < TOLERANCE[device]
    assert error(triton_linear.linear(x[1:], copied), want[1:]) < TOLERANCE[device]
    single = copied._replace(dense=-dequantize(weight, torch.float32))
    assert error(triton_linear.linear(x[:3].float(), single), -want[:3]) < 1e-5, "no product converts for fp32"
    gate, up = (-want).chunk(2, 1)
    got = triton_linear.linear_glu(x, copied)
    assert isinstance(got, Tensor)
    assert error(got, gate / (1 + torch.exp(-gate)) * up) < 2 * TOLERANCE[device]
    for rows, sign in ((65, -1), (64, 1)):
        out, _ = triton_linear.linear_residual(x[:rows], copied, residual[:rows], None, EPS)
        assert error(out, residual[:rows].double() + sign * want[:rows]) < TOLERANCE[device]


def test_large_weights_are_read_in_4_bits_up_to_more_rows() -> None:
    assert max_int4_rows(4096 * 4096) == 64 and max_int4_rows(4096 * 14336) == 128


@on_each_device
def test_weights_without_tiles_are_read_from_their_copy(device: str) -> None:
    x, weight = random(device, 3, 200), weight_of(device, 40, 200, 40)
    copied = weight._replace(dense=-dequantize(weight, DTYPE[device]))
    assert error(triton_linear.linear(x, copied), -product64(x, weight)) < TOLERANCE[device]


def test_tiles_fit_the_rows_and_few_kernels_are_compiled() -> None:
    gated = [int4_tiling(rows, 14336, 4096, 132, glu=True) for rows in range(33, 513)]
    assert gated[136 - 33][:2] == (128, 16)
    assert len({tiling._replace(programs=0) for tiling in gated}) <= 7
    assert int4_tiling(256, 28672, 8192, 132, glu=True).programs == 132  # 448 tiles would leave 80 idle at the end
