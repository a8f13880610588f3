"""Runs in an object store with failures: partial uploads never count as finished."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job, outputs
from support.faulty_s3 import FaultyS3, serve

from specpipe.data import publish_bytes, read_part_footer
from specpipe.data.locations import locate
from specpipe.errors import OutputError
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FaultyS3, int]]:
    app = FaultyS3()
    with serve(app) as port:
        yield app, port


@pytest.fixture
def s3(server: tuple[FaultyS3, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultyS3, str]]:
    """The server, and the URI of an empty bucket on it with `{}` in place of a path."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    app, port = server
    bucket = f"b{uuid.uuid4().hex[:12]}"
    uri = f"s3://{bucket}/{{}}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    uri += "&allow_bucket_creation=true"
    locate(uri.format("")).filesystem.create_dir(bucket)
    yield app, uri
    app.heal()


def job_at(folder: Path, uri: str, attempts: int = 6) -> JobSpec:
    return make_job(folder, f"output.path={uri.format('run')}", f"workers.max_attempts={attempts}")


def names(uri: str, below: str) -> list[str]:
    location = locate(uri.format(below))
    found = location.filesystem.get_file_info(pa.fs.FileSelector(location.path, allow_not_found=True))
    return sorted(info.base_name for info in found)


def rows(uri: str) -> pa.Table:
    location = locate(uri.format("run/outputs"))
    return pq.read_table(location.path, filesystem=location.filesystem)


def check(folder: Path, uri: str) -> None:
    found = verify(uri.format("run"))
    assert found.complete, "\n".join(map(str, found.findings))
    execute(make_job(folder, f"output.path={folder / 'undisturbed'}"), backend=InProcessBackend())
    assert rows(uri)["generated_token_ids"] == outputs(folder / "undisturbed")["generated_token_ids"]


def test_run_in_a_bucket_completes_and_stays_complete(tmp_path: Path, s3: tuple[FaultyS3, str]) -> None:
    _, uri = s3
    assert execute(job_at(tmp_path, uri), backend=InProcessBackend(workers=2)).state == "complete"
    check(tmp_path, uri)
    assert execute(job_at(tmp_path, uri), backend=InProcessBackend()).state == "already complete"


def test_run_in_a_bucket_follows_another_one_there(tmp_path: Path, s3: tuple[FaultyS3, str]) -> None:
    _, uri = s3
    execute(job_at(tmp_path, uri), backend=InProcessBackend())
    settings = ["speculation.proposer=replay", f"speculation.replay={uri.format('r*')}"]
    job = make_job(tmp_path, f"output.path={uri.format('second')}", *settings)
    summary = execute(job, backend=InProcessBackend()).summary
    assert sum(summary["rows_by_followed_share"]) == summary["total_rows"]
    assert ".specpipe" in names(uri, "second") and "answers" in names(uri, "second/.specpipe")


@pytest.mark.parametrize("status", [403, 503])
def test_temporary_put_failures_lose_no_row(tmp_path: Path, s3: tuple[FaultyS3, str], status: int) -> None:
    app, uri = s3
    app.fail("PUT", "/outputs/part-", times=5, status=status)
    before = app.refused
    assert execute(job_at(tmp_path, uri), backend=InProcessBackend(workers=2)).state == "complete"
    assert app.refused - before == 5
    check(tmp_path, uri)


def test_store_refusing_all_parts_leaves_none_until_next_start(tmp_path: Path, s3: tuple[FaultyS3, str]) -> None:
    app, uri = s3
    app.fail("PUT", "/outputs/part-", times=10_000, status=403)
    result = execute(job_at(tmp_path, uri, attempts=1), backend=InProcessBackend())
    assert (result.state, result.exit_code) == ("incomplete", 3)
    assert names(uri, "run/outputs") == []
    assert verify(uri.format("run")).exit_code == 3
    app.heal()
    assert execute(job_at(tmp_path, uri), backend=InProcessBackend()).state == "complete"
    check(tmp_path, uri)


def test_failed_multipart_upload_publishes_nothing(s3: tuple[FaultyS3, str]) -> None:
    app, uri = s3
    path, data = uri.format("big"), bytes(31 << 20)
    app.fail("PUT", "partNumber=3", times=10_000, status=403)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        publish_bytes(path, data)
    assert read_part_footer(path) is None
    assert names(uri, "") == []
    app.heal()
    publish_bytes(path, data)
    assert locate(path).filesystem.get_file_info(locate(path).path).size == len(data)


def test_live_run_in_a_bucket_blocks_a_second_one(tmp_path: Path, s3: tuple[FaultyS3, str]) -> None:
    _, uri = s3
    with RunFolder.at(uri.format("run")).lock(), pytest.raises(OutputError, match="written by a live run"):
        execute(job_at(tmp_path, uri), backend=InProcessBackend())


def test_unwritable_bucket_raises_output_error(tmp_path: Path, s3: tuple[FaultyS3, str]) -> None:
    app, uri = s3
    app.fail("PUT", "", times=10_000, status=403)
    with pytest.raises(OutputError, match="cannot be written"):
        execute(job_at(tmp_path, uri), backend=InProcessBackend())
