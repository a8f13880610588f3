"""Mixtures of experts against fp64: routing, grouping, 16 bits and mxfp4, odd shapes, every kind of load."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from specpipe_kernels import Activation, Experts, Mxfp4Weight, Normed, mix_experts
from specpipe_kernels.experts import mix_experts as triton_mix
from specpipe_kernels.experts import route_tokens as triton_route
from specpipe_kernels.experts.group_pairs import group_pairs
from specpipe_kernels.experts.pack_mxfp4 import pack_mxfp4, unpack_mxfp4
from specpipe_kernels.reference.experts import mix_experts as reference_mix
from specpipe_kernels.reference.experts import route_tokens as reference_route
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows, quantize_rows
from specpipe_kernels.weights import ExpertWeights, Fp8ExpertWeight

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# The interpreter multiplies bf16 tiles wrongly; fp16 takes the same path.
DTYPE = {"cpu": torch.float16, "cuda": torch.bfloat16}
TOLERANCE = {"cpu": 2e-3, "cuda": 1e-2}
SILU, CLAMPED = Activation(False), Activation(True, 1.702, 7.0)
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

on_each_device = pytest.mark.parametrize("device", DEVICES)


class Case(NamedTuple):
    tokens: int
    experts: int
    top_k: int
    hidden: int
    inner: int
    activation: Activation = SILU
    interleaved: bool = False
    bias: bool = False
    mxfp4: bool = False
    block: tuple[int, int] | None = None
    """Entries of 8-bit weights that share a scale."""


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


CASES = [
    Case(1, 8, 2, 72, 40),
    Case(37, 5, 3, 64, 96, CLAMPED, interleaved=True, bias=True),
    Case(7, 8, 2, 96, 64, CLAMPED, interleaved=True, bias=True, mxfp4=True),
    slow(Case(2, 4, 2, 1152, 32, CLAMPED, interleaved=True, bias=True, mxfp4=True)),  # programs share K
    Case(40, 6, 2, 96, 64, mxfp4=True),  # tiles of 8, 16 and 32 pairs
    Case(21, 4, 2, 256, 128, block=(128, 128)),
    slow(Case(2, 4, 2, 1100, 1030, bias=True)),
    slow(Case(4, 4, 2, 1152, 128, block=(128, 128))),
    slow(Case(3, 4, 2, 200, 96, block=(1, 0))),
    slow(Case(150, 3, 2, 256, 384, block=(128, 128))),
    slow(Case(130, 4, 1, 40, 72)),
    slow(Case(300, 3, 2, 64, 64, bias=True)),
    slow(Case(64, 60, 4, 128, 33)),
    slow(Case(150, 4, 4, 160, 96, mxfp4=True)),
    slow(Case(100, 11, 2, 160, 96, CLAMPED, interleaved=True, bias=True, mxfp4=True)),  # 8 to 64 pairs
]


class Fp8(NamedTuple):
    """Weights in 8 bits with arbitrary scales."""

    values: Tensor
    scale: Tensor
    block: tuple[int, int]


class Checkpoint(NamedTuple):
    """mxfp4 weights as gpt-oss stores them."""

    blocks: Tensor
    scales: Tensor


def decode(stored: Checkpoint) -> Tensor:
    """Returns the values of mxfp4 weights in fp64, independent of the layout in memory."""
    table = torch.tensor([sign * size for sign in (1.0, -1.0) for size in CODES], dtype=torch.float64)
    codes = stored.blocks.long()
    values = torch.stack((table[codes & 15], table[codes >> 4]), dim=-1).flatten(-2)
    return (values * torch.exp2(stored.scales.double() - 127)[..., None]).flatten(-2)


def random_weight(
    shape: tuple[int, int, int], generator: torch.Generator, *, mxfp4: bool, block: tuple[int, int] | None = None
) -> Tensor | Checkpoint | Fp8:
    if block is not None:
        rows, columns = block[0], block[1] or shape[2]
        values = (torch.randn(shape, generator=generator) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = (shape[0], -(-shape[1] // rows), -(-shape[2] // columns))
        return Fp8(values, (torch.rand(scales, generator=generator) + 0.1) / (100 * shape[2] ** 0.5), (rows, columns))
    if not mxfp4:
        return torch.randn(shape, generator=generator) / shape[2] ** 0.5
    blocks = (*shape[:2], shape[2] // 32)
    values = torch.randint(0, 256, (*blocks, 16), generator=generator, dtype=torch.uint8)
    return Checkpoint(values, torch.randint(119, 125, blocks, generator=generator, dtype=torch.uint8))


def stored(weight: Tensor | Checkpoint | Fp8, device: str) -> ExpertWeights:
    if isinstance(weight, Fp8):
        return Fp8ExpertWeight(weight.values.to(device), weight.scale.to(device), weight.block)
    if isinstance(weight, Checkpoint):
        return Mxfp4Weight(*(part.to(device) for part in pack_mxfp4(*weight)))
    return weight.to(device, DTYPE[device])


def full(weight: Tensor | Checkpoint | Fp8, device: str) -> Tensor:
    if isinstance(weight, Fp8):
        (rows, columns), (_, n, k) = weight.block, weight.values.shape
        scale = weight.scale.double().repeat_interleave(rows, 1)[:, :n].repeat_interleave(columns, 2)[..., :k]
        return weight.values.double() * scale
    return decode(weight) if isinstance(weight, Checkpoint) else weight.to(DTYPE[device]).double()


def random_experts(case: Case, device: str) -> tuple[Experts, Tensor, Tensor]:
    """Returns experts and their two weights in fp64."""
    g = torch.Generator().manual_seed(1)
    shapes = (case.experts, 2 * case.inner, case.hidden), (case.experts, case.hidden, case.inner)
    weights = [random_weight(shape, g, mxfp4=case.mxfp4, block=case.block) for shape in shapes]
    biases = [torch.randn(shape[:2], generator=g).to(device, DTYPE[device]) if case.bias else None for shape in shapes]
    gate_up, down = (stored(weight, device) for weight in weights)
    experts = Experts(gate_up, biases[0], down, biases[1], case.interleaved, case.activation)
    return experts, full(weights[0], device), full(weights[1], device)


def oracle(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, gate_up: Tensor, down: Tensor) -> Tensor:
    """Returns what experts of these weights compute, token by token in fp64; in 8 bits with rounded activations."""
    fp8 = isinstance(experts.gate_up, Fp8ExpertWeight)
    x, ids, weights = x.double().cpu(), ids.cpu(), weights.double().cpu()
    x = rounded(x) if fp8 else x
    inner, out = down.shape[2], torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, factor in zip(ids[token].tolist(), weights[token], strict=True):
            product = gate_up[expert] @ x[token]
            if experts.gate_up_bias is not None:
                product = product + experts.gate_up_bias[expert].double().cpu()
            gate, up = (product[::2], product[1::2]) if experts.interleaved else (product[:inner], product[inner:])
            if experts.activation.clamped:
                limit = experts.activation.limit
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
            gated = gate * torch.sigmoid(experts.activation.alpha * gate) * up
            result = down[expert] @ (rounded(gated[None])[0] if fp8 else gated)
            if experts.down_bias is not None:
                result = result + experts.down_bias[expert].double().cpu()
            out[token] += factor * result
    return out


def rounded(x: Tensor) -> Tensor:
    """Returns rows rounded to 8 bits; with scales that are powers of two it does not matter which entries share one."""
    return dequantize_rows(quantize_rows(x, x.shape[1]), torch.float64)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double().cpu() - want).norm() / want.norm())


class Inputs(NamedTuple):
    x: Tensor
    ids: Tensor
    weights: Tensor
    experts: Experts
    gate_up: Tensor
    down: Tensor


def inputs(case: Case, device: str) -> Inputs:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(case.tokens, case.hidden, generator=g).to(device, DTYPE[device])
    logits = torch.randn(case.tokens, case.experts, generator=g).to(device)
    ids, weights, _ = reference_route.choose_experts(logits, Normed(x, None, 0.0), case.top_k, normalize=True)
    return Inputs(x, ids, weights, *random_experts(case, device))


@on_each_device
@pytest.mark.parametrize("case", CASES)
def test_experts_equal_the_fp64_oracle(device: str, case: Case) -> None:
    made = inputs(case, device)
    want = oracle(*made)
    # Activations at a rounding boundary of 8 bits may go either way; the reference does not round them.
    # The interpreter loses the carry where a mantissa rounds up to 2.
    extra = 0.0 if case.block is None else 0.1 if device == "cpu" else 0.01
    assert error(triton_mix.mix_experts(*made[:4]), want) < TOLERANCE[device] + extra
    assert error(reference_mix.mix_experts(*made[:4]), want) < TOLERANCE[device] + (0 if case.block is None else 0.06)


@on_each_device
@pytest.mark.parametrize(
    ("case", "norm", "fp8"),
    [
        (Case(5, 4, 2, 72, 40), True, False),
        (Case(1, 8, 2, 72, 40), False, False),
        (Case(5, 4, 2, 72, 40, bias=True), True, True),
        (Case(21, 4, 2, 72, 40), True, False),  # grouped pairs
        slow(Case(21, 4, 2, 72, 40), True, True),
        slow(Case(3, 4, 2, 1152, 1152, CLAMPED, bias=True, mxfp4=True), True, False),  # programs share K
        slow(Case(4, 4, 2, 1152, 128, block=(128, 128)), True, True),
    ],
)
def test_residual_and_next_norm_join_the_weighted_sum(device: str, case: Case, norm: bool, fp8: bool) -> None:
    made, hidden = inputs(case, device), case.hidden
    residual = torch.randn(case.tokens, hidden + 8, generator=torch.Generator().manual_seed(6)).to(made.x)[:, :hidden]
    weight = torch.rand(hidden, generator=torch.Generator().manual_seed(7)).to(made.x) if norm else None
    want = oracle(*made) + residual.double().cpu()
    tolerance = TOLERANCE[device] if case.block is None else 0.1
    for module in (triton_mix, reference_mix):
        h, normed = module.mix_experts_residual(*made[:4], residual, weight, 1e-5, fp8=fp8)
        assert error(h, want) < tolerance
        if weight is None:
            continue
        root = torch.rsqrt(want.square().mean(-1, keepdim=True) + 1e-5)
        scaled = h.double().cpu() * weight.double().cpu()
        got = dequantize_rows(normed, torch.float64) if fp8 else normed.values.double()
        if normed.squares is not None:
            got = got * torch.rsqrt(normed.squares.double().sum(0) / hidden + normed.eps)[:, None]
        assert error(got, (rounded(scaled.float()) if fp8 else scaled) * root) < max(0.01, tolerance)


@on_each_device
@pytest.mark.parametrize("load", ["one expert has all", "one expert has none", "last expert alone"])
def test_any_load_of_experts_is_served(device: str, load: str) -> None:
    made = inputs(Case(21, 4, 1, 48, 32), device)
    none, last = made.ids.clamp(max=2), made.ids * 0 + 3
    ids = {"one expert has all": made.ids * 0, "one expert has none": none, "last expert alone": last}[load]
    made = made._replace(ids=ids)
    assert error(triton_mix.mix_experts(*made[:4]), oracle(*made)) < TOLERANCE[device]


@on_each_device
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 4, 4), (3, 160, 6), (700, 7, 2)])
def test_pairs_are_grouped_by_expert_in_order(device: str, tokens: int, experts: int, top_k: int) -> None:
    g = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randperm(experts, generator=g)[:top_k] for _ in range(tokens)]).int().to(device)
    tiles = group_pairs(ids, experts, block_m=16)
    flat = ids.flatten().cpu()
    assert tiles.pairs.tolist() == torch.argsort(flat, stable=True).tolist()
    used = [(e, f, r) for e, f, r in zip(*(t.tolist() for t in tiles[1:]), strict=True) if e >= 0]
    assert [place for _, first, rows in used for place in range(first, first + rows)] == list(range(tokens * top_k))
    for expert, first, rows in used:
        assert 1 <= rows <= 16 and (flat[tiles.pairs[first : first + rows].cpu().long()] == expert).all()


@on_each_device
@pytest.mark.parametrize(("normalize", "experts"), [(False, 37), (True, 37), (True, 130)])
def test_routing_chooses_the_largest_logits(device: str, normalize: bool, experts: int) -> None:
    logits = torch.randn(9, experts, generator=torch.Generator().manual_seed(5)).to(device)
    logits[3] = 1.0  # ties: the lowest experts
    x = torch.randn(9, 40, generator=torch.Generator().manual_seed(8)).to(device)
    squares = torch.rand(3, 9, generator=torch.Generator().manual_seed(9)).to(device)
    ids, weights, normed = triton_route.choose_experts(logits, Normed(x, squares, 1e-5), 5, normalize=normalize)
    torch.testing.assert_close(normed, x * torch.rsqrt(squares.sum(0) / 40 + 1e-5)[:, None])
    probabilities = torch.softmax(logits.double(), dim=-1)
    want = probabilities.sort(dim=-1, descending=True, stable=True)
    factors = want.values[:, :5] / (want.values[:, :5].sum(-1, keepdim=True) if normalize else 1)
    assert torch.equal(ids.long(), want.indices[:, :5]) and ids[3].tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(weights.double(), factors, rtol=1e-5, atol=0)
    again = reference_route.choose_experts(logits, Normed(x, None, 0.0), 5, normalize=normalize)
    assert torch.equal(again[0], ids)
    for given in (Normed(x, squares, 1e-5), Normed(normed, None, 0.0)):
        eight = triton_route.choose_experts(logits, given, 5, normalize=normalize, fp8=True)
        assert (
            torch.equal(eight.ids, ids) and error(dequantize_rows(eight.x, torch.float64), rounded(normed).cpu()) < 0.01
        )


@on_each_device
@pytest.mark.parametrize(("tokens", "experts", "bias"), [(1, 37, True), (3, 130, False), (9, 37, True)])
def test_routing_multiplies_with_the_router(device: str, tokens: int, experts: int, bias: bool) -> None:
    g = torch.Generator().manual_seed(4)
    x, router = (torch.randn(n, 72, generator=g).to(device, DTYPE[device]) for n in (tokens, experts))
    shift = torch.randn(experts, generator=g).to(x) if bias else None
    squares = torch.rand(3, tokens, generator=g).to(device) * 40
    given = Normed(x, squares, 1e-5)
    scale = torch.rsqrt(squares.double().sum(0) / 72 + 1e-5)[:, None]
    logits = scale * (x.double() @ router.double().T) + (0 if shift is None else shift.double())
    for fp8 in (False, True):
        got = triton_route.route_tokens(given, router, shift, 5, normalize=True, fp8=fp8)
        want = triton_route.choose_experts(logits.to(x.dtype), given, 5, normalize=True, fp8=fp8)
        assert torch.equal(got.ids, want.ids) and error(got.weights, want.weights.double().cpu()) < TOLERANCE[device]
        rows, completed = (dequantize_rows(r.x, torch.float64) if fp8 else r.x for r in (got, want))
        assert error(rows, completed.double().cpu()) < 1e-6


@on_each_device
def test_routing_of_nan_stays_within_the_experts(device: str) -> None:
    logits = torch.full((2, 9), float("nan"), device=device)
    logits[1, 4] = 1.0
    ids, weights, _ = triton_route.choose_experts(logits, Normed(logits, None, 0.0), 3, normalize=True)
    assert ids.tolist() == [[0, 1, 2], [4, 0, 1]] and weights[1].tolist() == [1.0, 0.0, 0.0]


def test_ids_of_another_shape_are_refused() -> None:
    x, ids, weights, experts, _, _ = inputs(Case(4, 4, 2, 48, 32), "cpu")
    with pytest.raises(ValueError, match=r"expert_ids \[3, 2\] torch.int32, weights \[4, 2\]; expected \[4, k\]"):
        mix_experts(x, ids[:3], weights, experts)


@pytest.mark.parametrize("columns", [32, 96, 128, 288])
def test_mxfp4_keeps_every_value_of_the_checkpoint(columns: int) -> None:
    weight = random_weight((3, 5, columns), torch.Generator().manual_seed(2), mxfp4=True)
    assert isinstance(weight, Checkpoint)
    assert torch.equal(unpack_mxfp4(pack_mxfp4(*weight), columns, torch.float64), decode(weight))
