"""Speculative decoding policies: the number of draft tokens K and the proposer for every number of running rows.

May import core and errors. `estimates` holds what past rounds show, `policies` the rules that choose
K from it, and tuner.py applies a policy inside a worker. Begin with policies/policy.py, then estimates/observer.py.
"""
