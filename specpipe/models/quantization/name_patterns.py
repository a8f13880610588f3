"""Lists of module names in quantised checkpoints, with the matching rules of each format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

Matcher = Callable[[str, str], bool]
"""Arguments: an entry of the list and a module's name in the checkpoint."""


def matches_any(matcher: Matcher, entries: Sequence[str], module: str) -> bool:
    """Returns True if an entry matches the module."""
    return any(matcher(entry, module) for entry in entries)


def compressed_tensors_entry(entry: str, module: str) -> bool:
    """An exact name, `re:` and a pattern from the name's beginning, or the class Linear, which every layer here has."""
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return entry in (module, "Linear")


def transformers_entry(entry: str, module: str) -> bool:
    """A name or pattern up to the end of a part of the name from its beginning, or the end of the name."""
    return re.match(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))", module) is not None or module.endswith(entry)


def modelopt_entry(entry: str, module: str) -> bool:
    """A wildcard over the whole name; without one also a module that contains the layer."""
    return fnmatchcase(module, entry) or module == entry or module.startswith(f"{entry}.")


def substring_entry(entry: str, module: str) -> bool:
    """A part of the name (AWQ)."""
    return entry in module
