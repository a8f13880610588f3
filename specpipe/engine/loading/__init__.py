"""Models with quantised weights: read from quantised checkpoints, or quantised at load. Begin with `load_weights`."""
