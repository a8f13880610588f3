"""Device functions that the sampling kernels share, and how the host splits rows into programs."""
