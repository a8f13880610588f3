"""Kernels of `rejection_sample`: scan and accept, block verification, the draw of the final token."""
