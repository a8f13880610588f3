"""Generator and trainer of the embedded pair `builtin:tiny` (docs/tiny-pair.md). Runs from a checkout only.

- `corpus` generates conversations and word problems from a seed: `topics_*`, `families` and `facts` hold their content,
  `phrasing` the templates.
- `train` trains the tokenizer, the target and the draft; `evaluate` measures a pair.

The result is shipped as `specpipe/models/tiny/`. Nothing in `specpipe` may import this package.
"""
