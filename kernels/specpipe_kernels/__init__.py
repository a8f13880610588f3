"""Kernels of speculative decoding: one name for the Triton kernel, its torch reference, its test and its benchmark.

CUDA tensors run Triton, the rest runs plain torch (see `specpipe_kernels.backend`). Needs torch and triton only.
"""

from specpipe_kernels.attention import paged_attention, store_kv, write_index
from specpipe_kernels.fp8 import quantize_fp8
from specpipe_kernels.layers import linear, linear_glu, linear_residual, linear_rope_store_kv, rms_norm
from specpipe_kernels.logprobs import token_logprobs
from specpipe_kernels.penalties import apply_penalties, count_tokens
from specpipe_kernels.rejection_sampler import RejectionSampler
from specpipe_kernels.rounds import commit_rows, feed_rows, open_rows
from specpipe_kernels.sampling import rejection_sample, sample, sample_recovered_tokens, synthetic_rates
from specpipe_kernels.timestamp import timestamp
from specpipe_kernels.types import (
    METHODS,
    Bounds,
    Fed,
    Fp8Weight,
    Method,
    Normed,
    OpenedRows,
    Penalties,
    Purpose,
    RejectionOutput,
    Sampled,
    SamplingTensors,
    SlotTensors,
    Status,
    TokenLogprobs,
)

__all__ = [
    "METHODS",
    "Bounds",
    "Fed",
    "Fp8Weight",
    "Method",
    "Normed",
    "OpenedRows",
    "Penalties",
    "Purpose",
    "RejectionOutput",
    "RejectionSampler",
    "Sampled",
    "SamplingTensors",
    "SlotTensors",
    "Status",
    "TokenLogprobs",
    "apply_penalties",
    "commit_rows",
    "count_tokens",
    "feed_rows",
    "linear",
    "linear_glu",
    "linear_residual",
    "linear_rope_store_kv",
    "open_rows",
    "paged_attention",
    "quantize_fp8",
    "rejection_sample",
    "rms_norm",
    "sample",
    "sample_recovered_tokens",
    "store_kv",
    "synthetic_rates",
    "timestamp",
    "token_logprobs",
    "write_index",
]
