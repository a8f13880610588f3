"""Models: sources, checks of what can be served, loading, tokenizers, and the files of the embedded pair.

Begin with `source` (names to local folders), then `loader` and `tokenizer`. Imported by engine, pipeline, benchmark and
evaluation. Imports core and errors.
"""
