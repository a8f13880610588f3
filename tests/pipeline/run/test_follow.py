"""Tests of following a run by its folder."""

import dataclasses
import json
import threading
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.fake_workers import InProcessBackend, fake_parts, make_job, write_rows

from specpipe.cli.main import main
from specpipe.errors import OutputError
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run import follow as following
from specpipe.pipeline.run.follow import follow
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.progress_file import ProgressFile, read_beat

QUICK = 0.02


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_SILENT_S", 0.05)
    monkeypatch.setattr(follow, "__kwdefaults__", {"every_s": QUICK})


def snapshot(done: int) -> Progress:
    return Progress(
        elapsed_s=1.0, total_rows=24, done_rows=done, failed_rows=0, total_shards=6, published_shards=0,
        failed_shards=0, workers=1, starting=0, unplaced=0, running=3, waiting=0, k=3.0, queue_depth=9.0,
        acceptance_length=2.0, tokens_per_s=10.0, eta_s=None, draining=False,
    )  # fmt: skip


class Follower(threading.Thread):
    """Follows in a thread of its own. `done`: rows that it was shown."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self.done: list[int] = []
        self.end: following.FollowEnd | None = None
        self.start()

    def run(self) -> None:
        self.end = follow(str(self._folder), lambda now: self.done.append(now.done_rows), every_s=QUICK)


def test_follower_of_a_live_run_returns_its_exit_code(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 24, r5=None)
    followers: list[Follower] = []

    def begin(progress: Progress) -> None:
        if not followers:
            followers.append(Follower(tmp_path / "out"))

    backend = InProcessBackend(build_parts=partial(fake_parts, step_s=0.02))
    result = execute(make_job(tmp_path), viewer=Viewer(progress=begin), backend=backend)
    followers[0].join(60)
    assert followers[0].end == following.FollowEnd(state="complete", exit_code=3)
    assert result.exit_code == 3
    assert followers[0].done


def test_follower_waits_for_the_first_progress_file(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    with folder.lock():
        follower = Follower(tmp_path)
        follower.join(0.25)
        assert follower.is_alive()
        ProgressFile(folder, 1).end("interrupted", 130)
        follower.join(30)
    assert follower.end == following.FollowEnd(state="interrupted", exit_code=130)


def test_follower_of_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 24, r5=None)
    execute(make_job(tmp_path), backend=InProcessBackend())
    assert follow(str(tmp_path / "out"), pytest.fail).exit_code == 3
    (tmp_path / "out/telemetry/progress.json").unlink()
    assert follow(str(tmp_path / "out"), pytest.fail).exit_code == 3


def test_follower_distinguishes_dead_from_slow_drivers(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path / "out"))
    lock = folder.lock()
    lock.acquire()
    ProgressFile(folder, 1).add(snapshot(3))
    follower = Follower(tmp_path / "out")
    follower.join(0.25)
    assert follower.is_alive()
    lock.release()
    follower.join(30)
    assert follower.done == [3]
    assert follower.end == following.FollowEnd(state="died", exit_code=1)


def test_follower_detects_driver_that_died_before_any_progress(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    (tmp_path / "out/telemetry/progress.json").unlink()
    (tmp_path / "out/summary.json").unlink()
    (tmp_path / "out/outputs/part-00000.parquet").unlink()
    assert follow(str(tmp_path / "out"), pytest.fail).state == "died"


def test_follower_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"not a specpipe run: it has no manifest\.json"):
        follow(str(tmp_path), pytest.fail)


def test_progress_file_is_written_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    folder = RunFolder.at(str(tmp_path))
    progress = ProgressFile(folder, 7, every_s=3600.0)
    assert read_beat(folder) is None
    for done in range(5):
        progress.add(snapshot(done))
    beat = read_beat(folder)
    assert beat is not None
    assert (beat.epoch, beat.beat, beat.state, beat.exit_code) == (7, 1, "running", None)
    assert beat.progress == snapshot(0)
    progress.end("interrupted", 130)
    beat = read_beat(folder)
    assert beat is not None
    assert (beat.beat, beat.state, beat.exit_code, beat.progress) == (2, "interrupted", 130, snapshot(4))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"beat": 1}', '{"progress": {"k": 1}}'])
def test_unreadable_progress_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "telemetry").mkdir()
    (tmp_path / "telemetry/progress.json").write_text(text)
    assert read_beat(RunFolder.at(str(tmp_path))) is None


def test_snapshots_survive_json_and_unknown_fields() -> None:
    values = json.loads(json.dumps(snapshot(2).to_dict())) | {"of_the_future": 1}
    assert Progress.from_dict(values) == dataclasses.replace(snapshot(2))


def test_show_follow_prints_progress_and_final_state(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 24, r5=None)
    execute(make_job(tmp_path), backend=InProcessBackend())
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "out"), "--follow"])
    assert (shown.exit_code, "24 of 24, 1 failed" in shown.stdout) == (3, True)
    with RunFolder.at(str(tmp_path / "out")).lock():  # Ray stops after the run has said how it ended
        ProgressFile(RunFolder.at(str(tmp_path / "out")), 1).end("complete", 3)
        follower = threading.Timer(0.2, lambda: ProgressFile(RunFolder.at(str(tmp_path / "out")), 2).end("complete", 3))
        follower.start()
        shown = CliRunner().invoke(main, ["show", str(tmp_path / "out"), "--follow"])
    assert (shown.exit_code, shown.stdout.split()[1]) == (3, "complete")
    ProgressFile(RunFolder.at(str(tmp_path / "out")), 2).add(snapshot(11))
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "out"), "--follow", "--json"])
    assert shown.exit_code == 1
    assert [json.loads(line)["done_rows"] for line in shown.stdout.splitlines()] == [11]
    assert "The driver ended without recording a final state" in shown.stderr


def test_show_html_writes_the_report(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")])
    assert (shown.exit_code, shown.stdout) == (0, f"{tmp_path / 'page.html'}\n")
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    refused = CliRunner().invoke(main, ["show", str(tmp_path / "out"), "--html", str(tmp_path / "no/page.html")])
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)
