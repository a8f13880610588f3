"""Rounds: drafts, one verifying forward, rejection and commit; eagerly or as CUDA graphs, their warm-up and profile.

The engine alone imports this package, but for profiled_rounds.py; it imports all other packages of `specpipe.engine`.
Begin with `round.py`, then `round_key.py` (what selects a graph) and `graphed_rounds.py` (capture and replay).
"""
