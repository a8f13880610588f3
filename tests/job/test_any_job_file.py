"""Whatever a job file holds, it is a job or a JobError in plain words: never a traceback."""

import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specpipe.errors import JobError
from specpipe.job import JobSpec, parse_job
from specpipe.job.load import load_job

CASES = int(os.environ.get("SPECPIPE_CASES", "200"))
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


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(values | jobs)
def test_any_values_are_a_job_or_a_job_error(job: object) -> None:
    try:
        parse_job(job, source="any")
    except JobError as error:
        assert str(error).startswith("any")


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1")), jobs.map(yaml.dump)))
def test_any_text_is_a_job_or_a_job_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_job(path)
    except JobError as error:
        assert "any.yaml" in str(error)
