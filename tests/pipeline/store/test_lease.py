"""Leases on folders in an object store: live, dead and overtaken owners."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from support.fake_workers import wait_for

from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.lease import RunLease

BEAT = 0.05


class Store:
    """One object in a store that can be unavailable."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.down = False
        self.writes = 0

    def read(self) -> bytes | None:
        if self.down:
            raise OSError("503 Slow Down")
        return self.data

    def write(self, data: bytes) -> None:
        if self.down:
            raise OutputError("503 Slow Down")
        self.data, self.writes = data, self.writes + 1

    def lease(self) -> RunLease:
        return RunLease(self.read, self.write, name="s3://bucket/run", beat_s=BEAT)

    def change(self, **values: object) -> None:
        self.data = json.dumps({**json.loads(self.data or b"{}"), **values}).encode()


def test_live_owner_is_named_and_released_lease_is_free() -> None:
    store = Store()
    with store.lease():
        with pytest.raises(OutputError, match=r"s3://bucket/run is .* by a live run \(pid \d+ on .*, since 2"):
            store.lease().acquire()
        assert "pid " in (store.lease().holder() or "")
    began = time.monotonic()
    with store.lease():
        assert time.monotonic() - began < 3 * BEAT, "less than a living owner is waited for"
    assert store.lease().holder() is None


def test_silent_remote_owner_loses_the_lease_after_three_beats() -> None:
    store = Store()
    store.lease()._beat()
    store.change(processes="another machine")
    began = time.monotonic()
    with store.lease():
        assert 3 * BEAT <= time.monotonic() - began < 30 * BEAT


def test_dead_local_owner_loses_the_lease_at_once() -> None:
    store = Store()
    gone = subprocess.Popen(["true"])
    gone.wait()
    store.lease()._beat()
    store.change(pid=gone.pid)
    began = time.monotonic()
    with store.lease():
        assert time.monotonic() - began < 3 * BEAT, "less than a living owner is waited for"


def test_lease_survives_a_short_outage_of_the_store() -> None:
    store = Store()
    with store.lease():
        store.down = True
        time.sleep(3 * BEAT)
        store.down = False
        before = store.writes
        wait_for(lambda: store.writes > before)
        assert store.lease().holder() is not None


def test_overtaken_owner_keeps_the_other_lease(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    with store.lease():
        store.change(owner="another", beat=1)
        wait_for(lambda: "another start has acquired the lease" in caplog.text)
    assert json.loads(store.data or b"{}")["owner"] == "another"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not json"])
def test_invalid_lease_is_replaced(data: bytes) -> None:
    store = Store()
    store.data = data
    with store.lease():
        assert b"owner" in (store.data or b"")


def test_local_folder_uses_lock_and_bucket_lease(tmp_path: Path) -> None:
    assert not isinstance(RunFolder.at(str(tmp_path)).lock(), RunLease)
    assert isinstance(RunFolder.at("mock:///bucket/run").lock(), RunLease)
