"""Torch references of `specpipe_kernels.sampling`."""
