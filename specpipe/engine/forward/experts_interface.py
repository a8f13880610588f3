"""Experts of transformers' mixtures through `mix_experts`: any routing and number of tokens, in a captured graph.

transformers calls experts of some fifty families through one interface, as it calls attention. Routing stays in the
family's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specpipe_kernels import Activation, Experts, ExpertWeights, Fp8ExpertWeight, Mxfp4Weight, mix_experts

EXPERTS_NAME = "specpipe"
FP8_BLOCK = 128
"""Rows and columns of a block of 8-bit weights."""
_SILU = ("SiLU", "SiLUActivation")


def use_own_experts(model: nn.Module) -> int:
    """Makes all experts of a model run through `mix_experts`; returns the number of modules, 0 if it stays as it is.

    It stays as it is where one module has another activation, no gate, or a norm behind its experts.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    modules = list(experts_modules(model).values())
    made = [experts_of(module) for module in modules]
    if not modules or None in made:
        return 0
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, _experts_forward)
    for module, experts in zip(modules, made, strict=True):
        module.experts = experts
        module.config._experts_implementation = EXPERTS_NAME
    return len(modules)


def set_weights(module: Any, gate_up: ExpertWeights, down: ExpertWeights) -> None:
    """Replaces the dense weights of transformers' experts module by quantised ones, [E, 2 I, H] and [E, H, I].

    They become buffers. The module runs once `use_own_experts` has been called.
    """
    del module.gate_up_proj, module.down_proj
    for name, weight in (("gate_up", gate_up), ("down", down)):
        for part, tensor in enumerate(_stored(weight)):
            module.register_buffer(f"{name}_{part}", tensor, persistent=False)
    module.quantized = gate_up, down


def experts_of(module: Any) -> Experts | None:
    """Returns the weights of transformers' experts module, or None if `mix_experts` cannot compute them.

    Transposed weights are stored anew, and the module's own become views of them.
    """
    if not supports(module):
        return None
    biases = [module.gate_up_proj_bias.data, module.down_proj_bias.data] if module.has_bias else [None, None]
    gate_up, down = module.quantized if hasattr(module, "quantized") else _dense_weights(module)
    activation = _activation_of(module)
    assert activation is not None
    return Experts(gate_up, biases[0], down, biases[1], not module.is_concatenated, activation)


def supports(module: Any) -> bool:
    """Returns True if `mix_experts` computes transformers' experts module."""
    post_norm = getattr(module, "has_post_expert_norm", False)
    return bool(module.has_gate) and not post_norm and _activation_of(module) is not None


def _dense_weights(module: Any) -> tuple[Tensor, Tensor]:
    """Returns [E, 2 I, H] and [E, H, I], contiguous."""
    gate_up, down = module.gate_up_proj, module.down_proj
    if not module.is_transposed:
        return gate_up.data, down.data
    for parameter in (gate_up, down):
        parameter.data = parameter.data.transpose(1, 2).contiguous().transpose(1, 2)
    return gate_up.data.transpose(1, 2), down.data.transpose(1, 2)


def experts_modules(model: nn.Module) -> dict[str, Any]:
    """Returns transformers' experts modules of a model by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "is_transposed") and hasattr(module, "has_gate")
    }


def _activation_of(module: Any) -> Activation | None:
    """Returns the activation of an experts module; None for one that `mix_experts` does not have."""
    from transformers.integrations.moe import _default_apply_gate

    if type(module)._apply_gate is _default_apply_gate:
        return Activation(False) if type(module.act_fn).__name__ in _SILU else None
    if type(module).__name__ == "GptOssExperts":
        return Activation(True, float(module.alpha), float(module.limit))
    return None


def _experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [M, H], top_k_index and top_k_weights [M, k] → [M, H], as transformers expects."""
    experts: Experts = module.experts
    activation = experts.activation
    result: Tensor = _mix_experts(
        hidden_states,
        top_k_index,
        top_k_weights,
        _stored(experts.gate_up),
        experts.gate_up_bias,
        _stored(experts.down),
        experts.down_bias,
        experts.interleaved,
        activation.clamped,
        activation.alpha,
        activation.limit,
    )
    return result


def _stored(weight: ExpertWeights) -> list[Tensor]:
    """Returns the tensors of expert weights; an operation of torch takes no other types."""
    return [weight] if isinstance(weight, Tensor) else [part for part in weight if isinstance(part, Tensor)]


def _weight(stored: Sequence[Tensor]) -> ExpertWeights:
    """Returns the weights of which these are the tensors."""
    if len(stored) == 1:
        return stored[0]
    if stored[0].dtype == torch.int16:
        return Mxfp4Weight(*stored)
    values, scale = stored
    return Fp8ExpertWeight(values, scale, scale_block(values, scale))


def scale_block(values: Tensor, scale: Tensor) -> tuple[int, int]:
    """Returns the rows and columns that share a scale: (1, K), (1, 128) or (128, 128). values [E, N, K]."""
    rows = 1 if scale.shape[1] == values.shape[1] else FP8_BLOCK
    return rows, values.shape[2] if rows == 1 and scale.shape[2] == 1 else FP8_BLOCK


# One opaque operation to torch.compile, which would specialise grouped products to numbers of tokens.
@torch.library.custom_op("specpipe::mix_experts", mutates_args=())
def _mix_experts(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up: Sequence[Tensor],
    gate_up_bias: Tensor | None,
    down: Sequence[Tensor],
    down_bias: Tensor | None,
    interleaved: bool,
    clamped: bool,
    alpha: float,
    limit: float,
) -> Tensor:
    experts = Experts(
        _weight(gate_up), gate_up_bias, _weight(down), down_bias, interleaved, Activation(clamped, alpha, limit)
    )
    return mix_experts(x, expert_ids.to(torch.int32), weights.to(torch.float32), experts)


@_mix_experts.register_fake
def _(x: Tensor, *_args: Any) -> Tensor:
    return torch.empty_like(x)
