"""Rules that choose the number of draft tokens K and the proposer.

May import core, errors and speculation.estimates. Begin with policy.py (the protocol) and fixed.py (the shortest rule),
then goodput.py, the default; exploration.py adds its trial rounds. `make_policy` maps a job's `speculation.policy` to a
rule.
"""
