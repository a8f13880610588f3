"""Sources of draft tokens, one file each, behind one protocol.

`rounds` and the engine import this package; it imports `state` and `forward`.
Begin with `proposer.py` (the protocol); a new proposer is a file here and a line in `make_proposers.py`.
"""
