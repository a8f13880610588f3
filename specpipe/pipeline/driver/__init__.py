"""The driver: hands shards to workers, retries what failed, replaces workers that died. It never handles a token.

Imports only the messages and failures of `specpipe.pipeline`, never a worker, the output folder or Ray. Begin with
`driver.py`.
"""
