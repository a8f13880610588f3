"""What rounds took in earlier runs: one small file for each hardware and pair, in the user's cache folder."""

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
from specpipe.speculation.cost_table import CostTable

log = logging.getLogger(__name__)


class CostCache:
    """Tables of one pair. A file that cannot be read or written costs a line in the log and nothing else."""

    def __init__(self, pair: Mapping[str, Any], folder: Path | None = None) -> None:
        """`pair`: what rounds depend on besides hardware: model revisions, types, how rows are verified."""
        self._pair = {**pair, "version": __version__}
        self._folder = (folder or cache_folder()) / "costs"

    def _path(self, hardware: str) -> Path:
        key = json.dumps({**self._pair, "hardware": hardware}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def load(self, hardware: str) -> CostTable:
        """Empty where nothing is known."""
        path = self._path(hardware)
        try:
            return CostTable.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s holds no costs of rounds and is passed over: %s", path, error)
        return CostTable()

    def save(self, tables: Mapping[str, CostTable]) -> None:
        """Replaces what is there, whole: two runs that end together leave one of both."""
        for hardware, table in tables.items():
            if table:
                self._save(self._path(hardware), table)

    @staticmethod
    def _save(path: Path, table: CostTable) -> None:
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".costs-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(table.to_json(), file)
            os.replace(temporary, path)
        except OSError as error:
            log.warning("costs of rounds cannot be kept in %s: %s", path, error)
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)
