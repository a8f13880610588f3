"""Quantised checkpoints: formats, contents of weight files, and conversion to one kind of weight.

`inspect_checkpoint` reads configuration and headers, no weights and no torch; `quantized_weight` converts the tensors
of one layer.
"""
