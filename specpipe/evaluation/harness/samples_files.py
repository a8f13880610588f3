"""lm-eval's samples files: scores and answers per document and filter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specpipe.errors import DataError

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.\-]+)\.jsonl$")
_NO_METRICS = ("bypass",)


class SampleKey(NamedTuple):
    """Identity of a scored answer. Scores of equal keys are comparable: same document, prompt and filter."""

    task: str
    doc_id: int
    filter: str
    prompt_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSample:
    """Scores of one document's answers with one filter."""

    values: Mapping[str, float]
    """Score by metric."""
    answers: tuple[str, ...]
    """Generated texts, one per repeat of the task."""
    prompt: str
    target: str


def find_samples(path: Path) -> dict[str, Path]:
    """Returns {task: newest samples file} in a folder and its subfolders, or of the one file `path`."""
    if path.is_file():
        match = _NAME.search(path.name)
        return {match["task"] if match else path.stem: path}
    found: dict[str, tuple[str, Path]] = {}
    for file in sorted(path.rglob("samples_*.jsonl")):
        if match := _NAME.search(file.name):
            found[match["task"]] = max(found.get(match["task"], ("", file)), (match["date"], file))
    return {task: file for task, (_, file) in sorted(found.items())}


def read_samples(files: Mapping[str, Path]) -> dict[SampleKey, EvalSample]:
    """Reads samples files by task. Raises DataError for a file that lm-eval did not write."""
    samples = {}
    for task, file in files.items():
        for key, sample in _samples(task, file):
            if key in samples:
                raise DataError(f"{file}: document {key.doc_id} with filter {key.filter} is duplicated")
            samples[key] = sample
    return samples


def _samples(task: str, file: Path) -> Iterator[tuple[SampleKey, EvalSample]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                key = SampleKey(task, row["doc_id"], row["filter"], row["prompt_hash"])
                values = {
                    name: float(row[name])
                    for name in row["metrics"]
                    if name not in _NO_METRICS and isinstance(row[name], bool | int | float)
                }
                answers = tuple(str(text) for texts in row["resps"] for text in texts)
                prompt = str(row["arguments"]["gen_args_0"]["arg_0"])
                yield key, EvalSample(values=values, answers=answers, prompt=prompt, target=str(row["target"]))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{file}, line {number}: {type(error).__name__}: {error}; expected a samples file of lm-eval "
                    "(--log_samples)"
                ) from error
