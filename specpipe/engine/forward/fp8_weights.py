"""A draft's weights in 8 bits: cheaper proposals from slightly other probabilities. Verification keeps outputs exact.

Weights are rounded in place, for every family and device, so that acceptance is the same wherever a pair runs; the
fused stack reads copies of one byte each where that is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specpipe.errors import MachineError
from specpipe_kernels import quantize_fp8

_LEAST = (8, 9)  # compute capability


def check_fp8(device: torch.device) -> None:
    """Raises MachineError for a GPU that has no 8-bit floating point."""
    if device.type != "cuda" or (found := torch.cuda.get_device_capability(device)) >= _LEAST:
        return
    raise MachineError(
        f"model.draft_dtype is fp8, and {torch.cuda.get_device_name(device)} has compute capability "
        f"{found[0]}.{found[1]}; expected {_LEAST[0]}.{_LEAST[1]} or newer: leave draft_dtype out"
    )


def round_to_fp8(model: nn.Module) -> None:
    """Rounds every linear projection to what `quantize_fp8` keeps: each output channel to its own scale.

    Norms, biases, embeddings (unless the head shares theirs) and experts that are no linear modules stay as they are.
    """
    from transformers.pytorch_utils import Conv1D

    for module in model.modules():
        if isinstance(module, nn.Linear):
            _round(module.weight.data)
        elif isinstance(module, Conv1D):  # GPT-2's: [inputs, outputs]
            _round(module.weight.data.T)


def _round(weight: Tensor) -> None:
    weight.copy_(quantize_fp8(weight).full)
