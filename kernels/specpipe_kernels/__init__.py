"""Kernels of speculative decoding: one name for the Triton kernel, its torch reference, its test and its benchmark.

CUDA tensors run Triton, the rest runs plain torch (`specpipe_kernels.runtime.backend`). Needs torch and triton only.
"""

from specpipe_kernels.classical.rejection_sampler import RejectionSampler
from specpipe_kernels.experts.pack_mxfp4 import pack_mxfp4, unpack_mxfp4
from specpipe_kernels.layers.quantize_fp8 import quantize_fp8
from specpipe_kernels.layers.quantized.int4_layout import pack_int4, with_scales_by_group
from specpipe_kernels.operations.experts import mix_experts, mix_experts_residual, route_tokens
from specpipe_kernels.operations.linear import (
    add_rms_norm,
    linear,
    linear_glu,
    linear_residual,
    linear_rope_store_kv,
    rms_norm,
    rms_norm_fp8,
    rope_store_kv,
    with_dense_copy,
)
from specpipe_kernels.operations.lookup_suffix import lookup_suffix
from specpipe_kernels.operations.paged_attention import paged_attention, store_kv, write_index
from specpipe_kernels.operations.penalties import apply_penalties, count_tokens
from specpipe_kernels.operations.rejection_sample import rejection_sample, synthetic_rates
from specpipe_kernels.operations.round_rows import commit_rows, feed_rows, follow, open_rows
from specpipe_kernels.operations.sample import sample
from specpipe_kernels.operations.sample_recovered_tokens import sample_recovered_tokens
from specpipe_kernels.operations.score_tokens import score_tokens
from specpipe_kernels.operations.timestamp import timestamp
from specpipe_kernels.operations.token_logprobs import token_logprobs
from specpipe_kernels.reference.layers.dequantize import dequantize
from specpipe_kernels.types import (
    MAX_DRAFTS,
    MAX_MATCH,
    METHODS,
    NEIGHBOURS,
    OCCURRENCES,
    SUFFIX_TOKENS,
    UNSCALED,
    Bounds,
    Followed,
    ForwardTokens,
    KVScales,
    Method,
    OpenedRows,
    Penalties,
    PrefixArgs,
    Purpose,
    ReferenceTensors,
    RejectionOutput,
    Sampled,
    SamplingTensors,
    SlotTensors,
    Status,
    SuffixIndex,
    TokenLogprobs,
    TokenScores,
)
from specpipe_kernels.weights import (
    MAX_FP8_ROWS,
    Activation,
    Experts,
    ExpertWeights,
    Fp8ExpertWeight,
    Fp8Rows,
    Mxfp4Weight,
    Normed,
    QuantizedWeight,
    Routing,
    Weight,
    is_fp8,
)

__all__ = [
    "MAX_DRAFTS",
    "MAX_FP8_ROWS",
    "MAX_MATCH",
    "METHODS",
    "NEIGHBOURS",
    "OCCURRENCES",
    "SUFFIX_TOKENS",
    "UNSCALED",
    "Activation",
    "Bounds",
    "ExpertWeights",
    "Experts",
    "Followed",
    "ForwardTokens",
    "Fp8ExpertWeight",
    "Fp8Rows",
    "KVScales",
    "Method",
    "Mxfp4Weight",
    "Normed",
    "OpenedRows",
    "Penalties",
    "PrefixArgs",
    "Purpose",
    "QuantizedWeight",
    "ReferenceTensors",
    "RejectionOutput",
    "RejectionSampler",
    "Routing",
    "Sampled",
    "SamplingTensors",
    "SlotTensors",
    "Status",
    "SuffixIndex",
    "TokenLogprobs",
    "TokenScores",
    "Weight",
    "add_rms_norm",
    "apply_penalties",
    "commit_rows",
    "count_tokens",
    "dequantize",
    "feed_rows",
    "follow",
    "is_fp8",
    "linear",
    "linear_glu",
    "linear_residual",
    "linear_rope_store_kv",
    "lookup_suffix",
    "mix_experts",
    "mix_experts_residual",
    "open_rows",
    "pack_int4",
    "pack_mxfp4",
    "paged_attention",
    "quantize_fp8",
    "rejection_sample",
    "rms_norm",
    "rms_norm_fp8",
    "rope_store_kv",
    "route_tokens",
    "sample",
    "sample_recovered_tokens",
    "score_tokens",
    "store_kv",
    "synthetic_rates",
    "timestamp",
    "token_logprobs",
    "unpack_mxfp4",
    "with_dense_copy",
    "with_scales_by_group",
    "write_index",
]
