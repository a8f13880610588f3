"""Experts in mxfp4, as gpt-oss stores them (`quant_method: mxfp4`).

A module has for both weights [E, N, K] `…_blocks` uint8 [E, N, K / 32, 16], two values a byte, and `…_scales`
uint8 [E, N, K / 32]. Everything else of the model is in 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specpipe.models.quantization.format_rules import FormatConfig, FormatRules
from specpipe.models.quantization.name_patterns import transformers_entry
from specpipe.models.quantization.stored_tensors import StoredTensor

METHOD = "mxfp4"
LABEL = "MXFP4 experts"
WEIGHTS = ("gate_up_proj", "down_proj")
PARTS = ("blocks", "scales")
NAMES = frozenset(f"{weight}_{part}" for weight in WEIGHTS for part in PARTS)
"""Last parts of the tensors' names."""
_GROUP = 32  # columns that share a scale
_BLOCK = 128  # columns that are packed together on a GPU


class _Mxfp4Config(FormatConfig):
    """`quantization_config` of `quant_method: mxfp4`."""

    modules_to_not_convert: list[str] | None = None


def parse_mxfp4(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint, whose linear layers are all in 16 bits. Raises pydantic's ValidationError."""
    parsed = _Mxfp4Config.model_validate(config)
    ignored = tuple(parsed.modules_to_not_convert or ())
    return FormatRules(method=METHOD, rules=(), ignored=ignored, matcher=transformers_entry)


def expert_shapes(tensors: Mapping[str, StoredTensor]) -> dict[str, tuple[int, int, int]]:
    """Returns (E, N, K) of both weights. Raises ValueError for missing tensors, other dtypes or shapes that differ."""
    if missing := sorted(NAMES - tensors.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    shapes = {}
    for weight in WEIGHTS:
        blocks, scales = (tensors[f"{weight}_{part}"] for part in PARTS)
        if blocks.dtype != "U8" or scales.dtype != "U8" or blocks.shape != (*scales.shape, _GROUP // 2):
            raise ValueError(
                f"{weight} has blocks {blocks.dtype} {list(blocks.shape)} and scales {scales.dtype} "
                f"{list(scales.shape)}; expected U8 [E, N, K / 32, 16] and U8 [E, N, K / 32]"
            )
        shapes[weight] = scales.shape[0], scales.shape[1], scales.shape[2] * _GROUP
    return shapes


def packed_bytes(shape: tuple[int, int, int]) -> int:
    """Returns the bytes of a weight [E, N, K] on a GPU: 4 bits an entry and 4 bytes a block, K in whole blocks."""
    experts, outputs, columns = shape
    return experts * outputs * -(-columns // _BLOCK) * (_BLOCK // 2 + _BLOCK // _GROUP)
