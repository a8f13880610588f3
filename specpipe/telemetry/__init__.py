"""Telemetry: measurements of a run, beside its outputs.

`ShardRecord` is one flat row per published shard, made by `ShardMeter` from engine steps; `ShardLog` collects them, and
`summarise` makes summary.json of them. `TimelineInterval` is one worker's second, made by `TimelineSampler`. `METRICS`
lists the Prometheus metrics. Imports the vocabulary only. Begin with shard_record.py.
"""
