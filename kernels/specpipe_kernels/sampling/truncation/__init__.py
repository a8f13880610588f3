"""Truncation bounds of top-k, top-p and min-p, found without sorting rows. Begin with `truncation_bounds`."""
