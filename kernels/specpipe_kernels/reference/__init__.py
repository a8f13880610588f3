"""Plain torch implementations: the CPU path and the oracle of the Triton kernels. No host synchronisation."""
