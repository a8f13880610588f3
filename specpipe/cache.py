"""Where specpipe keeps what only saves time: nothing is lost with it."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """SPECPIPE_CACHE, or specpipe/ in XDG_CACHE_HOME, by default ~/.cache."""
    if own := os.environ.get("SPECPIPE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "specpipe"
