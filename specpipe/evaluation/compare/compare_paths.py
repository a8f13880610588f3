"""Comparison of two paths: `specpipe compare`."""

from __future__ import annotations

import dataclasses

from specpipe.errors import JobError, SpecpipeError
from specpipe.evaluation.compare.compared_run import open_compared_run
from specpipe.evaluation.compare.comparison import Comparison, compare
from specpipe.evaluation.compare.logit_gaps import MAX_LOGIT_GAPS, greedy_requests, logit_gaps


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
        return dataclasses.replace(comparison, unexplained=_unexplained(comparison))
    run, texts = comparison.a.run, comparison.texts
    if run is None or texts is None:
        raise JobError("--logits needs token ids of two runs; expected the folders of two runs as A and B")
    if not texts.divergences:
        return comparison
    return dataclasses.replace(comparison, gaps=tuple(logit_gaps(run, texts.divergences, comparison.a.dtype)))


def _unexplained(comparison: Comparison) -> int:
    """Returns the number of greedy rows whose outputs differ although neither rounding nor a score accounts for it.

    Rounding does so in 16 bits, hardly ever in fp32; scores do so for runs with other settings.
    """
    a, b, texts = comparison.a, comparison.b, comparison.texts
    if a.run is None or texts is None or not texts.divergences:
        return 0
    if any(run.settings.get("sampling.temperature") != 0 for run in (a, b)):
        return 0
    same = a.deciding == b.deciding
    if (same and {a.dtype, b.dtype} != {"float32"}) or (not same and comparison.metrics):
        return 0
    try:
        greedy = sum(1 for _ in greedy_requests(a.run, texts.divergences))
    except SpecpipeError:  # input or tokenizer is gone: rows with a temperature of their own count too
        return len(texts.positions)
    return len(texts.positions) if greedy == min(len(texts.divergences), MAX_LOGIT_GAPS) else greedy
