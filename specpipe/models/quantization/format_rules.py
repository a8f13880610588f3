"""Rules of a quantised checkpoint: the layout of each layer's tensors, and the layers that are not quantised."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from specpipe.models.quantization.layouts import Layout
from specpipe.models.quantization.name_patterns import Matcher, matches_any


class FormatConfig(BaseModel):
    """Base of the configurations: unknown keys, which formats add with each version, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class UnsupportedFormat(Exception):
    """A configuration that specpipe does not read; the message says what was found and what was expected."""


def _group_size(value: int) -> int:
    if value < -1 or value == 0:
        raise ValueError(f"{value} inputs cannot share a scale; expected a positive number, or -1 for all inputs")
    return value


GroupSize = Annotated[int, AfterValidator(_group_size)]
"""Inputs that share a scale; -1: all."""


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

    def __post_init__(self) -> None:
        """Raises UnsupportedFormat for an entry of the lists that is not a pattern."""
        for entry in (*self.ignored, *(target for rule in self.rules for target in rule.targets)):
            try:
                self.matcher(entry, "")
            except re.error as error:
                raise UnsupportedFormat(
                    f"its lists of layers have {entry!r}, which is not a regular expression ({error}); expected names "
                    "or regular expressions"
                ) from None

    def layout_of(self, module: str) -> Layout | None:
        """Returns the layout of a layer by its name in the checkpoint; None where the layer is not quantised."""
        if matches_any(self.matcher, self.ignored, module):
            return None
        return next((rule.layout for rule in self.rules if matches_any(self.matcher, rule.targets, module)), None)


def refuse_unless(key: str, found: Any, *expected: Any) -> None:
    """Raises UnsupportedFormat if a value of the configuration is none of those expected."""
    if found not in expected:
        choices = " or ".join(str(value) for value in expected)
        raise UnsupportedFormat(f"{key} is {found}; expected {choices}")
