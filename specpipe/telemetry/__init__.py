"""What happened, beside the outputs: shard records, the timeline and the summary. Imports core only."""
