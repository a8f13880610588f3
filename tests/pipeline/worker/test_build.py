"""Tests of a worker's imports before its models are loaded."""

import gc
import subprocess
import sys
from types import ModuleType

import pytest

from specpipe.pipeline.worker.build import _import_libraries

IMPORTS = """
import gc
from specpipe.pipeline.worker.build import _import_libraries
_import_libraries()
print(gc.isenabled(), gc.get_freeze_count())
"""


@pytest.mark.slow
def test_imported_libraries_are_excluded_from_garbage_collection() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=True)
    enabled, frozen = done.stdout.split()
    assert enabled == "True" and int(frozen) > 300_000


def test_objects_of_an_earlier_engine_stay_collectable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    frozen = gc.get_freeze_count()
    _import_libraries()
    assert gc.get_freeze_count() == frozen
