"""Output parts: completions as a table, and the sealed Parquet file of one shard. Begin with `part_file`."""
