"""Set-up of the kernels' tests: Triton's interpreter rounds to 8 bits as a GPU, and does less work twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.interpreter_fp8 import exact_interpreter
from support.interpreter_speed import patch_once_per_launch


@pytest.fixture(autouse=True, scope="session")
def interpreter() -> Iterator[None]:
    """Applies to every test of kernels."""
    with exact_interpreter(), patch_once_per_launch():
        yield
