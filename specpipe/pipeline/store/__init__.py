"""Output folder of a run: lock, manifest, ledger of finished shards, telemetry files, and their verification.

All other packages of the pipeline import this one; it imports none of them, except the progress snapshot that it
stores. Begin with folder.py (file names, epochs), then manifest.py (identity and shards) and ledger.py (finished
shards). `verify` proves that a run is complete.
"""
