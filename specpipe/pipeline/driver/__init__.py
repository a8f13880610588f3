"""The driver: hands shards to workers, retries what failed and replaces workers that died. It never handles a token.

Imports only the shared modules of `specpipe.pipeline` (messages, failures, logs), never a worker, the output folder or
Ray. Begin with `driver.py`.
"""
