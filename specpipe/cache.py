"""Folder of cached files. Deleting it loses time, never results."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns SPECPIPE_CACHE, or the folder specpipe in XDG_CACHE_HOME (by default ~/.cache)."""
    if own := os.environ.get("SPECPIPE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "specpipe"
