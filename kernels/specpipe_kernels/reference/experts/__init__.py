"""Torch references of `specpipe_kernels.experts`."""
