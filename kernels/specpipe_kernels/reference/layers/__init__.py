"""Torch references of `specpipe_kernels.layers`."""
