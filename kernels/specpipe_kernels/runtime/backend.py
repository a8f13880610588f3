"""Choice of the implementation: Triton for CUDA tensors, plain torch for the rest.

Tensors of torch's `meta` device, which have no memory, stand for those of the current GPU: they are used to compile
kernels ahead of time (`specpipe_kernels.runtime.compile_ahead`).

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
    """Returns "reference" or "triton". Raises ValueError for any other value of SPECPIPE_KERNELS."""
    forced = os.environ.get(VARIABLE, "")
    if not forced:
        return "triton" if tensor.is_cuda or tensor.is_meta else "reference"
    if forced not in _ROOTS:
        raise ValueError(f"{VARIABLE}={forced!r}; expected 'reference', 'triton', or unset to choose by device")
    return forced


def gpu_of(device: torch.device) -> torch.device | None:
    """Returns the GPU whose properties decide the launch of kernels for tensors of `device`, or None without a GPU."""
    if device.type == "meta" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device if device.type == "cuda" else None


@cache
def processors(device: torch.device) -> int:
    """Returns the number of streaming multiprocessors for tensors of `device`; without a GPU that of an H200."""
    gpu = gpu_of(device)
    return 132 if gpu is None else int(torch.cuda.get_device_properties(gpu).multi_processor_count)


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
