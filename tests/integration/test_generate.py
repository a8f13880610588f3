"""`specpipe.generate` with the embedded pair; on Ray in the slow tests."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.fake_workers import InProcessBackend

from specpipe import generate
from specpipe.data import output_schema
from specpipe.data.columns import ADDED_COLUMNS
from specpipe.errors import JobError, OutputError
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run import run
from specpipe.pipeline.worker.build import build_parts

PAIR: dict[str, Any] = {"model": "builtin:tiny", "draft": "builtin:tiny"}
SHORT: dict[str, Any] = {"sampling": {"max_new_tokens": 8}, "workers": {"shard_tokens": 40}}


def identity(table: pa.Table) -> pa.Table:
    """The columns that do not depend on tuning."""
    return table.drop_columns(["cached_tokens", "draft_tokens", "accepted_tokens", *ADDED_COLUMNS])


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in this process, with real engines, instead of on Ray."""
    monkeypatch.setattr(run, "RayBackend", lambda: InProcessBackend(build_parts=build_parts))


def test_call_without_model_and_job_is_an_error() -> None:
    with pytest.raises(JobError, match="neither model nor job"):
        generate(["a"])


@pytest.mark.usefixtures("in_process")
def test_rows_become_a_table_and_the_same_call_resumes(tmp_path: Path) -> None:
    rows = [
        "What is 2 plus 3?",
        {"messages": [{"role": "user", "content": "Hello"}], "id": "chat", "tag": "kept"},
        {"prompt": ""},
        [{"role": "user", "content": "Hello"}],
    ]
    seen: list[Progress] = []
    table = generate(rows, out=tmp_path / "run", keep_columns=["tag"], progress=seen.append, **PAIR, **SHORT)
    assert table.schema == output_schema(pa.schema([("tag", pa.string())]))
    assert table["request_id"].to_pylist() == ["0", "chat", "2", "3"]
    assert table["tag"].to_pylist() == [None, "kept", None, None]
    assert [bool(error) for error in table["error"].to_pylist()] == [False, False, True, False]
    assert table["generated_text"][1] == table["generated_text"][3]
    assert all(
        (0 < count <= 8) == (not error)
        for count, error in zip(table["num_generated_tokens"].to_pylist(), table["error"].to_pylist(), strict=True)
    )
    assert seen[-1].total_rows == 4
    parts = sorted((tmp_path / "run/outputs").glob("part-*"))
    assert len(parts) > 1 and (tmp_path / "run/report.html").exists()
    parts[0].unlink()
    before = {part: part.stat().st_mtime_ns for part in parts[1:]}
    again = generate(rows, out=tmp_path / "run", keep_columns=["tag"], **PAIR, **SHORT)
    assert identity(again).equals(identity(table))
    assert {part: part.stat().st_mtime_ns for part in parts[1:]} == before
    with pytest.raises(OutputError, match=r"input .*rows-.* was removed"):
        generate(["another"], out=tmp_path / "run", keep_columns=["tag"], **PAIR, **SHORT)
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        generate(rows, out=thesis, **PAIR)
    assert [path.name for path in thesis.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore")
def test_datasets_tables_and_files_give_the_same_rows_on_ray(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    import ray

    table = pa.table({"prompt": [f"What is {i} plus {i}?" for i in range(30)], "tag": list(range(30))})
    settings = {**PAIR, **SHORT, "keep_columns": ["tag"], "settings": {"seed": 3}}
    expected = generate(table, **settings)
    assert expected["tag"].to_pylist() == list(range(30))
    pq.write_table(table, tmp_path / "rows.parquet")
    assert identity(generate(tmp_path / "rows.parquet", **settings)).equals(identity(expected))
    for out in (None, tmp_path / "run"):
        dataset = generate(ray.data.from_arrow(table), out=out, **settings)
        assert isinstance(dataset, ray.data.Dataset)
        got = pa.Table.from_pylist(dataset.take_all(), schema=expected.schema).sort_by("tag")
        assert identity(got).equals(identity(expected))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_job_file_and_job_object_give_the_same_rows() -> None:
    from specpipe.job import load_job

    changes: dict[str, Any] = {"sampling": {"max_new_tokens": 5}, "settings": {"data.warmup_rows": 0}}
    path = Path(__file__).parents[2] / "jobs/sharegpt.yaml"
    from_file = generate(["Hello", "Good day"], job=path, **changes)
    assert from_file["num_generated_tokens"].to_pylist() == [5, 5]
    assert generate(["Hello", "Good day"], job=load_job(path), **changes).equals(from_file)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_first_example_of_the_python_page_runs() -> None:
    import re

    text = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0].replace("table.to_pandas()", "table.to_pylist()")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["table"]["request_id"].to_pylist() == ["0", "b"]
    assert all(names["table"]["generated_text"].to_pylist())
