"""specpipe from Python: rows in, a table out, through the same pipeline as `specpipe run`."""
