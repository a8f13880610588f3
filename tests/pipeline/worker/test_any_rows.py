"""Property tests of arbitrary datasets: each row appears once in the output, as tokens or as an error."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.arrow_tables import any_tables, write_table
from support.fake_workers import make_job, worker_config

from specpipe.core import AcceptanceCounts, Shard
from specpipe.data import list_files
from specpipe.data.reading.dataset_rows import utf8
from specpipe.data.requests.request_builder import input_columns
from specpipe.pipeline.messages import ShardOrder
from specpipe.pipeline.store.part_check import PartCheck
from specpipe.pipeline.worker.worker import Worker
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed

PLAN = Fixed().plan(PolicyInputs(slots=3, queue_depth=1.0, acceptance=AcceptanceCounts()))

OTHERS = [name for name in input_columns(None) if name != "prompt"]

words = st.sampled_from(["", "hi", "BAD", "x" * 300, "a\x00\x1b[31mb", "\ud800", "\u2028", "é🙂", "../x", "[1]", '"'])
texts = words | st.text(max_size=6)
numbers = st.integers() | st.floats() | st.integers(-2, 1001) | st.sampled_from([0.5, 1e308, 2**63, 2**64])
scalars = st.none() | st.booleans() | numbers | texts
roles = st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt", "narrator"])
turns = st.lists(
    st.fixed_dictionaries({}, optional={
        "role": roles | scalars, "content": scalars | st.lists(scalars, max_size=2), "from": roles | scalars,
        "value": scalars, "tool_calls": scalars, "type": scalars, "text": scalars,
    }),
    max_size=3,
)  # fmt: skip
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
token_ids = st.lists(st.integers(-1, 1001), max_size=4)
columns = st.sampled_from(input_columns(None)) | texts
objects = st.one_of(
    st.dictionaries(columns, anything | turns | token_ids, max_size=5),
    st.fixed_dictionaries({"prompt": texts}, optional={name: scalars for name in OTHERS}),
    st.fixed_dictionaries({"messages": turns}),
    st.fixed_dictionaries({"conversations": turns}),
    st.fixed_dictionaries({"body": st.fixed_dictionaries({"messages": turns}) | st.dictionaries(texts, scalars)}),
)
lines = objects.map(lambda value: json.dumps(value).encode()) | anything.map(lambda v: json.dumps(v).encode())
files = st.lists(lines | st.binary(max_size=12), min_size=1, max_size=6)
tables = any_tables(input_columns(None), texts.map(utf8))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("any")
    made = Worker("worker-0", worker_config(make_job(folder, "workers.slots=4", "sampling.max_new_tokens=2"), files=()))
    made.start(None)
    yield made
    made.close()


def each_line_comes_out_once(worker: Worker, data: list[bytes]) -> None:
    path = worker_folder(worker) / "any.jsonl"
    data = [b'{"prompt": "first"}', *data]  # a file that begins with [ is refused as a JSON array
    path.write_bytes(b"\n".join(data))
    each_row_comes_out_once(worker, path, sum(bool(line.strip()) for line in b"\n".join(data).split(b"\n")))


def each_row_of_a_table_comes_out_once(worker: Worker, table: pa.Table) -> None:
    path = worker_folder(worker) / "any.parquet"
    try:
        write_table(path, table)
    except pa.ArrowException:  # a type that Parquet lacks
        path = path.with_suffix(".arrow")
        write_table(path, table)
    each_row_comes_out_once(worker, path, table.num_rows)


def worker_folder(worker: Worker) -> Path:
    return Path(worker._config.folder.path).parent


def each_row_comes_out_once(worker: Worker, path: Path, rows: int) -> None:
    config = worker._config
    (file,) = list_files(str(path))
    assert file.rows == rows
    worker._reader._files[file.path] = file
    shard = Shard(index=0, file=file.path, start=0, stop=rows, first_row=0)
    Path(config.folder.file(config.folder.part_name(0))).unlink(missing_ok=True)  # a whole part would stay
    report = worker.run_shard(ShardOrder(shard=shard, plan=PLAN, attempt=1))
    part = config.folder.file(report.part)
    check = PartCheck(run_id=config.run_id, job_seed=0, prompt_column=None, keep=(), files={file.path: file})
    assert check.check(part, shard).findings == ()
    for row, error in enumerate(pq.read_table(part)["error"].to_pylist()):
        assert not error or error.startswith(f"{file.path}, row {row}: ") or error == "a bad row"


def lines_of(cases: int):
    return any_of(cases)(given(data=files)(each_line_comes_out_once))


def tables_of(cases: int):
    return any_of(cases)(given(table=tables)(each_row_of_a_table_comes_out_once))


def any_of(cases: int) -> settings:
    return settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("of", [lines_of, tables_of])
def test_generated_rows_each_appear_once_in_the_output(worker: Worker, of) -> None:
    of(30)(worker)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("of", [lines_of, tables_of])
def test_ten_thousand_generated_files_lose_no_row(worker: Worker, of) -> None:
    of(10_000)(worker)
