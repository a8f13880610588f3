"""One packed forward of a model over its KV pages: attention, fused or compiled layers, prefill, edits of logits.

`proposers`, `rounds` and the engine import this package; it imports `device` and `state`.
Begin with `model_runner.py`; `attention_interface.py` is where transformers models call specpipe's attention.
"""
