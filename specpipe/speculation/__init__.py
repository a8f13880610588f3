"""Policies: which K to speculate with, from queue depth and acceptance. Imports core only."""
