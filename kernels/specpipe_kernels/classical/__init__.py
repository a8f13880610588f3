"""The interface of vLLM's V1 rejection sampler, on top of these kernels."""
