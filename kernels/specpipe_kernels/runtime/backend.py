"""Which implementation runs: Triton for CUDA tensors, plain torch for the rest.

Tensors of torch's `meta` device, which have no memory, stand for those of the current GPU: with them kernels are found
and compiled ahead of time (`specpipe_kernels.runtime.compile_ahead`).

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
_ROOTS = {"reference": "specpipe_kernels.reference", "triton": "specpipe_kernels"}


def backend_for(tensor: torch.Tensor) -> str:
    """ "reference" or "triton". Raises ValueError for a value of SPECPIPE_KERNELS that names neither."""
    forced = os.environ.get(VARIABLE, "")
    if not forced:
        return "triton" if tensor.is_cuda or tensor.is_meta else "reference"
    if forced not in _ROOTS:
        raise ValueError(f"{VARIABLE}={forced!r}; expected 'reference', 'triton' or nothing (choose by device)")
    return forced


def gpu_of(device: torch.device) -> torch.device | None:
    """The GPU whose properties decide how kernels are launched for tensors of `device`; None: there is none."""
    if device.type == "meta" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device if device.type == "cuda" else None


@cache
def _load(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def implementation(module: str, tensor: torch.Tensor, name: str = "") -> Callable[..., Any]:
    """Returns the function that serves `tensor`; triton is imported by this call or never.

    Args:
        module: dotted path below `specpipe_kernels`, such as "sampling.sample". The reference has the same path below
            `specpipe_kernels.reference`.
        tensor: its device decides.
        name: name of the function, if it is not the last part of `module`.
    """
    return _load(f"{_ROOTS[backend_for(tensor)]}.{module}", name or module.rpartition(".")[2])
