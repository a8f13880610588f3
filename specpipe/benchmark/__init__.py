"""Measurements that a user can repeat: `specpipe bench`."""
