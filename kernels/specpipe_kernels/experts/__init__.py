"""Triton kernels of mixtures of experts: routing, tokens grouped by expert, grouped products, weighted sums."""
