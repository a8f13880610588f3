"""Run folder, manifest, epochs and lock: which folders a run accepts and when it resumes."""

import dataclasses
import fcntl
import json
import os
import subprocess
import sys
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
from specpipe.pipeline.store.manifest import Manifest, new_manifest, read_manifest
from specpipe.pipeline.store.resume_check import check_resumable

SHARDS = (
    Shard(index=0, file="a", start=0, stop=5, first_row=0),
    Shard(index=1, file="b", start=0, stop=2, first_row=5),
)


def test_claim_raises_for_foreign_files_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"thesis\.tex.*nothing was changed"):
        RunFolder.at(str(tmp_path)).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_claim_accepts_new_empty_and_own_folders(tmp_path: Path) -> None:
    RunFolder.at(str(tmp_path / "new")).claim()
    RunFolder.at(str(tmp_path)).claim()
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("a user's own")
    RunFolder.at(str(tmp_path)).claim()


def test_claim_raises_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        RunFolder.at(str(tmp_path / "out")).claim()


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"format": "another"}', '{"format": "specpipe-run"}'])
def test_invalid_manifest_raises(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(OutputError, match="not the manifest of a specpipe run"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_manifest_of_another_version_raises(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "specpipe-run", "version": 99}')
    with pytest.raises(OutputError, match="manifest version 99"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_manifest_without_required_key_names_the_key(tmp_path: Path) -> None:
    content = json.loads(new_manifest({"seed": 1}, {}, SHARDS, synthetic=False).to_json())
    del content["samples"]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(OutputError, match=r"another version of specpipe \(it lacks samples\)\. Resume it with that"):
        read_manifest(RunFolder.at(str(tmp_path)))


def test_manifest_round_trip_is_lossless(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    manifest = new_manifest({"seed": 1, "inputs": []}, {"workers.slots": 4}, SHARDS, synthetic=False)
    folder.publish("manifest.json", manifest.to_json().encode())
    again = read_manifest(folder)
    assert again == manifest
    assert again.run_id == json.loads(manifest.to_json())["run_id"]


def test_run_id_depends_on_identity_and_shards_only() -> None:
    base = new_manifest({"seed": 1}, {}, SHARDS, synthetic=False)
    assert new_manifest({"seed": 1}, {"workers.slots": 9}, SHARDS, synthetic=False).run_id == base.run_id
    assert new_manifest({"seed": 2}, {}, SHARDS, synthetic=False).run_id != base.run_id
    assert new_manifest({"seed": 1}, {}, SHARDS[:1], synthetic=False).run_id != base.run_id


def manifest_of(identity: dict[str, object]) -> Manifest:
    return new_manifest(identity, {}, SHARDS, synthetic=False)


def test_resume_error_names_every_difference(tmp_path: Path) -> None:
    pins = [{"path": "a", "size": 1, "rows": 5}, {"path": "b", "size": 2, "rows": 2}]
    before = {"seed": 1, "model.target": "x", "inputs": pins}
    now = {"seed": 2, "model.target": "x", "inputs": [{"path": "a", "size": 3, "rows": 5}, {"path": "c"}]}
    with pytest.raises(OutputError) as caught:
        check_resumable(manifest_of(before), now, RunFolder.at(str(tmp_path)))
    text = str(caught.value)
    assert caught.value.exit_code == 2
    for line in ("seed was 1 and is 2", "input b was removed", "input c is new", "input a has changed (size 1 → 3)"):
        assert line in text
    assert "model.target" not in text
    check_resumable(manifest_of(before), dict(before), RunFolder.at(str(tmp_path)))


def test_run_of_older_version_resumes_with_default_new_fields(tmp_path: Path) -> None:
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


def test_run_with_other_columns_cannot_resume(tmp_path: Path) -> None:
    manifest = dataclasses.replace(manifest_of({"seed": 1}), columns=("prompt", "text"))
    with pytest.raises(OutputError, match="columns were prompt, text and are request_id"):
        check_resumable(manifest, {"seed": 1}, RunFolder.at(str(tmp_path)))


def test_new_epoch_stops_earlier_starts(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    assert folder.epoch() == 0
    assert [folder.begin_epoch(), folder.begin_epoch()] == [1, 2]
    folder.check_epoch(2)
    with pytest.raises(StaleRunError, match="start 2"):
        folder.check_epoch(1)


_HOLD = """
import sys
from pathlib import Path
from specpipe.pipeline.store.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_lock_names_live_owner_and_is_free_after_kill(tmp_path: Path) -> None:
    path = tmp_path / ".specpipe/lock"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _HOLD, str(path)]
    holder = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    with pytest.raises(OutputError, match=rf"live run \(pid {holder.pid} on .*, since 2"):
        RunLock(path).acquire()
    assert f"pid {holder.pid}" in (RunLock(path).holder() or "")
    holder.kill()
    holder.communicate(timeout=30)
    assert RunLock(path).holder() is None
    with RunLock(path), pytest.raises(OutputError, match=f"pid {os.getpid()} "):
        RunLock(path).acquire()


def test_looking_for_the_owner_does_not_block_a_start(tmp_path: Path) -> None:
    with RunLock(tmp_path / "lock"):
        pass
    with open(tmp_path / "lock") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with RunLock(tmp_path / "lock"):
            assert RunLock(tmp_path / "lock").holder()


def test_unwritable_output_folder_raises_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        RunLock(Path("/proc/nowhere/.specpipe/lock")).acquire()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        RunFolder.at(str(tmp_path / "file/run")).publish("manifest.json", b"{}")
