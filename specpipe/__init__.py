"""Offline text generation over Arrow datasets, with speculative decoding that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specpipe.api.generate import generate

__version__ = "0.1.0"
__all__ = ["__version__", "generate"]


def __getattr__(name: str) -> object:
    """`generate` is imported when it is asked for: pyarrow, and torch and Ray behind it, stay out until then."""
    if name == "generate":
        from specpipe.api.generate import generate

        return generate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
