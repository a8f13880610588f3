"""Cache of measured round costs of earlier runs: one small file for each hardware and pair of models."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specpipe import __version__
from specpipe.cache import cache_folder
from specpipe.speculation.estimates.round_costs import RoundCosts

log = logging.getLogger(__name__)


MIN_ROUNDS = 100
"""Measured rounds of a run from which its costs are stored: the first rounds are no measure of later ones."""


class CostCache:
    """Round costs of one pair of models. A file that cannot be read or written causes a warning only."""

    def __init__(self, pair: Mapping[str, Any], folder: Path | None = None) -> None:
        """`pair`: settings that round costs depend on besides hardware, such as model revisions, dtypes and method."""
        self._pair = {**pair, "version": __version__}
        self._folder = (folder or cache_folder()) / "costs"

    def _path(self, hardware: str) -> Path:
        """Returns the file of one hardware; its name is a hash of the settings."""
        key = json.dumps({**self._pair, "hardware": hardware}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def load(self, hardware: str) -> RoundCosts:
        """Returns the costs measured on this hardware, as a prior; without any, costs without measurements."""
        path = self._path(hardware)
        try:
            return RoundCosts.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s holds no round costs that this version can read and is ignored: %s", path, error)
        return RoundCosts()

    def save(self, costs: Mapping[str, RoundCosts]) -> None:
        """Replaces each hardware's file atomically: of two runs that end together, one file remains."""
        for hardware, known in costs.items():
            if known.rounds >= MIN_ROUNDS:
                self._save(self._path(hardware), known)

    @staticmethod
    def _save(path: Path, costs: RoundCosts) -> None:
        """Writes one file atomically, or logs a warning."""
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".costs-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(costs.to_json(), file)
            os.replace(temporary, path)
        except OSError as error:
            log.warning("round costs cannot be written to %s: %s", path, error)
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)
