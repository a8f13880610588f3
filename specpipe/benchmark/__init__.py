"""Measurements behind `specpipe bench`: kernels, the engine without a pipeline, and policies.

`synthetic_engine` builds an engine with random weights and synthetic acceptance; `decode_throughput`,
`policy_comparison` and `start_up_time` measure it. `transformers_comparison` measures the embedded pair.
May import the engine, models, speculation and kernels; only `specpipe.cli` imports it.
"""
