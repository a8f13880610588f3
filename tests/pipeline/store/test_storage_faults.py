"""Full disks and unwritable folders: published files stay complete, and the next start resumes the run."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job, outputs

from specpipe.data import publish_bytes
from specpipe.errors import SpecpipeError
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
    """Runs the job in its own process; without `privileged` it obeys file permissions even as root."""
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


def check_that_next_start_completes(folder: Path) -> None:
    job = make_job(folder, "output.keep_columns=[tag]")
    assert execute(job, backend=InProcessBackend()).state == "complete"
    assert verify(str(folder / "out")).complete
    execute(make_job(folder, f"output.path={folder / 'undisturbed'}"), backend=InProcessBackend())
    assert outputs(folder / "out")["generated_token_ids"] == outputs(folder / "undisturbed")["generated_token_ids"]


@pytest.mark.slow
def test_parts_above_a_file_size_limit_are_not_published(tmp_path: Path) -> None:
    """Parts are larger than the limit, the manifest is smaller."""
    make_job(tmp_path)
    output = in_a_process(tmp_path, 6_000)
    assert "attempts at shards failed in a row" in output
    assert f"File too large: '{tmp_path}/out/outputs/part-" in output
    assert os.listdir(tmp_path / "out/outputs") == []  # no partial file is left
    assert verify(str(tmp_path / "out")).exit_code == 3
    check_that_next_start_completes(tmp_path)


def fill_disk(monkeypatch: pytest.MonkeyPatch, failures: Iterator[int]) -> None:
    """Makes one write of a part fail for each item of `failures`."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "part-" in os.readlink(f"/proc/self/fd/{descriptor}") and next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_full_disk_publishes_no_part_and_next_start_completes(tmp_path: Path) -> None:
    job = make_job(tmp_path, "output.keep_columns=[tag]")
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, itertools.count())
        with pytest.raises(SpecpipeError, match="attempts at shards failed in a row"):
            execute(job, backend=InProcessBackend())
    assert os.listdir(tmp_path / "out/outputs") == []
    assert verify(str(tmp_path / "out")).exit_code == 3
    check_that_next_start_completes(tmp_path)


def test_disk_full_for_a_while_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter(range(4))
    fill_disk(monkeypatch, failures)
    job = make_job(tmp_path, "workers.max_attempts=5")
    assert execute(job, backend=InProcessBackend(workers=2)).state == "complete"
    assert next(failures, None) is None
    assert verify(str(tmp_path / "out")).complete


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root ignores permissions")
def test_unwritable_folder_raises_and_loses_nothing(tmp_path: Path) -> None:
    make_job(tmp_path)
    (tmp_path / "out").mkdir(mode=0o555)
    assert "cannot be written" in in_a_process(tmp_path, privileged=False)
    assert os.listdir(tmp_path / "out") == []
    (tmp_path / "out").chmod(0o755)
    (tmp_path / "out/.specpipe").mkdir()
    (tmp_path / "out/outputs").mkdir(mode=0o555)
    output = in_a_process(tmp_path, privileged=False)
    assert "attempts at shards failed in a row" in output and "Permission denied" in output
    assert os.listdir(tmp_path / "out/outputs") == []
    (tmp_path / "out/outputs").chmod(0o755)
    check_that_next_start_completes(tmp_path)


def test_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
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
