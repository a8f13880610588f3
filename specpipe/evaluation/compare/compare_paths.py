"""A comparison from two paths."""

from __future__ import annotations

import dataclasses

from specpipe.errors import JobError
from specpipe.evaluation.compare.compared_run import open_compared_run
from specpipe.evaluation.compare.comparison import Comparison, compare
from specpipe.evaluation.compare.logit_gaps import logit_gaps


def compare_paths(
    a: str,
    b: str,
    *,
    metric: str | None = None,
    logits: bool = False,
    results_a: str | None = None,
    results_b: str | None = None,
) -> Comparison:
    """a, b: what sides.open_side takes; with `logits` the target of A is loaded and read at diverging positions.

    Raises OutputError, DataError, JobError, ModelError.
    """
    comparison = compare(open_compared_run(a, results_a), open_compared_run(b, results_b), metric)
    if not logits:
        return comparison
    run, texts = comparison.a.run, comparison.texts
    if run is None or texts is None:
        raise JobError("--logits needs the token ids of two runs; expected A and B to be folders of runs")
    if not texts.divergences:
        return comparison
    dtype = str(comparison.a.settings.get("model.dtype", "auto"))
    if dtype == "auto":
        on_cpu = all(str(device).startswith("cpu") for device in comparison.a.measured["devices"])
        dtype = "float32" if on_cpu else "bfloat16"
    return dataclasses.replace(comparison, gaps=tuple(logit_gaps(run, texts.divergences, dtype)))
