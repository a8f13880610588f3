"""Tools for one device, independent of rows: a clock of time stamps and the capture of CUDA graphs.

Everything else in `specpipe.engine` may import this package; it imports `specpipe.core` and `specpipe_kernels` alone.
Begin with `graph_capture.py`.
"""
