"""Outputs of an evaluation in lm-eval's format of unscored predictions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TextIO

from specpipe.errors import DataError
from specpipe.evaluation.export.answered_rows import AnsweredRow, answered_rows
from specpipe.evaluation.run_outputs import RunOutputs

_COLUMNS = ("task", "doc_id", "gen_kwargs", "prompt")


def write_predictions(run: RunOutputs, file: TextIO) -> int:
    """Writes one line per document of a recording, with those keys of lm-eval's samples files that need no task.

    A document with a failed row has `error` and no answers. Returns the number of failed rows. Raises DataError for a
    run on other data than a recording.
    """
    failed = 0
    for (task, doc_id, prompt), rows in groupby(answered_rows(run, _COLUMNS), key=_document):
        group = list(rows)
        outputs = [output for row in group for output in row.outputs]
        errors = [output["error"] for output in outputs if output["finish_reason"] == "error"]
        failed += len(errors)
        line = _line(doc_id, prompt, group[0].values, [output["generated_text"] for output in outputs])
        if errors:
            line |= {"resps": [], "filtered_resps": [], "error": errors[0]}
        file.write(json.dumps({"task": task, **line}, ensure_ascii=False) + "\n")
    return failed


def _document(row: AnsweredRow) -> tuple[Any, Any, Any]:
    if not {"task", "doc_id", "gen_kwargs"} <= row.values.keys():
        raise DataError(
            "the run's dataset has no task and doc_id; expected a run on a recording of `specpipe eval record`"
        )
    return row.values["task"], row.values["doc_id"], row.values["prompt"]


def _line(doc_id: int, prompt: str, values: Mapping[str, object], answers: Sequence[str]) -> dict[str, Any]:
    return {
        "doc_id": doc_id,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": json.loads(str(values["gen_kwargs"]))}},
        "resps": [list(answers)],
        "filtered_resps": [list(answers)],
        "filter": "none",
        "metrics": [],
        "target": "",
        "prompt_hash": hashlib.sha256(prompt.encode()).hexdigest(),
    }
