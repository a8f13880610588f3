"""Offline text generation over Arrow datasets with speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specpipe.api.generate import generate

__version__ = "0.1.0"
__all__ = ["__version__", "generate"]


def __getattr__(name: str) -> object:
    """Imports `generate` on first use, so that `import specpipe` loads neither pyarrow nor torch nor Ray."""
    if name == "generate":
        from specpipe.api.generate import generate

        return generate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
