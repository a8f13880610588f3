"""The state of rows: slots and KV pages on the device, their owners, queues and results on the host.

`forward`, `proposers`, `rounds` and the engine import this package; it runs no model.
Begin with `slot_state.py` (device) and `scheduler.py` (host): together they hold all that a row is between two rounds.
"""
