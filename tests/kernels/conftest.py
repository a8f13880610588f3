"""Without a GPU the Triton kernels run in Triton's interpreter; it must be chosen before a kernel is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
