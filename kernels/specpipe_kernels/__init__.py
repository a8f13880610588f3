"""Kernels of speculative decoding: one name for the Triton kernel, its torch reference, its test and its benchmark.

CUDA tensors run Triton, the rest runs plain torch (see `specpipe_kernels.backend`). Needs torch and triton only.
"""

from specpipe_kernels.attention import paged_attention, store_kv, write_index
from specpipe_kernels.layers import linear, linear_glu, linear_residual, linear_rope_store_kv, rms_norm
from specpipe_kernels.rejection_sampler import RejectionSampler
from specpipe_kernels.sampling import rejection_sample, sample, sample_recovered_tokens, synthetic_rates
from specpipe_kernels.timestamp import timestamp
from specpipe_kernels.types import METHODS, Method, Normed, Purpose, RejectionOutput, Sampled, SamplingTensors, Status

__all__ = [
    "METHODS",
    "Method",
    "Normed",
    "Purpose",
    "RejectionOutput",
    "RejectionSampler",
    "Sampled",
    "SamplingTensors",
    "Status",
    "linear",
    "linear_glu",
    "linear_residual",
    "linear_rope_store_kv",
    "paged_attention",
    "rejection_sample",
    "rms_norm",
    "sample",
    "sample_recovered_tokens",
    "store_kv",
    "synthetic_rates",
    "timestamp",
    "write_index",
]
