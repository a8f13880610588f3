"""Every export format, with failed rows, several samples and special characters."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.fake_workers import outputs

from specpipe.cli.main import main
from specpipe.data.conversion.convert_chats import convert_chats
from specpipe.errors import DataError, JobError, OutputError
from specpipe.evaluation.export.export_run import export
from specpipe.evaluation.harness.recorded_requests import SCHEMA
from specpipe.pipeline.run.run import RunResult

TinyRun = Callable[..., RunResult]
SHORT = ("speculation.policy=off", "sampling.max_new_tokens=3", "output.max_failed_rows=9")


def ask(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


BATCH = [
    ask("a-1", messages=[{"role": "user", "content": "Hi"}], max_tokens=2),
    ask("a-2", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    ask("a-3", prompt='Say "é, ü"\n and commas,,', max_tokens=3),
    ask("a-4", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]),
]


def write_batch(folder: Path) -> str:
    path = folder / "batch.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in BATCH))
    return str(path)


@pytest.fixture
def batch(tmp_path: Path) -> str:
    """File with BATCH."""
    return write_batch(tmp_path)


@pytest.fixture(scope="module")
def batch_run(run_in: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run on BATCH; tests only read it."""
    folder = tmp_path_factory.mktemp("batch")
    run_in(folder, "run", *SHORT, data={"path": write_batch(folder)}, output={"keep_columns": ["url"]})
    return folder / "run"


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_an_openai_batch_is_answered_by_custom_id(batch_run: Path, tmp_path: Path) -> None:
    rows = outputs(batch_run).to_pylist()
    out = str(tmp_path / "answers.jsonl")
    shown = CliRunner().invoke(main, ["convert", str(batch_run), "--to", "openai-batch", "--out", out])
    assert (shown.exit_code, shown.output) == (0, f"4 rows, 1 of them failed → {out}\n")
    found = lines(out)
    assert [line["custom_id"] for line in found] == ["a-1", "a-2", "a-3", "a-4"]
    assert len({line["id"] for line in found}) == 4
    assert found[1]["response"] is None and "expected parts of type text" in found[1]["error"]["message"]
    answer = found[0]["response"]["body"]
    assert found[0]["error"] is None and found[0]["response"]["status_code"] == 200
    assert answer["object"] == "chat.completion" and answer["model"] == "builtin:tiny"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": rows[0]["generated_text"]}
    assert answer["usage"]["completion_tokens"] == rows[0]["num_generated_tokens"]
    assert found[2]["response"]["body"]["choices"][0]["text"] == rows[2]["generated_text"]
    assert found[3]["response"]["body"]["choices"][0]["finish_reason"] == rows[3]["finish_reason"]


def test_samples_of_a_row_are_choices(tiny_run: TinyRun, tmp_path: Path, batch: str) -> None:
    tiny_run("run", *SHORT, "sampling.n=2", "sampling.temperature=1.0", data={"path": batch})
    rows = outputs(tmp_path / "run").to_pylist()
    report = export(str(tmp_path / "run"), "openai-batch", str(tmp_path / "answers.jsonl"))
    assert (report.rows, report.failed) == (8, 2)
    choices = lines(report.out)[3]["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert [choice["message"]["content"] for choice in choices] == [row["generated_text"] for row in rows[6:]]


def test_jsonl_and_csv_keep_every_column(batch_run: Path, tmp_path: Path) -> None:
    rows = outputs(batch_run).to_pylist()
    assert lines(export(str(batch_run), "jsonl", str(tmp_path / "o.jsonl")).out) == rows
    table = export(str(batch_run), "csv", str(tmp_path / "o.csv"))
    with open(table.out, newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert table.failed == 1 and list(found[0]) == list(rows[0])
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert [json.loads(row["generated_token_ids"]) for row in found] == [row["generated_token_ids"] for row in rows]


def test_exported_sharegpt_can_be_converted_again(batch_run: Path, tmp_path: Path) -> None:
    rows = outputs(batch_run).to_pylist()
    report = export(str(batch_run), "sharegpt", str(tmp_path / "chats.json"))
    chats = json.loads(Path(report.out).read_text())
    assert report.failed == 1 and [chat["id"] for chat in chats] == ["a-1", "a-3", "a-4"]
    speakers = [turn["from"] for turn in chats[2]["conversations"]]
    assert speakers == ["system", "human", "gpt"]
    shown = CliRunner().invoke(
        main, ["convert", str(batch_run), "--to", "sharegpt", "--out", report.out, "--overwrite"]
    )
    assert shown.output == f"3 rows, 1 failed left out → {report.out}\n"
    assert chats[2]["conversations"][-1]["value"] == rows[3]["generated_text"]
    read = convert_chats(report.out, str(tmp_path / "again.parquet"))
    assert (read.records, read.written) == (3, sum(bool(chat["conversations"][-1]["value"]) for chat in chats))
    assert pq.read_table(read.out)["answer"].to_pylist()[0] == rows[0]["generated_text"]


def test_an_exported_conversation_ends_after_its_first_human_turn(tiny_run: TinyRun, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Old."}, {"from": "human", "value": "And?"}]
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "c", "conversations": turns}) + "\n")
    tiny_run("run", *SHORT, data={"path": str(tmp_path / "c.jsonl")})
    [chat] = json.loads(Path(export(str(tmp_path / "run"), "sharegpt", str(tmp_path / "o.json")).out).read_text())
    assert [turn["from"] for turn in chat["conversations"]] == ["human", "gpt"]
    assert chat["conversations"][0]["value"] == "Hi"


def test_predictions_have_one_line_per_document(tiny_run: TinyRun, batch_run: Path, tmp_path: Path) -> None:
    def row(task: str, doc_id: int, occurrence: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            "request_id": f"{task}:{doc_id}:{occurrence}",
            "prompt": f"Question {doc_id}",
            "prompt_token_ids": [5, 6, 7 + doc_id],
            "task": task,
            "doc_id": doc_id,
            "gen_kwargs": json.dumps({"until": ["Q:"]}),
            "temperature": 1.0,
            "max_tokens": 3,
            "stop": ["Q:"],
            "stop_token_ids": [],
            "ignore_eos": False,
        }
        return values

    asked = [row("one", 0, 0), row("one", 0, 1), row("one", 1, 0), row("two", 0, 0)]
    pq.write_table(pa.Table.from_pylist(asked, SCHEMA), tmp_path / "r.parquet")
    tiny_run("run", "speculation.policy=off", data={"path": str(tmp_path / "r.parquet")})
    texts = outputs(tmp_path / "run")["generated_text"].to_pylist()
    found = lines(export(str(tmp_path / "run"), "lm-eval", str(tmp_path / "p.jsonl")).out)
    assert [(line["task"], line["doc_id"], line["resps"]) for line in found] == [
        ("one", 0, [texts[:2]]),
        ("one", 1, [texts[2:3]]),
        ("two", 0, [texts[3:]]),
    ]
    assert found[0]["arguments"] == {"gen_args_0": {"arg_0": "Question 0", "arg_1": {"until": ["Q:"]}}}
    with pytest.raises(DataError, match="no task and doc_id"):
        export(str(batch_run), "lm-eval", str(tmp_path / "none.jsonl"))
    assert not (tmp_path / "none.jsonl").exists()


def test_existing_files_changed_inputs_and_synthetic_runs_are_refused(
    tiny_run: TinyRun, synthetic_run: str, tmp_path: Path, batch: str
) -> None:
    tiny_run("run", *SHORT, data={"path": batch})
    run, out = str(tmp_path / "run"), tmp_path / "o.jsonl"
    out.write_text("mine")
    with pytest.raises(JobError, match=r"already exists; .*--overwrite"):
        export(run, "jsonl", str(out))
    assert out.read_text() == "mine"
    export(run, "jsonl", str(out), overwrite=True)
    Path(batch).write_text(Path(batch).read_text() + "\n")
    with pytest.raises(OutputError, match="is missing or changed"):
        export(run, "sharegpt", str(tmp_path / "c.json"))
    with pytest.raises(OutputError, match="synthetic"):
        export(synthetic_run, "csv", str(tmp_path / "f.csv"))
    shown = CliRunner().invoke(main, ["convert", run, "--to", "csv", "--keep", "x"])
    assert shown.exit_code == 2 and "--to parquet" in shown.output
