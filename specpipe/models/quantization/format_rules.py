"""Rules of a quantised checkpoint: the layout of each layer's tensors, and the layers that are not quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from specpipe.models.quantization.layouts import Layout
from specpipe.models.quantization.name_patterns import Matcher, matches_any


class FormatConfig(BaseModel):
    """Base of the configurations: unknown keys, which formats add with each version, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class UnsupportedFormat(Exception):
    """A configuration that specpipe does not read; the message says what was found and what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutRule:
    """A layout and the layers that have it."""

    targets: tuple[str, ...]
    layout: Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatRules:
    """A checkpoint's format."""

    method: str
    """Name of the format, such as "compressed-tensors"."""
    rules: tuple[LayoutRule, ...]
    """The first whose targets match a layer applies."""
    ignored: tuple[str, ...] = ()
    """Layers that are not quantised."""
    matcher: Matcher
    """Matching of targets and ignored layers."""

    def layout_of(self, module: str) -> Layout | None:
        """Returns the layout of a layer by its name in the checkpoint; None where the layer is not quantised."""
        if matches_any(self.matcher, self.ignored, module):
            return None
        return next((rule.layout for rule in self.rules if matches_any(self.matcher, rule.targets, module)), None)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All layouts of the checkpoint."""
        return tuple(rule.layout for rule in self.rules)


def refuse_unless(key: str, found: Any, *expected: Any) -> None:
    """Raises UnsupportedFormat if a value of the configuration is none of those expected."""
    if found not in expected:
        choices = " or ".join(str(value) for value in expected)
        raise UnsupportedFormat(f"{key} is {found}; expected {choices}")
