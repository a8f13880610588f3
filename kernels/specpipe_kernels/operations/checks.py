"""Argument checks that several operations share."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.types import SamplingTensors


def named_tensors(sampling: SamplingTensors) -> dict[str, Tensor]:
    """Returns the tensors of `sampling` by the names that messages use."""
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    return {f"sampling.{name}": getattr(sampling, name) for name in names}


def check_rows(rows: int, **tensors: Tensor) -> None:
    """Raises ValueError for the first tensor whose shape is not [rows]."""
    for name, tensor in tensors.items():
        if tensor.shape != (rows,):
            raise ValueError(f"{name} {list(tensor.shape)}; expected one entry per row: [{rows}]")
