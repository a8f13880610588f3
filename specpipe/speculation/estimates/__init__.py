"""Estimates from past rounds: acceptance by draft position, seconds of a round, and the inputs of a policy.

May import core and errors. Begin with observer.py, which turns `Evidence` into `PolicyInputs`, then
acceptance_estimate.py and cost_table.py. evidence_log.py sums engine steps; run_estimates.py combines all workers.
"""
