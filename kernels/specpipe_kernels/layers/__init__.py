"""Triton kernels of a decoder layer: matrix products of few rows, attention over paged KV memory, norms, rotation."""
