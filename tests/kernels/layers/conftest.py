"""Fixtures of tests that run for a kernel and for its torch reference alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from specpipe_kernels.layers.paged_attention import paged_attention as triton_kernel
from specpipe_kernels.reference.layers.paged_attention import paged_attention as reference


@pytest.fixture(params=[reference, triton_kernel], ids=["reference", "triton"])
def kernel(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """`paged_attention`."""
    function: Callable[..., Tensor] = request.param
    return function
