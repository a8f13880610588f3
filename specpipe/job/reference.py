"""docs/jobs.md, made from the fields themselves: `python -m specpipe.job.reference > docs/jobs.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specpipe.job.field_types import Described
from specpipe.job.job_problems import describe
from specpipe.job.job_spec import TUNING, JobSpec

_PAGE = re.compile(r"docs/([\w-]+)\.md")  # as the fields' own texts name other pages
_HEAD = """# Job files

A job file is YAML. Only `model.target`, `data.path` and `output.path` must be there, and a draft unless
`speculation` says that none is used:

```yaml
model:
  target: builtin:tiny
  draft: builtin:tiny
data:
  path: jobs/data/sharegpt_sample.parquet
output:
  path: runs/first
```

`specpipe run JOB --set speculation.policy=off --set output.path=runs/plain` changes keys without editing the file;
values are read as YAML. Keys that do not exist are errors. Where a key takes nothing, leave it out or write `none`.

A run resumes only where every field marked *identity* is as it was: those make the outputs. Fields marked *tuning* may
change between starts. Greedy and `invariant` runs give the same tokens for any tuning. A sampled `standard` or `block`
run that changes K, policy or proposer half way keeps its distribution, not its tokens.

<!-- Below: made by `python -m specpipe.job.reference`, from the fields of specpipe/job. -->
"""


def reference() -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD, *_table("Top level", "", "Keys outside of any section.", JobSpec)]
    for name, field in JobSpec.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += ["", *_table(f"`{name}`", f"{name}.", field.annotation.__doc__ or "", field.annotation)]
    return _PAGE.sub(r"[\1](\1.md)", "\n".join(lines)) + "\n"


def _table(title: str, prefix: str, about: str, model: type[BaseModel]) -> Iterator[str]:
    yield from (f"## {title}", "", about, "", "| key | takes | default | on resume | |", "|---|---|---|---|---|")
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        role = "tuning" if f"{prefix}{name}" in TUNING else "identity"
        takes = describe(field.annotation, field.metadata)
        about = " ".join((field.description or "").split())
        yield f"| `{name}` | {takes} | {_default(field)} | {role} | {about} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, tuple) and any(isinstance(part, Described) for part in field.metadata):
        value = dict(value)
    return "none" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    print(reference(), end="")
