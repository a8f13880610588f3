"""Rows of a recording that score given texts: lm-eval's loglikelihood and loglikelihood_rolling requests.

A request of lm-eval's `loglikelihood` is one row. A text of `loglikelihood_rolling` is one row for each window that
lm-eval's transformers backend makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specpipe.errors import JobError, OutputError
from specpipe.evaluation.harness.recorded_requests import RequestIds

LOGLIKELIHOOD, ROLLING = "loglikelihood", "loglikelihood_rolling"

Encoded = tuple[Any, Sequence[int], Sequence[int]]
"""(context, continuation) as text, and token ids of both."""
Window = tuple[Sequence[int], Sequence[int]]
"""Token ids before the scored ones, and the scored ones."""


class RecordedScore(NamedTuple):
    """Result of one score row of a run."""

    logprob: float
    is_greedy: bool


def loglikelihood_rows(
    requests: Sequence[Any], encoded: Iterable[Encoded], max_length: int
) -> Iterator[dict[str, object]]:
    """Yields a row for each of lm-eval's Instances, in order. encoded: what `_loglikelihood_tokens` is called with.

    max_length: tokens that a forward reads; a longer context loses its beginning, as in lm-eval's transformers
    backend. Raises JobError for a continuation without tokens, or with more than max_length.
    """
    ids = RequestIds()
    for request, (texts, context, continuation) in zip(requests, encoded, strict=True):
        if not 0 < len(continuation) <= max_length:
            raise JobError(
                f"task {request.task_name}, document {request.doc_id}: the text to score has {len(continuation)} "
                f"tokens; expected 1 to {max_length}, the model's length"
            )
        begin = max(0, len(context) + len(continuation) - max_length - 1)
        yield _row(request, ids.next(LOGLIKELIHOOD, *texts), texts[0], (context[begin:], continuation))


def rolling_rows(requests: Iterable[Any], windows: Iterable[Sequence[Window]]) -> Iterator[dict[str, object]]:
    """Yields a row for each window of the texts of lm-eval's Instances, in order."""
    ids = RequestIds()
    for request, parts in zip(requests, windows, strict=True):
        name = ids.next(ROLLING, *request.args)
        for i, part in enumerate(parts):
            yield _row(request, f"{name}:{i}/{len(parts)}", "", part)


def _row(request: Any, request_id: str, prompt: str, window: Window) -> dict[str, object]:
    """Returns a row of recorded_requests.SCHEMA; sampling parameters are null."""
    return {
        "request_id": request_id,
        "prompt": prompt,
        "prompt_token_ids": list(window[0]),
        "continuations": [list(window[1])],
        "task": request.task_name,
        "doc_id": request.doc_id,
    }


def rolling_ids(name: str, answered: Iterable[str]) -> list[str]:
    """Returns the ids of a text's windows; empty where the text has none. answered: ids that start with `name`.

    Raises OutputError where a window is missing.
    """
    found = list(answered)
    if not found:
        return []
    windows = int(found[0].rpartition("/")[2])
    ids = [f"{name}:{i}/{windows}" for i in range(windows)]
    if missing := set(ids).difference(found):
        raise OutputError(f"the run has no output for {len(missing)} of the {windows} windows of request {name}")
    return ids


def windows_by_text(request_ids: Iterable[str]) -> Mapping[str, list[str]]:
    """Returns the ids of rows by the id of the text that they are windows of."""
    found: dict[str, list[str]] = {}
    for request_id in request_ids:
        if "/" in request_id:
            found.setdefault(request_id.rpartition(":")[0], []).append(request_id)
    return found
