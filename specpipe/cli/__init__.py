"""The command line: one module for each command, tables and displays beside them.

The top layer: may import every package. `main.py` adds the commands to the group `specpipe`. A command imports what it
needs when it runs, so that `--help` stays quick.
"""
