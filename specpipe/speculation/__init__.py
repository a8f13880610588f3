"""Speculation policies: the number of draft tokens K and the proposer, by occupancy.

May import core, errors and the cache folder. Begin with policy.py (`PolicyInputs`, `Policy`), then goodput.py, the
policy that chooses K by expected throughput, and tuner.py, which replans inside a worker.
"""
