"""Any content of a job file gives a job or a JobError, never another exception."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specpipe.errors import JobError
from specpipe.job import JobSpec, parse_job
from specpipe.job.job_file import load_job

SECTIONS = ("model", "data", "sampling", "speculation", "workers", "output")
KEYS = sorted({key for name in SECTIONS for key in JobSpec.model_fields[name].annotation.model_fields} | {"min", "max"})

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.binary(max_size=4),
    st.sampled_from(["auto", "off", "none", "builtin:tiny", "fixed", "draft", "s3://u:p@b/c", "../../etc", "{date}"]),
)  # fmt: skip
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=6), st.integers(-9, 9))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
sections = st.dictionaries(keys, values, max_size=6)
jobs = st.dictionaries(st.sampled_from([*SECTIONS, "name", "seed"]) | keys, sections | values, max_size=7)


def parses_or_raises_job_error(values: object) -> None:
    try:
        parse_job(values, source="any")
    except JobError as error:
        assert str(error).startswith("any")


def loads_or_raises_job_error(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_job(path)
    except JobError as error:
        assert "any.yaml" in str(error)


def check(cases: int, path: Path) -> None:
    each = settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck))
    each(given(values=values | jobs)(parses_or_raises_job_error))()
    texts = st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1")), jobs.map(yaml.dump))
    each(given(text=texts)(loads_or_raises_job_error))(path)


def test_any_values_or_text_give_job_or_job_error(tmp_path: Path) -> None:
    check(60, tmp_path / "any.yaml")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_job_files_give_job_or_job_error(tmp_path: Path) -> None:
    check(10_000, tmp_path / "any.yaml")
