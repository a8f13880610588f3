"""A folder on an object store belongs to whoever's heart beats."""

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
    """One object, on a store that can be down."""

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


def test_a_live_owner_is_named_and_one_who_let_go_is_forgotten_at_once() -> None:
    store = Store()
    with store.lease():
        with pytest.raises(OutputError, match=r"s3://bucket/run is .* by a live run \(pid \d+ on .*, since 2"):
            store.lease().acquire()
        assert "pid " in (store.lease().holder() or "")
    began = time.monotonic()
    with store.lease():
        assert time.monotonic() - began < BEAT
    assert store.lease().holder() is None


def test_an_owner_elsewhere_whose_heart_has_stopped_loses_it_after_three_beats() -> None:
    store = Store()
    store.lease()._beat()
    store.change(processes="another machine")
    began = time.monotonic()
    with store.lease():
        assert 3 * BEAT <= time.monotonic() - began < 30 * BEAT


def test_a_dead_process_of_this_machine_is_not_waited_for() -> None:
    store = Store()
    gone = subprocess.Popen(["true"])
    gone.wait()
    store.lease()._beat()
    store.change(pid=gone.pid)
    began = time.monotonic()
    with store.lease():
        assert time.monotonic() - began < BEAT


def test_a_store_that_is_down_for_a_moment_costs_no_lease() -> None:
    store = Store()
    with store.lease():
        store.down = True
        time.sleep(3 * BEAT)
        store.down = False
        before = store.writes
        wait_for(lambda: store.writes > before)
        assert store.lease().holder() is not None


def test_an_owner_who_was_overtaken_leaves_the_other_alone(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    with store.lease():
        store.change(owner="another", beat=1)
        wait_for(lambda: "another start has taken the lease" in caplog.text)
    assert json.loads(store.data or b"{}")["owner"] == "another"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not json"])
def test_what_is_no_lease_is_in_nobodys_way(data: bytes) -> None:
    store = Store()
    store.data = data
    with store.lease():
        assert b"owner" in (store.data or b"")


def test_a_local_folder_has_a_lock_and_a_bucket_a_lease(tmp_path: Path) -> None:
    assert not isinstance(RunFolder.at(str(tmp_path)).lock(), RunLease)
    assert isinstance(RunFolder.at("mock:///bucket/run").lock(), RunLease)
