"""A disk that is full, and a folder that cannot be written: what is published is whole, and the next start goes on."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job, outputs

from specpipe.data import publish_bytes
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify

_RUN = """
import resource, sys
from pathlib import Path

from support.fake_workers import InProcessBackend, make_job

from specpipe.errors import SpecpipeError
from specpipe.pipeline.run.run import execute

if limit := int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # the kernel refuses to write more into one file
try:
    print(execute(make_job(Path.cwd(), "output.keep_columns=[tag]"), backend=InProcessBackend()).state)
except SpecpipeError as error:
    print(type(error).__name__, error)
"""


def in_a_process(folder: Path, limit: int = 0, *, privileged: bool = True) -> str:
    """A start of the job in a process of its own; one that is not privileged obeys permissions even as root."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, "-c", _RUN, str(limit)]
    if not privileged and os.geteuid() == 0:
        rights = "-dac_override,-dac_read_search,-fowner"
        command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


def check_that_a_sound_start_completes(folder: Path) -> None:
    job = make_job(folder, "output.keep_columns=[tag]")
    assert execute(job, backend=InProcessBackend()).state == "complete"
    assert verify(str(folder / "out")).complete
    execute(make_job(folder, f"output.path={folder / 'calm'}"), backend=InProcessBackend())
    assert outputs(folder / "out")["generated_token_ids"] == outputs(folder / "calm")["generated_token_ids"]


def test_parts_for_which_there_is_no_room_are_not_published(tmp_path: Path) -> None:
    """Parts are larger than what may be written, the manifest is not."""
    make_job(tmp_path)
    said = in_a_process(tmp_path, 6_000)
    assert "attempts at shards failed in a row" in said
    assert f"File too large: '{tmp_path}/out/outputs/part-" in said
    assert os.listdir(tmp_path / "out/outputs") == []  # no half part, and nothing left of the attempts
    assert verify(str(tmp_path / "out")).exit_code == 3
    check_that_a_sound_start_completes(tmp_path)


def test_a_disk_that_is_full_for_a_while_costs_attempts_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, failures = os.fsync, iter(range(4))

    def full(descriptor: int) -> None:
        if "part-" in os.readlink(f"/proc/self/fd/{descriptor}") and next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    job = make_job(tmp_path, "workers.max_attempts=5")
    assert execute(job, backend=InProcessBackend(workers=2)).state == "complete"
    assert next(failures, None) is None
    assert verify(str(tmp_path / "out")).complete


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_and_one_that_may_no_more_loses_nothing(tmp_path: Path) -> None:
    make_job(tmp_path)
    (tmp_path / "out").mkdir(mode=0o555)
    assert "cannot be written" in in_a_process(tmp_path, privileged=False)
    assert os.listdir(tmp_path / "out") == []
    (tmp_path / "out").chmod(0o755)
    (tmp_path / "out/.specpipe").mkdir()
    (tmp_path / "out/outputs").mkdir(mode=0o555)
    said = in_a_process(tmp_path, privileged=False)
    assert "attempts at shards failed in a row" in said and "Permission denied" in said
    assert os.listdir(tmp_path / "out/outputs") == []
    (tmp_path / "out/outputs").chmod(0o755)
    check_that_a_sound_start_completes(tmp_path)


def test_a_write_that_stops_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    dies = (
        "import resource, sys\n"
        "from specpipe.data import publish_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "publish_bytes(sys.argv[1], bytes(1_000_000))\n"
    )
    path = tmp_path / "manifest.json"
    publish_bytes(str(path), b"old")
    done = subprocess.run([sys.executable, "-c", dies, str(path)], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["manifest.json"]
