"""Comparison of two paths: `specpipe compare`."""

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
    """Compares two runs or two results of lm-eval.

    a, b: paths for compared_run.open_compared_run, with results_a and results_b. metric: compare only this one.
    logits: compute logits of A's target where outputs first differ.
    Raises OutputError, DataError, JobError, ModelError.
    """
    comparison = compare(open_compared_run(a, results_a), open_compared_run(b, results_b), metric)
    if not logits:
        return comparison
    run, texts = comparison.a.run, comparison.texts
    if run is None or texts is None:
        raise JobError("--logits needs token ids of two runs; expected the folders of two runs as A and B")
    if not texts.divergences:
        return comparison
    return dataclasses.replace(comparison, gaps=tuple(logit_gaps(run, texts.divergences, comparison.a.dtype)))
