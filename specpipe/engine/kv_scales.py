"""Scales of KV pages in 8 bits: given, read from the checkpoint, or measured on prompts.

Measured scales are powers of two. A number in floating point then keeps its rounding under any scale, but where it
overflows or becomes subnormal: scales need no more precision than that, and small errors of measurement change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from specpipe.core import KVScaleTable, LayerScales, ModelScales
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.errors import ModelError

LARGEST = 448.0  # of float8_e4m3fn
HEADROOM = 2
"""Entries may become at least so many times as large as the largest measured one; those that are 2^14 times smaller
are still normal numbers."""
MEASURED_PROMPTS = 8
MEASURED_TOKENS = 256
"""Tokens of a prompt that are measured, at most: a CPU takes a second for 2,048 tokens of 100 million parameters."""


def fix_kv_scales(
    runners: Sequence[ModelRunner], keys: Sequence[str], given: KVScaleTable, prompts: Sequence[Sequence[int]]
) -> None:
    """Sets the scales of runners with pages in 8 bits.

    keys: of each runner's model in a table. given: scales of earlier starts, used where they are of the same model.
    Else the checkpoint's are used, or they are measured on the prompts (token ids). Raises ModelError for scales of a
    checkpoint that do not fit its KV heads.
    """
    for key, runner in zip(keys, runners, strict=True):
        if runner.kv_scales:
            runner.set_kv_scales(given.get(key) or _stored_scales(runner) or _measured_scales(runner, prompts))


def kv_scale_table(runners: Sequence[ModelRunner], keys: Sequence[str]) -> KVScaleTable:
    """Returns the scales of all runners with pages in 8 bits. keys: of each runner's model."""
    return {key: runner.kv_scales for key, runner in zip(keys, runners, strict=True) if runner.kv_scales}


def _stored_scales(runner: ModelRunner) -> ModelScales | None:
    """Returns the scales that the checkpoint has, one for each tensor or KV head; None where a layer has none.

    Raises ModelError for another number of scales.
    """
    found = []
    for layer, (module, heads) in enumerate(runner.attention_heads()):
        buffers = dict(module.named_buffers(recurse=False))
        scales = {name: buffers[name] for name in ("k_scale", "v_scale") if name in buffers}
        for name, scale in scales.items():
            if scale.numel() not in (1, heads):
                raise ModelError(
                    f"{name} of attention layer {layer} has {scale.numel()} entries; expected 1, or {heads} for as "
                    "many KV heads; correct the checkpoint or leave model.kv_dtype out"
                )
        if len(scales) < 2:
            return None
        found.append(LayerScales(*(_positive(scale, heads) for scale in scales.values())))
    return tuple(found)


def _positive(scale: torch.Tensor, heads: int) -> tuple[float, ...]:
    values = scale.float().expand(heads).tolist()
    return tuple(value if value > 0 and math.isfinite(value) else 1.0 for value in values)


def _measured_scales(runner: ModelRunner, prompts: Sequence[Sequence[int]]) -> ModelScales:
    length = min(MEASURED_TOKENS, runner.context_length)
    usable = [prompt[:length] for prompt in prompts if prompt and max(prompt) < runner.vocab_size]
    layers = runner.largest_kv(usable[:MEASURED_PROMPTS])
    return tuple(LayerScales(*(tuple(map(_scale_for, largest)) for largest in layer)) for layer in layers)


def _scale_for(largest: float) -> float:
    """Returns the smallest power of two that leaves HEADROOM above this entry; 1 without one."""
    if not largest > 0 or not math.isfinite(largest):
        return 1.0
    return float(2.0 ** math.ceil(math.log2(largest * HEADROOM / LARGEST)))
