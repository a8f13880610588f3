"""Versions of the software that a run's figures depend on."""

from __future__ import annotations

import platform
from importlib import metadata

from specpipe import __version__


def versions() -> dict[str, str]:
    """Returns the versions of specpipe, Python and the main dependencies, without importing any."""
    found = {"specpipe": __version__, "python": platform.python_version()}
    for package in ("torch", "triton", "transformers", "ray", "pyarrow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
