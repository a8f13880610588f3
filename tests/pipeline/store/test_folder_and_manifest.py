import dataclasses
import fcntl
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job

from specpipe.core import Shard
from specpipe.errors import OutputError
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.lock import RunLock
from specpipe.pipeline.store.manifest import Manifest, check_resumable, new_manifest, read_manifest

SHARDS = (
    Shard(index=0, file="a", start=0, stop=5, first_row=0),
    Shard(index=1, file="b", start=0, stop=2, first_row=5),
)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"thesis\.tex.*nothing was changed"):
        RunFolder.at(str(tmp_path)).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_new_empty_and_own_folders_are_taken(tmp_path: Path) -> None:
    RunFolder.at(str(tmp_path / "new")).claim()
    RunFolder.at(str(tmp_path)).claim()
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("a user's own")
    RunFolder.at(str(tmp_path)).claim()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        RunFolder.at(str(tmp_path / "out")).claim()


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"format": "another"}', '{"format": "specpipe-run"}'])
def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(OutputError, match="not the manifest of a specpipe run"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "specpipe-run", "version": 99}')
    with pytest.raises(OutputError, match="manifest version 99"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_a_manifest_that_lacks_what_this_version_needs_is_refused_in_plain_words(tmp_path: Path) -> None:
    content = json.loads(new_manifest({"seed": 1}, {}, SHARDS, synthetic=False).to_json())
    del content["samples"]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(OutputError, match=r"another version of specpipe \(it lacks samples\)\. Resume it with that"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    manifest = new_manifest({"seed": 1, "inputs": []}, {"workers.slots": 4}, SHARDS, synthetic=False)
    folder.publish("manifest.json", manifest.to_json().encode())
    again = read_manifest(folder)
    assert again == manifest
    assert again.run_id == json.loads(manifest.to_json())["run_id"]


def test_the_run_id_follows_identity_and_shards_alone() -> None:
    base = new_manifest({"seed": 1}, {}, SHARDS, synthetic=False)
    assert new_manifest({"seed": 1}, {"workers.slots": 9}, SHARDS, synthetic=False).run_id == base.run_id
    assert new_manifest({"seed": 2}, {}, SHARDS, synthetic=False).run_id != base.run_id
    assert new_manifest({"seed": 1}, {}, SHARDS[:1], synthetic=False).run_id != base.run_id


def manifest_of(identity: dict[str, object]) -> Manifest:
    return new_manifest(identity, {}, SHARDS, synthetic=False)


def test_every_difference_is_named(tmp_path: Path) -> None:
    pins = [{"path": "a", "size": 1, "rows": 5}, {"path": "b", "size": 2, "rows": 2}]
    there = {"seed": 1, "model.target": "x", "inputs": pins}
    now = {"seed": 2, "model.target": "x", "inputs": [{"path": "a", "size": 3, "rows": 5}, {"path": "c"}]}
    with pytest.raises(OutputError) as caught:
        check_resumable(manifest_of(there), now, RunFolder.at(str(tmp_path)))
    text = str(caught.value)
    assert caught.value.exit_code == 2
    for line in ("seed was 1 and is 2", "input b is gone", "input c is new", "input a has changed (size 1 → 3)"):
        assert line in text
    assert "model.target" not in text
    check_resumable(manifest_of(there), dict(there), RunFolder.at(str(tmp_path)))


def test_a_run_of_an_older_version_goes_on_where_new_fields_are_at_their_defaults(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    path = tmp_path / "out/manifest.json"
    before = json.loads(path.read_text())
    older = {**before, "identity": {k: v for k, v in before["identity"].items() if k != "sampling.min_tokens"}}
    del older["columns"]
    path.write_text(json.dumps(older))
    (tmp_path / "out/outputs/part-00001.parquet").unlink()
    manifest = read_manifest(RunFolder.at(str(tmp_path / "out")))
    assert manifest is not None and manifest.run_id != before["run_id"]
    with pytest.raises(OutputError, match=r"sampling\.min_tokens was 0 and is 3"):
        execute(make_job(tmp_path, "sampling.min_tokens=3"), backend=InProcessBackend())
    assert execute(job, backend=InProcessBackend()).state == "complete"


def test_parts_with_other_columns_are_not_mixed_with_todays(tmp_path: Path) -> None:
    manifest = dataclasses.replace(manifest_of({"seed": 1}), columns=("prompt", "text"))
    with pytest.raises(OutputError, match="its parts have the columns prompt, text; now: request_id"):
        check_resumable(manifest, {"seed": 1}, RunFolder.at(str(tmp_path)))


def test_each_start_has_its_epoch_and_fences_the_ones_before(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    assert folder.epoch() == 0
    assert [folder.begin_epoch(), folder.begin_epoch()] == [1, 2]
    folder.check_epoch(2)
    with pytest.raises(StaleRunError, match="start 2"):
        folder.check_epoch(1)


def hold(path: Path, ready, done) -> None:
    with RunLock(path):
        ready.set()
        done.wait(30)


def test_a_live_run_is_named_and_a_killed_one_is_forgotten_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    path = tmp_path / ".specpipe/lock"
    holder = context.Process(target=hold, args=(path, ready, done))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(OutputError, match=rf"live run \(pid {holder.pid} on .*, since 2"):
        RunLock(path).acquire()
    assert f"pid {holder.pid}" in (RunLock(path).holder() or "")
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    assert RunLock(path).holder() is None
    with RunLock(path), pytest.raises(OutputError, match=f"pid {os.getpid()} "):
        RunLock(path).acquire()


def test_who_asks_for_the_holder_keeps_no_run_from_starting(tmp_path: Path) -> None:
    with RunLock(tmp_path / "lock"):
        pass
    with open(tmp_path / "lock") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with RunLock(tmp_path / "lock"):
            assert RunLock(tmp_path / "lock").holder()


def test_an_output_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        RunLock(Path("/proc/nowhere/.specpipe/lock")).acquire()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        RunFolder.at(str(tmp_path / "file/run")).publish("manifest.json", b"{}")
