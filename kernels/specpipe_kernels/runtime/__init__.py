"""How kernels are chosen, compiled, launched and timed."""
