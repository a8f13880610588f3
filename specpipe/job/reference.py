"""Generator of docs/jobs.md from the fields of a job: `python -m specpipe.job.reference > docs/jobs.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specpipe.job.field_types import Described
from specpipe.job.job_problems import describe
from specpipe.job.job_spec import JobSpec, is_tuning

_PAGE = re.compile(r"docs/([\w-]+)\.md")  # links to other pages in the fields' texts
_HEAD = """# Job files

A job file is YAML. `model.target`, `data.path` and `output.path` are required, and `model.draft` unless another
proposer is chosen:

```yaml
model:
  target: builtin:tiny
  draft: builtin:tiny
data:
  path: jobs/data/sharegpt_sample.parquet
output:
  path: runs/first
```

`specpipe run JOB --set speculation.policy=off --set output.path=runs/plain` overrides keys; values are YAML. Unknown
keys are errors. To set a key to nothing, leave it out or write `none`.

*Identity* fields make the outputs: a run resumes only where all of them are unchanged. *Tuning* fields may change
between starts. Greedy and `invariant` runs give the same tokens for any tuning. A sampled `standard` or `block` run
whose K, policy or proposer changes keeps its distribution, not its tokens.

<!-- Generated from here on by `python -m specpipe.job.reference`. -->
"""


def reference() -> str:
    """Returns the whole page, in Markdown."""
    lines = [_HEAD, *_table("Top level", "Keys outside of the sections.", JobSpec)]
    for name, field in JobSpec.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += ["", *_table(f"`{name}`", field.annotation.__doc__ or "", field.annotation)]
    return _PAGE.sub(r"[\1](\1.md)", "\n".join(lines)) + "\n"


def _table(title: str, about: str, model: type[BaseModel]) -> Iterator[str]:
    """Yields the lines of a section's heading and table."""
    yield from (f"## {title}", "", about, "", "| key | takes | default | on resume | |", "|---|---|---|---|---|")
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        role = "tuning" if is_tuning(field) else "identity"
        takes = describe(field.annotation, field.metadata)
        about = " ".join((field.description or "").split())
        yield f"| `{name}` | {takes} | {_default(field)} | {role} | {about} |"


def _default(field: FieldInfo) -> str:
    """Returns a field's default as a job file writes it."""
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, tuple) and any(isinstance(part, Described) for part in field.metadata):
        value = dict(value)
    return "none" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    print(reference(), end="")
