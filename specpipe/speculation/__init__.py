"""Policies: which K to speculate with, from queue depth, acceptance and what rounds take. Imports core only."""
