"""The Python interface: `specpipe.generate` takes rows and returns a table, through the pipeline of `specpipe run`.

Imported by `specpipe/__init__.py` on first use. Begin with `generate.py`.
"""
