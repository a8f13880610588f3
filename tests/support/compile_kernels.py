"""Compiles kernels for an H200, with or without a GPU, and prints how often each was compiled.

The interpreter accepts code that the compiler refuses: types that differ between branches, names that a version lacks.

`python compile_kernels.py CASES`, where CASES is JSON: a list of keyword arguments of `launch`, for the sampling
kernels; {"layers": true} stands for the others. Prints JSON: for each case a list of the kernels that were compiled for
it, which is empty where all were there already.

Runs in a process of its own: Triton's driver is replaced, and the interpreter must be off.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from specpipe_kernels import (
    MAX_FP8_ROWS,
    UNSCALED,
    Activation,
    Bounds,
    Experts,
    ExpertWeights,
    Fp8ExpertWeight,
    KVScales,
    Mxfp4Weight,
    Normed,
    Penalties,
    PrefixArgs,
    Purpose,
    QuantizedWeight,
    ReferenceTensors,
    RejectionOutput,
    SamplingTensors,
    SlotTensors,
    SuffixIndex,
    apply_penalties,
    count_tokens,
    is_fp8,
    paged_attention,
    quantize_fp8,
    rejection_sample,
    sample,
    sample_recovered_tokens,
    score_tokens,
    store_kv,
    token_logprobs,
    write_index,
)
from specpipe_kernels.experts import mix_experts, route_tokens
from specpipe_kernels.layers import linear, rms_norm, rope_store_kv, silu_mul
from specpipe_kernels.layers.dequantize import dequantize
from specpipe_kernels.layers.quantized.int4_gemm import int4_gemm
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.rounds.commit_rows import commit_rows
from specpipe_kernels.rounds.feed_rows import feed_rows
from specpipe_kernels.rounds.follow import follow
from specpipe_kernels.rounds.lookup_suffix import lookup_suffix
from specpipe_kernels.rounds.open_rows import open_rows

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
compiled: list[str] = []
shared: dict[str, int] = {}
"""Bytes of shared memory of each kernel's last launch."""


class NoDevice:
    """The part of a Triton driver that compilation needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    kernel = _run(self, *args, grid=grid, warmup=True, **kwargs)
    shared[kernel.metadata.name] = kernel.metadata.shared
    return kernel


def count(*args: Any, fn: Any, **kwargs: Any) -> None:
    compiled.append(fn.name.rpartition(".")[2])


def launch(
    *,
    rows: int = 2,
    k: int = 3,
    vocab: int = 8192,
    dtype: str = "bfloat16",
    method: str = "standard",
    index: int = 0,
    one_hot: bool = False,
    ragged: bool = False,
    top_n: int = 5,
    given: bool = False,
    **hints: bool,
) -> None:
    """Launches each sampling operation once. given: with bounds and log-sum-exps of drafting, and a bonus token."""
    long, ones = torch.zeros(rows, dtype=torch.int64), torch.ones(rows)
    sampling = SamplingTensors(ones, ones.int(), ones, ones, long, **hints)
    logits = torch.zeros(rows * (k + 1), vocab, dtype=DTYPES[dtype])
    drafts, cu_rows = torch.zeros(rows, k, dtype=torch.int64), torch.arange(rows + 1) if ragged else None
    tokens, penalties = torch.zeros(rows, 99, dtype=torch.int64), Penalties(ones, ones, ones)
    apply_penalties(logits, tokens, tokens.int(), long, long, penalties, drafts, first=min(index, k), cu_rows=cu_rows)
    count_tokens(tokens, tokens.int(), long, long, penalties, tokens[:, : k + 1])
    token_logprobs(logits, tokens[:, : k + 1].clone(), ones.int(), sampling, top_n=top_n, cu_rows=cu_rows)
    score_tokens(logits, long.repeat(k + 1))
    sample(logits[:rows], sampling, long, purpose=Purpose.DRAFT, index=index)
    rejection_sample(
        logits,
        drafts,
        ones.int(),
        long,
        sampling,
        draft_logits=None if one_hot else torch.zeros(rows, k, vocab, dtype=DTYPES[dtype]),
        draft_rows=long if ragged else None,
        cu_rows=cu_rows,
        method=method,
        synthetic_rates=torch.ones(k) if method == "synthetic" else None,
        draft_lse=torch.zeros(rows, k).double() if given else None,
        draft_bounds=Bounds(torch.zeros(rows, k), torch.zeros(rows, k, dtype=torch.int32)) if given else None,
        bonus_tokens=long if given else None,
    )
    probs = torch.zeros(rows, vocab)
    for noise in ({"seeds": long, "positions": long}, {"inverse_noise": probs}):
        sample_recovered_tokens(probs, None if one_hot else probs, long, **noise)


def launch_layers() -> None:
    """Launches every kernel except those of sampling."""
    between_forwards()
    for dtype in DTYPES.values():
        for rows in (1, 4, 33, 100, 200):
            multiply(dtype, rows)
        for head_dim, queries, rows in ((64, 1, 2), (64, 1, 40), (128, 4, 2), (128, 64, 2), (80, 3, 2)):
            attend(dtype, head_dim, queries, rows)
        for rows in (1, 24, 40, 600):
            mix(dtype, rows)


def between_forwards() -> None:
    """Launches the kernels between the forward passes of a round."""
    long, ints, ones = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32), torch.ones(2)
    table = torch.zeros(2, 4, dtype=torch.int32)
    text = torch.zeros(2, 64, dtype=torch.int64)
    stops = text[:, :3].contiguous()
    state = SlotTensors(text, long, long, long, long > 0, long > 0, stops, table, ones, ints, ones, ones, long)
    open_rows(state, long, k=3, width=4)
    for drafts, width in ((None, 2), (text[:, :3], 4)):
        feed_rows(state, long, long, drafts, shift=-1, width=width, last=63)
    for sources, draft_steps in ((2, 0), (1, 3), (ints, 2)):
        verdict = RejectionOutput(text[:, :4].contiguous(), ints, ints, ints)
        commit_rows(state, long, long, verdict, ints, sources=sources, draft_steps=draft_steps)
    for texts in (ReferenceTensors(text.int(), long, long.clone()), ReferenceTensors(text, long, None)):
        follow(text, texts, long, long, ints, k=3, vocab_size=99, min_match=1, max_match=8)
    pool = torch.zeros(16, 99, dtype=torch.int32)
    lookup_suffix(state, SuffixIndex(pool, pool, ints, long[:1]), long, long, ints, k=15, min_match=2)


def multiply(dtype: torch.dtype, rows: int) -> None:
    """Launches the products of a decoder layer, skinny in 16 bits, and the kernels around large ones."""
    hidden, inner, dim = 2048, 4096, 64
    x, by = torch.zeros(rows, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    weight, glu = torch.zeros(hidden, hidden, dtype=dtype), torch.zeros(2 * inner, hidden, dtype=dtype)
    rms_norm.add_rms_norm(x, x, by, 1e-5)
    silu_mul.silu_mul(torch.zeros(rows, 2 * inner, dtype=dtype))
    table, pages = torch.zeros(9, dim, dtype=dtype), torch.zeros(2, 4, 64, dim, dtype=dtype)
    positions = torch.zeros(rows, dtype=torch.int64)
    for memory, scales in ((pages, UNSCALED), (pages.to(torch.float8_e4m3fn), KVScales(torch.ones(4), torch.ones(4)))):
        for norm in (None, torch.zeros(dim, dtype=dtype)):
            rope_store_kv.rope_store_kv(
                torch.zeros(rows, 24 * dim, dtype=dtype), table, table, positions, memory, memory, positions,
                q_heads=16, q_norm=norm, k_norm=norm, scales=scales,
            )  # fmt: skip
        if x.element_size() == 2:
            qkv = torch.zeros(24 * dim, hidden, dtype=dtype)
            for norm in (None, torch.zeros(dim, dtype=dtype)):
                linear.linear_rope_store_kv(
                    x, qkv, None, table, table, positions, memory, memory, positions, q_heads=16, q_norm=norm,
                    k_norm=norm, scales=scales,
                )  # fmt: skip
    if x.element_size() == 2:
        qkv = torch.zeros(24 * dim, hidden, dtype=dtype)
        for stored in (lambda w: w, quantize_fp8, int4_zeros):
            out, inner_weight, heads = (stored(w) for w in (weight, glu, qkv))
            fp8 = is_fp8(out)
            rows_in = quantize_rows(x, dim) if fp8 and rows <= MAX_FP8_ROWS else x
            _, normed = linear.linear_residual(rows_in, out, x, by, 1e-5, fp8=fp8)
            linear.linear(normed, out, by)
            linear.linear_glu(normed, inner_weight, fp8=fp8)
            if isinstance(out, QuantizedWeight) and not fp8:
                dequantize(out, dtype)  # of more rows
                if rows in (33, 200):
                    int4_gemm(x, out, by)
                    int4_gemm(Normed(x, torch.ones(3, rows), 1e-5), inner_weight, glu=True)
            for bias in (None, torch.zeros(24 * dim, dtype=dtype)):
                linear.linear_rope_store_kv(
                    normed, heads, bias, table, table, positions, pages, pages, positions, q_heads=16
                )


def int4_zeros(weight: torch.Tensor) -> QuantizedWeight:
    """Returns a weight of zeros [N, K] in 4 bits."""
    n, k = weight.shape
    return QuantizedWeight(torch.zeros(n, k // 2, dtype=torch.uint8), torch.ones(k // 128, n).t(), None, (1, 128))


def mix(dtype: torch.dtype, rows: int) -> None:
    """Launches the kernels of a mixture of experts in every number format."""
    experts, hidden, inner = 8, 2048, 256
    shapes = (experts, 2 * inner, hidden), (experts, hidden, inner)
    x, by = torch.zeros(rows, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    pending = Normed(x, torch.ones(3, rows), 1e-5)
    for e, k in ((experts, 4), (128, 8)):
        router, fp8 = torch.zeros(e, hidden, dtype=dtype), e == experts
        given = pending if rows == 1 else Normed(x, None, 0.0)
        route_tokens.route_tokens(given, router, by[:e] if fp8 else None, k, normalize=True, fp8=fp8)
        route_tokens.choose_experts(torch.zeros(rows, e, dtype=dtype), pending, k, normalize=True, fp8=fp8)
    routing = route_tokens.route_tokens(
        Normed(x, None, 0.0), torch.zeros(experts, hidden, dtype=dtype), None, 4, normalize=False
    )
    for stored in (lambda *s: torch.zeros(s, dtype=dtype), mxfp4_zeros, fp8_zeros)[: 3 if x.element_size() == 2 else 1]:
        gate_up, down = (stored(*shape) for shape in shapes)
        clamped = isinstance(gate_up, Mxfp4Weight)
        biases = [torch.zeros(shape[:2], dtype=dtype) if clamped else None for shape in shapes]
        activation = Activation(clamped, 1.702, 7.0)
        all_experts = Experts(gate_up, biases[0], down, biases[1], clamped, activation)
        mix_experts.mix_experts(x, routing.ids, routing.weights, all_experts)
        fp8 = isinstance(gate_up, Fp8ExpertWeight)
        mix_experts.mix_experts_residual(x, routing.ids, routing.weights, all_experts, x, by, 1e-5, fp8=fp8)


def mxfp4_zeros(experts: int, n: int, k: int) -> ExpertWeights:
    words = torch.zeros(experts, k // 128, n, 32, dtype=torch.int16)
    return Mxfp4Weight(words, torch.zeros(experts, k // 128, n, dtype=torch.int32))


def fp8_zeros(experts: int, n: int, k: int) -> ExpertWeights:
    values = torch.zeros(experts, n, k, dtype=torch.float8_e4m3fn)
    return Fp8ExpertWeight(values, torch.ones(experts, n // 128, k // 128), (128, 128))


def attend(dtype: torch.dtype, head_dim: int, queries: int, rows: int) -> None:
    pages = torch.zeros(9, 2, 64, head_dim, dtype=dtype)
    query = torch.zeros(rows * queries, 8, head_dim, dtype=dtype)
    tables = torch.zeros(rows, 4, dtype=torch.int32)
    cu_queries = torch.arange(0, rows * queries + 1, queries, dtype=torch.int32)
    starts = torch.zeros(rows, dtype=torch.int64)
    index = write_index(tables, cu_queries, starts, rows * queries, 64)
    none = torch.zeros(rows, dtype=torch.int64)
    prefix = PrefixArgs(none, none, none[: rows // 2 + 1].clone())
    for memory, scales in ((pages, UNSCALED), (pages.to(torch.float8_e4m3fn), KVScales(torch.ones(2), torch.ones(2)))):
        store_kv(query[:, :2], query[:, :2], memory, memory, index, scales)
        odd = {"window": 24, "softcap": 30.0, "sinks": torch.zeros(8, dtype=dtype)}
        for options in ({}, odd, {"prefix": prefix, "fp8": True}):
            paged_attention(
                query, memory, memory, tables, cu_queries, starts, max_queries=queries, scale=0.1, scales=scales,
                **options,
            )  # fmt: skip
            if dtype == torch.bfloat16 and rows == 2:  # Triton's pipeline must keep two pages in flight
                page = 64 * head_dim * memory.element_size()
                assert shared["_paged_attention_kernel"] >= 2 * 2 * page, shared


def main() -> None:
    report = []
    for case in json.loads(sys.argv[1]):
        compiled.clear()
        launch_layers() if case.pop("layers", False) else launch(**case)
        report.append(sorted(compiled))
    print(json.dumps(report))


if __name__ == "__main__":
    os.environ["SPECPIPE_KERNELS"] = "triton"
    driver.set_active(NoDevice())
    _run = jit.JITFunction.run
    jit.JITFunction.run = compile_only
    jit.knobs.runtime.jit_post_compile_hook = count
    main()
