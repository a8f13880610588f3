"""The device-resident loop: admits rows, prefills prompts, runs speculative rounds and collects their tokens.

Imports `specpipe.core`, `specpipe.models` and `specpipe_kernels`; pipeline, benchmark and evaluation import it.
Inside, imports go one way: device → state → forward → proposers → rounds → the modules of this folder.
Begin with `engine.py` (one step of the host), then `rounds/round.py` (one round on the device), then `state/`.
"""
