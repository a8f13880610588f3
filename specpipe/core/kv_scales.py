"""Scales of KV pages in 8 bits, as messages and the manifest hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class LayerScales(NamedTuple):
    """Scales of one layer: an entry of a page times the scale of its KV head is a key or a value."""

    k: tuple[float, ...]
    """One for each KV head, of keys."""
    v: tuple[float, ...]
    """One for each KV head, of values."""


ModelScales = tuple[LayerScales, ...]
"""Scales of a model's layers, in their order."""
KVScaleTable = Mapping[str, ModelScales]
"""Scales of the models of a run, by role, name, revision and format; empty for pages in the models' own dtype."""
