"""The device-resident loop: admit, prefill, round after round, finish."""
