"""Triton kernels that draw and verify tokens; each has a torch reference of the same name in `reference.sampling`."""
