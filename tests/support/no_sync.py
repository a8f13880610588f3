"""A dispatch mode that finds, on a CPU, operations that would make a CUDA host wait or forbid capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SYNCING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "lift_fresh",
    "is_nonzero",
    "repeat_interleave",
}


class NoSync(TorchDispatchMode):
    """Raises on every operation that waits for the device or whose shape depends on its values."""

    def __init__(self) -> None:
        super().__init__()
        self._trusted = False

    def trust(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function unguarded, for copies to the device that do not wait on a GPU."""

        def trusted(*args: Any, **kwargs: Any) -> Any:
            self._trusted = True
            try:
                return function(*args, **kwargs)
            finally:
                self._trusted = False

        return trusted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]
        )
        # A repeat_interleave with an explicit output size reads nothing back.
        sized = name == "repeat_interleave" and (kwargs or {}).get("output_size") is not None
        if not self._trusted and (masks or (name in _SYNCING and not sized)):
            raise AssertionError(f"{name} makes the host wait for the device")
        return func(*args, **(kwargs or {}))
