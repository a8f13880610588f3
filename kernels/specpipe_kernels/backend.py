"""Which implementation runs: Triton for CUDA tensors, plain torch for the rest.

Tensors of torch's `meta` device, which have no memory, stand for those of the current GPU: with them kernels are found
and compiled ahead of time (`specpipe_kernels.compile_ahead`).

The environment variable SPECPIPE_KERNELS=reference|triton forces one for every call. With TRITON_INTERPRET=1, set
before triton is first imported, `triton` runs on CPU tensors too (slowly: for tests).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

VARIABLE = "SPECPIPE_KERNELS"
_PACKAGES = {"reference": "reference", "triton": "triton_ops"}


def backend_for(tensor: torch.Tensor) -> str:
    """ "reference" or "triton". Raises ValueError for a value of SPECPIPE_KERNELS that names neither."""
    forced = os.environ.get(VARIABLE, "")
    if not forced:
        return "triton" if tensor.is_cuda or tensor.is_meta else "reference"
    if forced not in _PACKAGES:
        raise ValueError(f"{VARIABLE}={forced!r}; expected 'reference', 'triton' or nothing (choose by device)")
    return forced


def gpu_of(device: torch.device) -> torch.device | None:
    """The GPU whose properties decide how kernels are launched for tensors of `device`; None: there is none."""
    if device.type == "meta" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device if device.type == "cuda" else None


@cache
def _load(package: str, module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f"specpipe_kernels.{package}.{module}"), name)
    return function


def implementation(name: str, tensor: torch.Tensor, *, module: str = "") -> Callable[..., Any]:
    """The function `name` of `module` (of the same name if not given) in the package that serves `tensor`.

    Triton is imported here or never.
    """
    return _load(_PACKAGES[backend_for(tensor)], module or name, name)
