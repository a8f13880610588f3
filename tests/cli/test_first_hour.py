"""The commands of a new user's first hour: init, convert, doctor."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from specpipe.cli.main import main
from specpipe.data import list_files, read_rows
from specpipe.data.requests.prompts import find_prompt
from specpipe.job import load_job


def specpipe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("path", ["job.yaml", "my jobs/eval 1.yaml"])
def test_init_writes_a_job_that_plans_as_it_is(path: str) -> None:
    assert specpipe("init", path).exit_code == 0
    spec = load_job(path)
    assert spec.model.target == spec.draft_model == "builtin:tiny"
    (file,) = list_files(spec.data.path)
    assert all(find_prompt(row.values or {}, None).messages for row in read_rows(file, 0, file.rows))
    planned = specpipe("run", path, "--dry-run")
    assert planned.exit_code == 0 and "8 in 1 file(s)" in planned.output


def test_every_line_that_init_comments_out_is_a_key_that_works() -> None:
    specpipe("init")
    lines = Path("job.yaml").read_text().splitlines()
    keys = [line for line in lines if line.startswith("  # ") and ": " in line]
    assert len(keys) >= 12
    replaced = {key.split("#")[1].split(":")[0].strip() for key in keys}
    kept = [line for line in lines if line.split(":")[0].strip() not in replaced]
    Path("all.yaml").write_text("\n".join(line.replace("  # ", "  ", 1) if line in keys else line for line in kept))
    spec = load_job("all.yaml")
    assert spec.sampling.defaults == "model" and spec.speculation.policy == "off" and spec.data.limit == 100


def test_init_replaces_nothing_unless_asked_to() -> None:
    Path("job-prompts.jsonl").write_text("mine")
    refused = specpipe("init")
    assert refused.exit_code == 2 and "job-prompts.jsonl already exists" in refused.stderr
    assert os.listdir() == ["job-prompts.jsonl"]
    assert specpipe("init", "--overwrite").exit_code == 0


def test_convert_shows_what_was_mapped_and_skipped() -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "observation", "value": "b"}]
    records = [{"conversations": turns, "source": "x"}, {"conversations": turns[1:]}]
    Path("chats.json").write_text(json.dumps(records))
    shown = specpipe("convert", "chats.json", "--to", "parquet")
    assert shown.exit_code == 0
    for words in ("skipped: begins with observation", "observation → tool", "'source', left out", "chats.parquet"):
        assert words in shown.stdout
    assert pq.read_table("chats.parquet").num_rows == 1
    again = specpipe("convert", "chats.json", "--to", "parquet")
    assert again.exit_code == 2 and "already exists" in again.stderr


def test_a_dataset_that_must_be_converted_says_how() -> None:
    Path("chats.json").write_text("[]")
    Path("job.yaml").write_text(
        "model: {target: 'builtin:tiny', draft: 'builtin:tiny'}\ndata: {path: chats.json}\noutput: {path: out}\n"
    )
    refused = specpipe("run", "job.yaml", "--dry-run")
    assert refused.exit_code == 2 and f"specpipe convert {os.getcwd()}/chats.json --to parquet" in refused.stderr


def test_doctor_ends_with_1_when_there_is_something_to_mend() -> None:
    specpipe("init")
    well = specpipe("doctor", "job.yaml")
    assert well.exit_code == 0 and "No problems found." in well.stdout
    ill = specpipe("doctor", "job.yaml", "--set", "model.target=./nowhere")
    assert ill.exit_code == 1 and "PROBLEM target: model folder ./nowhere does not exist" in ill.stdout
    assert "Traceback" not in ill.output
