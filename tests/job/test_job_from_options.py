"""Jobs made of command-line options, and options applied to a job file."""

from pathlib import Path

import pytest

from specpipe.errors import JobError
from specpipe.job.job_from_options import job_from_options


def test_options_without_draft_make_an_ngram_job() -> None:
    spec = job_from_options(None, ["sampling.top_k=4"], model="org/big", data="rows.jsonl", out="runs/a")
    assert (spec.model.target, spec.data.path, spec.output.path) == ("org/big", "rows.jsonl", "runs/a")
    assert (spec.speculation.active_proposer, spec.sampling.top_k) == ("ngram", 4)


def test_draft_option_makes_the_draft_model_draft() -> None:
    spec = job_from_options(None, [], model="org/big", draft="org/small", data="rows.jsonl", out="runs/a")
    assert spec.draft_model == "org/small"


@pytest.mark.parametrize(
    ("options", "missing"),
    [({}, "--model and --data and --out"), ({"model": "a", "out": "b"}, "no --data;"), ({"draft": "a"}, "--model")],
)
def test_error_names_missing_options(options: dict[str, str], missing: str) -> None:
    with pytest.raises(JobError) as caught:
        job_from_options(None, [], **options)
    assert missing in str(caught.value) and "specpipe init" in str(caught.value)


def test_options_override_job_file_and_set_overrides_options(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: {target: a, draft: b}\ndata: {path: c}\noutput: {path: d}\n")
    spec = job_from_options(str(path), ["output.path=e"], model="7", draft="no", out="f")
    assert (spec.model.target, spec.model.draft, spec.data.path, spec.output.path) == ("7", "no", "c", "e")
