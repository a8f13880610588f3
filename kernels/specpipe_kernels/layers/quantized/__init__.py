"""Products with quantised weights: layouts of 4-bit values, rows of 8-bit activations, wide products."""
