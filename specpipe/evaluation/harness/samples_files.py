"""lm-eval's samples files: scores and answers per document and filter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specpipe.errors import DataError

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.\-]+)\.jsonl$")
_NO_METRICS = ("bypass",)
_WEIGHTED = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics whose values are pairs of log-probability and weight."""


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
    """Score by metric; for perplexities the log-probability of the document."""
    answers: tuple[str, ...]
    """Generated texts, one per repeat of the task; for scored texts each with its log-probability."""
    prompt: str
    target: str
    weights: Mapping[str, float] = field(default_factory=dict)
    """Words, bytes or 1 that a perplexity divides by, by metric."""
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the scored texts; empty for documents whose answer was generated."""


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
                yield key, _sample(row)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{file}, line {number}: {type(error).__name__}: {error}; expected a samples file of lm-eval "
                    "(--log_samples)"
                ) from error


def _sample(row: Mapping[str, Any]) -> EvalSample:
    """Returns the content of a line. Raises KeyError, TypeError or ValueError for one that lm-eval did not write."""
    values, weights = {}, {}
    for name in row["metrics"]:
        value = row[name]
        if name in _NO_METRICS:
            continue
        if name in _WEIGHTED and isinstance(value, list) and len(value) == 2:
            values[name], weights[name] = map(float, value)
        elif isinstance(value, bool | int | float):
            values[name] = float(value)
            weights[name] = 1.0
    arguments = [list(given.values()) for given in row["arguments"].values()]
    answers = [answer for texts in row["resps"] for answer in texts]
    logprobs: tuple[float, ...] = ()
    if len(arguments[0]) == 1 or isinstance(arguments[0][1], str):  # rolling, or a context and a continuation
        logprobs = tuple(float(answer[0] if isinstance(answer, list) else answer) for answer in answers)
        texts = [given[-1] for given in arguments] if len(arguments[0]) == 2 else ["text"] * len(logprobs)
        answers = [f"{text!r}: {value:.4f}" for text, value in zip(texts, logprobs, strict=False)]
    return EvalSample(
        values=values,
        answers=tuple(map(str, answers)),
        prompt=str(arguments[0][0]),
        target=str(row["target"]),
        weights=weights,
        logprobs=logprobs,
    )
