"""Commands of `specpipe bench`."""
