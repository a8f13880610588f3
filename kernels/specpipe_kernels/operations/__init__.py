"""Public operations: contracts, argument checks and the choice of the implementation.

Each module has the name of its operation. Nothing here imports triton: `specpipe_kernels.runtime.backend` does, when a
call needs it. Begin reading with `rejection_sample`.
"""
