"""A run's outputs in the formats of other programs: `specpipe convert RUN`. Begin with `export_run`."""
