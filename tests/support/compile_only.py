"""Compiles every kernel for sm_90 without a GPU: launches become compilations, outputs stay garbage.

The interpreter accepts code that the compiler refuses (types that differ between branches, names that a version lacks).
Run as a script, in a process of its own: triton must not have been imported in interpreter mode.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

os.environ["SPECPIPE_KERNELS"] = "triton"
os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class _Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only() -> list[str]:
    """From here on a launch compiles and does nothing else; → the names of what was compiled, as it grows."""
    driver.set_active(_Hopper())
    compiled: list[str] = []
    run = JITFunction.run

    @functools.wraps(run)
    def warm_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["warmup"] = True
        kernel = run(self, *args, **kwargs)
        compiled.append(self.__name__)
        return kernel

    JITFunction.run = warm_up
    return compiled


def _sampling(rows: int, **changes: Any) -> Any:
    from specpipe_kernels import SamplingTensors

    values = {
        "temperature": torch.ones(rows),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "seed": torch.zeros(rows, dtype=torch.int64),
    }
    return SamplingTensors(**(values | changes))


def compile_everything() -> None:
    import specpipe_kernels as kernels

    rows, k, vocab = 3, 2, 128256
    positions = torch.full((rows,), 9)
    rates = torch.tensor([0.8, 0.5])
    drafts = torch.zeros(rows, k, dtype=torch.int64)
    counts = torch.full((rows,), k, dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        target, draft = torch.zeros(rows * (k + 1), vocab, dtype=dtype), torch.zeros(rows, k, vocab, dtype=dtype)
        for hints in ({"all_greedy": True}, {"truncated": False}, {}):
            sampling = _sampling(rows, **hints)
            for purpose in (kernels.Purpose.DRAFT, kernels.Purpose.INVARIANT):
                kernels.sample(target[:rows], sampling, positions, purpose=purpose)
            for method in kernels.METHODS:
                for logits in (None, draft):
                    kernels.rejection_sample(
                        target, drafts, counts, positions, sampling, draft_logits=logits, method=method,
                        synthetic_rates=rates if method == "synthetic" else None,
                    )  # fmt: skip
        for rows in (1, 4, 32, 64):
            multiply(dtype, rows)
        for head_dim, queries in ((64, 1), (128, 4), (128, 64), (80, 3)):
            attend(dtype, head_dim, queries)


def multiply(dtype: torch.dtype, rows: int) -> None:
    """A decoder layer's products, narrow in 16 bits, and what stands around the wide ones."""
    from specpipe_kernels.triton_ops import linear, rms_norm, rope_store_kv, silu_mul

    hidden, inner, dim = 2048, 4096, 64
    x, by = torch.zeros(rows, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    weight, glu = torch.zeros(hidden, hidden, dtype=dtype), torch.zeros(2 * inner, hidden, dtype=dtype)
    rms_norm.add_rms_norm(x, x, by, 1e-5)
    silu_mul.silu_mul(torch.zeros(rows, 2 * inner, dtype=dtype))
    table, pages = torch.zeros(9, dim, dtype=dtype), torch.zeros(2, 4, 64, dim, dtype=dtype)
    positions = torch.zeros(rows, dtype=torch.int64)
    for norm in (None, torch.zeros(dim, dtype=dtype)):
        rope_store_kv.rope_store_kv(
            torch.zeros(rows, 24 * dim, dtype=dtype), table, table, positions, pages, pages, positions,
            q_heads=16, q_norm=norm, k_norm=norm,
        )  # fmt: skip
    if x.element_size() == 2:
        _, normed = linear.linear_residual(x, weight, x, by, 1e-5)
        linear.linear(normed, weight, by)
        linear.linear_glu(normed, glu)
        for bias in (None, torch.zeros(24 * dim, dtype=dtype)):
            linear.linear_rope_store_kv(
                normed, torch.zeros(24 * dim, hidden, dtype=dtype), bias, table, table, positions, pages, pages,
                positions, q_heads=16,
            )  # fmt: skip


def attend(dtype: torch.dtype, head_dim: int, queries: int) -> None:
    import specpipe_kernels as kernels

    pages = torch.zeros(9, 2, 64, head_dim, dtype=dtype)
    query = torch.zeros(2 * queries, 8, head_dim, dtype=dtype)
    tables = torch.zeros(2, 4, dtype=torch.int32)
    cu_queries = torch.tensor([0, queries, 2 * queries], dtype=torch.int32)
    starts = torch.zeros(2, dtype=torch.int64)
    index = kernels.write_index(tables, cu_queries, starts, 2 * queries, 64)
    kernels.store_kv(query[:, :2], query[:, :2], pages, pages, index)
    for options in ({}, {"window": 24, "softcap": 30.0, "sinks": torch.zeros(8, dtype=dtype)}):
        kernels.paged_attention(
            query, pages, pages, tables, cu_queries, starts, max_queries=queries, scale=0.1, **options
        )


if __name__ == "__main__":
    names = compile_only()
    compile_everything()
    sys.stdout.write(f"{len(names)} launches of {', '.join(sorted(set(names)))}\n")
