"""Runs that follow earlier answers, with an engine without a model: which rows get which text."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_engine import FakeEngine
from support.fake_workers import InProcessBackend, fake_parts, make_job, outputs, real_models, write_rows

from specpipe.data import publish_part, read_part_footer
from specpipe.errors import DataError
from specpipe.job import JobSpec
from specpipe.pipeline.prepare import prepare
from specpipe.pipeline.replay.answer_sources import find_answer_files
from specpipe.pipeline.run.dry_run import plan_run
from specpipe.pipeline.run.run import RunResult, Viewer, execute
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

REPLAY = ("speculation.proposer=replay",)


@dataclass
class Recorder:
    """Runs jobs and keeps the requests of the engine and the lines that were announced."""

    engines: list[FakeEngine] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def references(self) -> dict[tuple[str, int], tuple[int, ...]]:
        submitted = (request for engine in self.engines for request in engine.requests)
        return {(request.request_id, request.sample): request.reference for request in submitted}

    def run(self, job: JobSpec, *, retry_failed: bool = False) -> RunResult:
        backend = InProcessBackend(build_parts=self._parts)
        return execute(job, viewer=Viewer(announce=self.lines.append), backend=backend, retry_failed=retry_failed)

    def _parts(self, config: WorkerConfig) -> WorkerParts:
        parts = fake_parts(config)
        assert isinstance(parts.engine, FakeEngine)
        self.engines.append(parts.engine)
        return parts


def replay(folder: Path, where: object, *more: str) -> JobSpec:
    """The job of a second run, which follows `where`."""
    return make_job(folder, f"output.path={folder / 'second'}", *REPLAY, f"speculation.replay={where}", *more)


def test_second_run_follows_the_first_and_equals_it(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    first.run(make_job(tmp_path, "sampling.n=2", rows=7))
    assert set(first.references.values()) == {()}
    second.run(replay(tmp_path, tmp_path / "out", "sampling.n=2"))
    before, after = outputs(tmp_path / "out"), outputs(tmp_path / "second")
    assert before["generated_token_ids"] == after["generated_token_ids"]
    names = zip(before["request_id"].to_pylist(), before["sample"].to_pylist(), strict=True)
    expected = dict(zip(names, map(tuple, before["generated_token_ids"].to_pylist()), strict=True))
    assert second.references == expected
    assert second.lines[1] == f"rows follow 14 earlier answers in {tmp_path / 'out'}"


def test_newest_run_of_a_glob_wins_and_the_run_itself_is_left_out(tmp_path: Path) -> None:
    for name, seed in (("day-1", 1), ("day-2", 2)):
        Recorder().run(make_job(tmp_path, f"output.path={tmp_path / name}", f"seed={seed}", rows=5))
        manifest = tmp_path / name / "manifest.json"
        content = json.loads(manifest.read_text()) | {"created_at": f"2026-01-0{seed}T00:00:00Z"}
        manifest.write_text(json.dumps(content))
    job = make_job(tmp_path, f"output.path={tmp_path / 'day-3'}", *REPLAY, f"speculation.replay={tmp_path}/day-?")
    third = Recorder()
    third.run(job)
    newest = outputs(tmp_path / "day-2")["generated_token_ids"].to_pylist()
    assert [third.references[str(i), 0] for i in range(5)] == [tuple(row) for row in newest]
    files = find_answer_files(prepare(job))
    assert {file.file.path.split("/")[-3] for file in files} == {"day-1", "day-2"}


def test_missing_answers_are_announced_and_no_error(tmp_path: Path) -> None:
    recorder = Recorder()
    assert recorder.run(replay(tmp_path, tmp_path / "nothing-*")).exit_code == 0
    assert recorder.lines[1] == f"no earlier answers in {tmp_path}/nothing-* yet"


def test_resumed_run_may_follow_other_answers(tmp_path: Path) -> None:
    Recorder().run(make_job(tmp_path, rows=6))
    Recorder().run(replay(tmp_path, tmp_path / "none"))
    (tmp_path / "second/outputs/part-00000.parquet").unlink()
    again = Recorder()
    assert again.run(replay(tmp_path, [str(tmp_path / "out")])).state == "complete"
    assert again.references and all(again.references.values())


def test_rows_to_retry_follow_what_they_had(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 4, r1="BAD", r2="BAD")
    job = make_job(tmp_path, "output.max_failed_rows=2")
    Recorder().run(job)
    for path in (tmp_path / "out/outputs").iterdir():
        footer, table = read_part_footer(str(path)), pq.read_table(path)
        assert footer is not None
        names, ids = table["request_id"].to_pylist(), table["generated_token_ids"].to_pylist()
        # What an engine had generated before row 1 failed:
        ids = [[5, 6] if name == "1" else own for name, own in zip(names, ids, strict=True)]
        at = table.schema.get_field_index("generated_token_ids")
        table = table.set_column(at, table.schema.field(at), pa.array(ids, table.schema.field(at).type))
        table = table.replace_schema_metadata()
        publish_part(str(path), table, shard_hash=footer.shard_hash, telemetry=footer.telemetry)
    retried = Recorder()
    retried.run(job, retry_failed=True)
    assert retried.references == {("1", 0): (5, 6), ("2", 0): ()}


def test_texts_of_a_dataset_are_tokenized_here(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text('{"prompt": "prompt 1", "answer": "yes"}\n')
    recorder = Recorder()
    recorder.run(replay(tmp_path, tmp_path / "old.jsonl"))
    assert recorder.references["1", 0] == tuple(b"yes")


def test_dry_run_counts_rows_with_an_answer(tmp_path: Path) -> None:
    Recorder().run(make_job(tmp_path, rows=3))
    (tmp_path / "out/manifest.json").unlink()
    write_rows(tmp_path / "rows.parquet", 5, r1="a new prompt")
    jobs = [replay(tmp_path, where) for where in (f"{tmp_path}/out/outputs", f"{tmp_path}/none")]
    jobs.append(make_job(tmp_path, f"output.path={tmp_path / 'third'}"))
    real_models(tmp_path)
    assert [plan_run(job).replay for job in jobs] == [
        f"3 of 5 rows have an answer in {tmp_path}/out/outputs",  # row 1 by its position
        f"no earlier answers in {tmp_path}/none yet",
        "",
    ]


def test_runs_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    first = make_job(tmp_path, rows=4)
    job, texts = replay(tmp_path, tmp_path / "out"), replay(tmp_path, tmp_path / "out/outputs")
    real_models(tmp_path)
    Recorder().run(first)
    path = tmp_path / "target/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps({**tokenizer, "post_processor": None}))
    assert len(find_answer_files(prepare(job))) == 4  # another revision, the same vocabulary
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[5:7]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(tokenizer))
    for refused in (lambda: find_answer_files(prepare(job)), lambda: plan_run(job), lambda: Recorder().run(job)):
        with pytest.raises(DataError, match=r"replay: .*/out has token ids of .*/target, whose vocabulary is another"):
            refused()
    assert len(find_answer_files(prepare(texts))) == 4
