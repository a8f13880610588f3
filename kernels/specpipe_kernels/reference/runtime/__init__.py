"""Torch references of `specpipe_kernels.runtime`."""
