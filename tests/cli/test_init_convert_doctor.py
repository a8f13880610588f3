"""`specpipe init`, `convert` and `doctor`."""

import json
import os
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from specpipe.cli.main import main
from specpipe.data import list_files, read_rows
from specpipe.data.requests.prompts import find_prompt
from specpipe.job import load_job


def specpipe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("path", ["job.yaml", "my jobs/eval 1.yaml"])
def test_init_writes_a_job_that_can_run_unchanged(path: str) -> None:
    assert specpipe("init", path).exit_code == 0
    spec = load_job(path)
    assert spec.model.target == spec.draft_model == "builtin:tiny"
    (file,) = list_files(spec.data.path)
    assert all(find_prompt(row.values or {}, None).messages for row in read_rows(file, 0, file.rows))
    planned = specpipe("run", path, "--dry-run")
    assert planned.exit_code == 0 and "8 in 1 file(s)" in planned.output


def test_commented_keys_of_the_job_are_valid() -> None:
    specpipe("init")
    lines = Path("job.yaml").read_text().splitlines()
    keys = [line for line in lines if line.startswith("  # ") and ": " in line]
    assert len(keys) >= 12
    keys_in_comments = {key.split("#")[1].split(":")[0].strip() for key in keys}
    kept = [line for line in lines if line.split(":")[0].strip() not in keys_in_comments]
    Path("all.yaml").write_text("\n".join(line.replace("  # ", "  ", 1) if line in keys else line for line in kept))
    spec = load_job("all.yaml")
    assert spec.sampling.defaults == "model" and spec.speculation.policy == "off" and spec.data.limit == 100


def test_init_writes_a_schema_that_its_job_meets() -> None:
    specpipe("init")
    text = Path("job.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    schema = json.loads(Path("job.schema.json").read_text())
    assert schema == json.loads(specpipe("init", "other.yaml", "--schema").stdout) and not Path("other.yaml").exists()
    job = yaml.safe_load(text)
    jsonschema.validate(job, schema)
    for section, key, value in (("workers", "slot", 4), ("workers", "slots", 0), ("sampling", "top_p", "high")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**job, section: {**job[section], key: value}}, schema)


def test_init_replaces_files_only_with_overwrite() -> None:
    Path("job-prompts.jsonl").write_text("mine")
    refused = specpipe("init")
    assert refused.exit_code == 2 and "job-prompts.jsonl already exists" in refused.stderr
    assert os.listdir() == ["job-prompts.jsonl"]
    assert specpipe("init", "--overwrite").exit_code == 0


def test_convert_reports_mapped_and_skipped_turns() -> None:
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


def test_unconverted_dataset_is_rejected_with_the_command() -> None:
    Path("chats.json").write_text("[]")
    Path("job.yaml").write_text(
        "model: {target: 'builtin:tiny', draft: 'builtin:tiny'}\ndata: {path: chats.json}\noutput: {path: out}\n"
    )
    refused = specpipe("run", "job.yaml", "--dry-run")
    assert refused.exit_code == 2 and f"specpipe convert {os.getcwd()}/chats.json --to parquet" in refused.stderr


def test_doctor_exits_with_1_for_problems() -> None:
    specpipe("init")
    passed = specpipe("doctor", "job.yaml")
    assert passed.exit_code == 0 and "No problems found." in passed.stdout
    problems = specpipe("doctor", "job.yaml", "--set", "model.target=./nowhere")
    assert problems.exit_code == 1 and "PROBLEM target: model folder ./nowhere does not exist" in problems.stdout
    assert "Traceback" not in problems.output
