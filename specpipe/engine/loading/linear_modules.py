"""Linear layers of a model in quantised form: as a checkpoint stores them, or quantised here.

On a CPU weights are rounded to the values of the quantised ones and stay dense; on a GPU, and on torch's `meta` device,
layers become `QuantizedLinear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe.errors import MachineError
from specpipe.models.quantization.planned_weights import FP8_CAPABILITY
from specpipe_kernels import QuantizedWeight, dequantize, quantize_fp8


def check_fp8(device: torch.device, given: str, remedy: str) -> None:
    """Raises MachineError for a GPU without 8-bit floating point. given, remedy: parts of the message."""
    if device.type != "cuda" or (found := torch.cuda.get_device_capability(device)) >= FP8_CAPABILITY:
        return
    major, minor = FP8_CAPABILITY
    raise MachineError(
        f"{given}, and {torch.cuda.get_device_name(device)} has compute capability "
        f"{found[0]}.{found[1]}; expected {major}.{minor} or newer: {remedy}"
    )


def stays_dense(device: torch.device) -> bool:
    """Returns True where layers keep dense weights with the values of quantised ones."""
    return device.type == "cpu"


def quantizable(model: Any) -> dict[str, Any]:
    """Returns the layers that `model.quantize` applies to, by name: linear ones except the head."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Conv1D) and module is not head
    }


def quantize_linears(model: Any) -> None:
    """Quantises all `quantizable` layers of a loaded model or an outline, one after another, by `quantize_fp8`."""
    for name, module in quantizable(model).items():
        weight = weight_rows(module, module.weight.data)
        set_layer(model, name, quantize_fp8(weight))


def weight_rows(module: nn.Module, stored: Tensor) -> Tensor:
    """Returns a layer's stored weight as [outputs, inputs]; GPT-2's are the other way round."""
    return stored if isinstance(module, nn.Linear) else stored.T


def set_layer(model: nn.Module, name: str, quantized: QuantizedWeight) -> None:
    """Gives the layer of this name a quantised weight, dense on a CPU. Its bias stays."""
    module: Any = model.get_submodule(name)
    if stays_dense(quantized.values.device):
        dense = dequantize(quantized, module.weight.dtype)
        dense = dense if isinstance(module, nn.Linear) else dense.T.contiguous()
        module.weight = nn.Parameter(dense, requires_grad=False)
        return
    bias = None if module.bias is None else module.bias.data if isinstance(module.bias, nn.Parameter) else module.bias
    model.set_submodule(name, QuantizedLinear(quantized, bias))
