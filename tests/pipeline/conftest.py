"""Runs in these tests publish a page without plots: drawing takes 80 % of a small run. tests/report draws real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from specpipe.pipeline.store.folder import REPORT, RunFolder
from specpipe.pipeline.store.manifest import Manifest


def write_page_without_plots(
    folder: RunFolder, manifest: Manifest, shards: pa.Table, summary: Mapping[str, Any], state: str
) -> None:
    folder.publish(REPORT, f"<html>{state}</html>".encode())


@pytest.fixture(autouse=True, scope="module")  # before the runs that fixtures of a module make
def no_plots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specpipe.pipeline.run.run.write_report", write_page_without_plots)
        yield
