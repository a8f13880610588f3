"""Torch references of `specpipe_kernels.rounds`."""
