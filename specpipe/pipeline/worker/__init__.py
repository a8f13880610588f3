"""A worker: reads the rows of a shard, runs them through its engine and publishes the part.

Plain classes without Ray. Imports the store and the shared modules of `specpipe.pipeline`, never the driver. Begin with
`worker.py`.
"""
