"""QuantizedLinear: the product with the dequantised weight, also in compiled code."""

from __future__ import annotations

import pytest
import torch

from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe_kernels import QuantizedWeight, dequantize


def four_bits(n: int, k: int, group: int) -> QuantizedWeight:
    shape = (n, -(-k // group))
    return QuantizedWeight(
        torch.randint(0, 256, (n, k // 2), dtype=torch.uint8),
        torch.rand(shape),
        torch.randint(0, 16, shape, dtype=torch.uint8),
        (1, group),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_is_the_product_with_the_dequantised_weight(compiled: bool) -> None:
    torch.manual_seed(0)
    weight, bias, x = four_bits(24, 80, 32), torch.randn(24), torch.randn(2, 5, 80)
    module = QuantizedLinear(weight, bias)
    run = torch.compile(module, backend="eager", fullgraph=True) if compiled else module

    got = run(x)

    expected = x.double() @ dequantize(weight, torch.float64).T + bias.double()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


def test_moves_and_sizes_as_a_linear_layer() -> None:
    module = QuantizedLinear(four_bits(24, 80, 32)).to(torch.device("meta"))
    assert (module.in_features, module.out_features, module.bias) == (80, 24, None)
    assert module.quantized.values.is_meta and module.quantized.block == (1, 32)
    assert not list(module.parameters()) and not hasattr(module, "weight")
