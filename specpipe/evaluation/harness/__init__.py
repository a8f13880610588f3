"""lm-eval: recording its requests, and scoring outputs with its metrics. Begin with `recording` and `replay`."""
