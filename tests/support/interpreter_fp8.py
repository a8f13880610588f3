"""8-bit rounding of Triton's interpreter as on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch


@contextmanager
def exact_interpreter() -> Iterator[None]:
    """Replaces the interpreter's conversions of e4m3, which lose carries (31.5 becomes 16) and NaN (triton 3.7)."""
    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    dtypes = {tl.float32: torch.float32, tl.float16: torch.float16, tl.bfloat16: torch.bfloat16}
    dtypes[tl.float8e4nv] = torch.float8_e4m3fn
    convert = interpreter._convert_float

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source, target) or not {source, target} <= dtypes.keys():
            return convert(data, source, target, rounding)
        integers = np.frombuffer(data.tobytes(), dtype=f"int{source.primitive_bitwidth}").copy()
        values = torch.from_numpy(integers).view(dtypes[source]).float()
        if target == tl.float8e4nv:
            values = values.clamp(-448, 448)
        bits = values.to(dtypes[target]).view(getattr(torch, f"int{target.primitive_bitwidth}"))
        return bits.numpy().view(f"uint{target.primitive_bitwidth}").reshape(data.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", convert_float)
        yield
