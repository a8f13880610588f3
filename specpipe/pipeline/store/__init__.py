"""The output folder of a run: its lock, manifest, ledger of finished shards, telemetry files and their verification.

Imported by all other packages of the pipeline; imports none of them but the progress snapshot that it stores. Begin
with `folder.py`.
"""
