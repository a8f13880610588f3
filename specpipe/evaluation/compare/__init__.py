"""Comparison of two runs or two sets of lm-eval scores: `specpipe compare`. Begin with `compare_paths`."""
