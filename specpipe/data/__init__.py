"""Rows in, outputs out: formats, shards, requests and parts. Imports core, errors and pyarrow; never torch."""
