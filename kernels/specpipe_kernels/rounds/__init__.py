"""Triton kernels between the forward passes of a round: they gather slots, lay out tokens and commit results."""
