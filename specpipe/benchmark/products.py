"""`specpipe bench kernels --op product`: products of a decoder layer by number format of the weights and tokens.

Each is timed as a layer runs it, with the element-wise work around it. One CUDA graph holds calls on different weights,
together larger than the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from specpipe.benchmark.bench_config import BenchQuantize
from specpipe.benchmark.kernels import LARGER_THAN_L2, time_calls
from specpipe.benchmark.model_shapes import config_of, random_weight
from specpipe_kernels import (
    MAX_FP8_ROWS,
    Fp8Rows,
    QuantizedWeight,
    Weight,
    is_fp8,
    linear,
    linear_glu,
    linear_residual,
    rms_norm_fp8,
    with_dense_copy,
)
from specpipe_kernels.runtime.compile_ahead import CompileAhead

ProductFormat = BenchQuantize | Literal["int4-copied"]
"""Number formats of a product's weight; "int4-copied": 4 bits with a dense copy."""
_EPS = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductBench:
    """Products to measure: every combination."""

    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.3-70b")
    """Shapes of models."""
    tokens: tuple[int, ...] = tuple(1 << i for i in range(13))
    formats: tuple[ProductFormat, ...] = ("none", "fp8", "fp8-block", "int4", "int4-copied")
    dtype: torch.dtype = torch.bfloat16
    replays: int = 10
    device: str = "cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductMeasured:
    """Measurement of one product."""

    model: str
    product: str
    n: int
    """Outputs."""
    k: int
    """Inputs."""
    tokens: int
    us: dict[str, float]
    """Microseconds per call by number format of the weights."""


def _products(model: str) -> dict[str, tuple[int, int]]:
    """Returns outputs and inputs of a layer's merged products."""
    config = config_of(model)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return {
        "qkv": ((heads + 2 * kv_heads) * head_dim, config.hidden_size),
        "out": (config.hidden_size, heads * head_dim),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }


def _call(product: str, x: Tensor, residual: Tensor, norm: Tensor, weight: Weight) -> Callable[[], object]:
    """Returns a call of the product of x [M, K] and weight [N, K]. residual [M, N], norm [N]."""
    fp8 = is_fp8(weight)
    # Attention's output above MAX_FP8_ROWS is rounded by the product; other inputs come in 8 bits.
    rounded = fp8 and not (product == "out" and x.shape[0] > MAX_FP8_ROWS)
    rows: Tensor | Fp8Rows = rms_norm_fp8(x, torch.ones_like(x[0]), _EPS) if rounded else x
    if product == "qkv":
        return partial(linear, rows, weight)
    if product == "gate_up":
        return partial(linear_glu, rows, weight, fp8=fp8)
    return partial(linear_residual, rows, weight, residual, norm, _EPS, fp8=fp8)


def sweep_products(bench: ProductBench) -> Iterator[ProductMeasured]:
    """Measures every product of the models at every number of tokens in every number format."""
    device = torch.device(bench.device)
    if device.type == "cuda":
        CompileAhead(partial(_call_all, bench)).wait()
    for model in bench.models:
        for product, (n, k) in _products(model).items():
            copies = max(1, min(8, round(LARGER_THAN_L2 / (n * k // 2)))) if device.type == "cuda" else 1
            weights = _weights(bench, n, k, copies, device)
            for tokens in bench.tokens:
                x, residual, norm = _inputs(bench, n, k, tokens, device)
                us = {}
                for name, stored in weights.items():
                    calls = [_call(product, x, residual, norm, weight) for weight in stored]
                    us[name] = median(time_calls(calls, bench.replays, bench.device))
                yield ProductMeasured(model=model, product=product, n=n, k=k, tokens=tokens, us=us)


def _weights(bench: ProductBench, n: int, k: int, copies: int, device: torch.device) -> dict[str, list[Weight]]:
    """Returns `copies` weights [n, k] in each number format."""
    return {name: [_weight(n, k, name, device, bench.dtype) for _ in range(copies)] for name in bench.formats}


def _weight(n: int, k: int, name: ProductFormat, device: torch.device, dtype: torch.dtype) -> Weight:
    if name != "int4-copied":
        return random_weight(n, k, name, 0.02, device, dtype)
    weight = random_weight(n, k, "int4", 0.02, device)
    assert isinstance(weight, QuantizedWeight)
    return with_dense_copy(weight, dtype)


def _inputs(bench: ProductBench, n: int, k: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x [tokens, k], a residual [tokens, n] and a norm's weight [n]."""
    x, residual = (torch.randn(tokens, size, dtype=bench.dtype, device=device) for size in (k, n))
    return x, residual, torch.ones(n, dtype=bench.dtype, device=device)


def _call_all(bench: ProductBench) -> None:
    """Calls every product once on the `meta` device."""
    device = torch.device("meta")
    for model in bench.models:
        for product, (n, k) in _products(model).items():
            for (weight,) in _weights(bench, n, k, 1, device).values():
                for tokens in bench.tokens:
                    _call(product, *_inputs(bench, n, k, tokens, device), weight)()
