"""Set-up of the kernels' tests: 8-bit rounding of Triton's interpreter as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.interpreter_fp8 import exact_interpreter


@pytest.fixture(autouse=True, scope="session")
def interpreter_rounds_to_fp8() -> Iterator[None]:
    """Applies to every test of kernels."""
    with exact_interpreter():
        yield
