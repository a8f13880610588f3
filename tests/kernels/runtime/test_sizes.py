"""Host arithmetic equals Triton's own `cdiv` and `next_power_of_2`."""

from __future__ import annotations

import pytest
import triton

from specpipe_kernels.runtime.sizes import cdiv, power_of_2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 31, 32, 33, 2047, 2048, 128256])
def test_sizes_equal_tritons_own(n: int) -> None:
    assert power_of_2(n) == triton.next_power_of_2(n)
    for size in (1, 7, 32, 128256):
        assert cdiv(n, size) == triton.cdiv(n, size)
