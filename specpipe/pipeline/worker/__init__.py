"""A worker: reads the rows of a shard, runs them through its engine and publishes the part.

Plain classes without Ray; imports the store and the messages, never the driver. Begin with `worker.py`.
"""
