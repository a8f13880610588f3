"""Paired differences against scipy and by hand, and their verdicts."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from lm_eval.api.metrics import weighted_perplexity
from scipy import stats

from specpipe.evaluation.compare.paired_scores import MetricComparison, compare_scores
from specpipe.evaluation.harness.samples_files import EvalSample

NAME = ("task", "none", "exact_match")


def sample(value: float, answer: str = "", *logprobs: float, metric: str = NAME[2], weight: float = 1.0) -> EvalSample:
    return EvalSample(
        values={metric: value}, answers=(answer,), prompt="", target="", weights={metric: weight}, logprobs=logprobs
    )


def compared(a: Sequence[float], b: Sequence[float], *, same_answers: int) -> MetricComparison:
    """Compares generated answers, of which the first `same_answers` are the same text."""
    other = [sample(value, "" if i < same_answers else "other") for i, value in enumerate(b)]
    return compare_scores(NAME, [sample(value) for value in a], other)


def test_the_standard_error_is_that_of_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 37).astype(float)
    b = np.where(rng.random(37) < 0.2, 1 - a, a)
    found = compared(a, b, same_answers=30)
    expected = stats.ttest_rel(b, a)
    assert found.z == pytest.approx(expected.statistic)
    assert found.stderr_a == pytest.approx(stats.sem(a))
    assert found.difference == pytest.approx(found.mean_b - found.mean_a)
    assert (found.higher_in_b, found.higher_in_a) == (int((b > a).sum()), int((a > b).sum()))


@pytest.mark.parametrize(
    ("b", "same", "finding", "words"),
    [
        ([1, 0, 1, 1, 0], 5, "identical", "identical: all 5 answers and scores are the same"),
        ([1, 0, 1, 1, 0], 3, "same scores", "no score changed (2 of 5 answers differ)"),
        ([1, 1, 0, 1, 0], 3, "within chance", "no difference beyond chance (0.0 standard errors; 2 of 5 answers"),
        ([0, 0, 0, 0, 0], 2, "different", "DIFFERENT: B is lower by 0.6000, 2.4 standard errors (3 of 5"),
        ([2, 1, 2, 2, 1], 0, "different", "B is higher by 1.0000, the same for every document"),
    ],
)
def test_verdicts(b: list[float], same: int, finding: str, words: str) -> None:
    found = compared([1, 0, 1, 1, 0], b, same_answers=same)
    assert found.finding == finding
    assert words in found.verdict


def test_one_document_has_no_standard_error() -> None:
    found = compared([1.0], [0.0], same_answers=0)
    assert (found.stderr, found.stderr_a) == (0.0, 0.0)
    assert found.z == -math.inf and found.finding == "different"


def test_a_perplexity_is_that_of_lm_eval_and_its_error_that_of_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(5, 60, 80)
    a = -words * rng.uniform(1.0, 3.0, 80)
    b = a - words * rng.normal(0.02, 0.05, 80)
    name = ("task", "none", "word_perplexity")
    sides = [
        [sample(v, "", v, metric=name[2], weight=float(w)) for v, w in zip(side, words, strict=True)] for side in (a, b)
    ]
    found = compare_scores(name, *sides)
    assert found.mean_a == pytest.approx(weighted_perplexity(list(zip(a, words, strict=True))))
    assert found.difference == pytest.approx(weighted_perplexity(list(zip(b, words, strict=True))) - found.mean_a)
    draws = rng.integers(0, 80, (4000, 80))
    totals = words[draws].sum(1)
    resampled = np.exp(-b[draws].sum(1) / totals) - np.exp(-a[draws].sum(1) / totals)
    assert found.stderr == pytest.approx(resampled.std(), rel=0.1)
    assert (found.higher_in_b, found.higher_in_a) == (int((b < a - 1e-3).sum()), int((b > a + 1e-3).sum()))


def test_rounding_moves_no_perplexity_and_no_answer() -> None:
    name = ("task", "none", "perplexity")
    a = [sample(-10.0 - i, "", -10.0 - i, metric=name[2]) for i in range(9)]
    b = [sample(s.values[name[2]] + 2e-4, "", s.logprobs[0] + 2e-4, metric=name[2]) for s in a]
    assert compare_scores(name, a, b).finding == "identical"
    far = [sample(s.values[name[2]] - 0.02, "", s.logprobs[0] - 0.02, metric=name[2]) for s in a]
    assert compare_scores(name, a, far).finding == "different"
    assert compare_scores(name, a, far, "bfloat16").finding == "identical"


def test_changed_best_choices_are_counted_and_near_ties_named() -> None:
    a = [sample(1.0, "", -1.0, -1.0005), sample(1.0, "", -1.0, -3.0), sample(0.0, "", -4.0, -2.0)]
    b = [sample(0.0, "", -1.0005, -1.0), sample(0.0, "", -3.0, -1.0), sample(0.0, "", -4.0, -2.0)]
    found = compare_scores(NAME, a, b)
    assert (found.best_changed, found.near_ties, found.same_answers) == (2, 1, 2)
    assert "2 best choices changed, 1 of them near-ties" in found.verdict
