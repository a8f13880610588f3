"""Plain torch implementations: the CPU path and the oracle of the Triton kernels, without host synchronisation.

A reference has the path of its Triton module: `reference.sampling.sample` mirrors `sampling.sample`.
"""
