"""Estimates from past rounds: acceptance by draft position, seconds of a round, and the inputs of a policy.

May import core and errors. Begin with round_model.py, the terms of a round's seconds, then round_costs.py, which fits
their prices, and acceptance.py. observer.py turns `Evidence`, which evidence_log.py sums from engine steps, into
`PolicyInputs`; run_estimates.py combines all workers.
"""
