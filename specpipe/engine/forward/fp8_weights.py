"""Rounding of a draft model's weights to 8 bits. Verification keeps outputs exact; only acceptance changes.

Weights are rounded in place, for every family and device, so that acceptance is the same wherever a pair runs. The
fused stack reads copies of one byte each where that is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specpipe.errors import MachineError
from specpipe_kernels import dequantize, quantize_fp8

_MIN_COMPUTE_CAPABILITY = (8, 9)


def check_fp8(device: torch.device) -> None:
    """Raises MachineError for a GPU without 8-bit floating point."""
    if device.type != "cuda" or (found := torch.cuda.get_device_capability(device)) >= _MIN_COMPUTE_CAPABILITY:
        return
    major, minor = _MIN_COMPUTE_CAPABILITY
    raise MachineError(
        f"model.draft_dtype is fp8, and {torch.cuda.get_device_name(device)} has compute capability "
        f"{found[0]}.{found[1]}; expected {major}.{minor} or newer: leave draft_dtype out"
    )


def round_to_fp8(model: nn.Module) -> None:
    """Rounds every linear projection in place to the values of `quantize_fp8`, with one scale for each output channel.

    Norms, biases, embeddings (unless the head shares them) and experts that are no linear modules stay as they are.
    """
    from transformers.pytorch_utils import Conv1D

    for module in model.modules():
        if isinstance(module, nn.Linear):
            _round_weight(module.weight.data)
        elif isinstance(module, Conv1D):  # GPT-2's weights are [inputs, outputs]
            _round_weight(module.weight.data.T)


def _round_weight(weight: Tensor) -> None:
    """Rounds a weight [outputs, inputs] in place."""
    weight.copy_(dequantize(quantize_fp8(weight), weight.dtype))
