"""Paired differences against scipy and by hand, and their verdicts."""

import math

import numpy as np
import pytest
from scipy import stats

from specpipe.evaluation.compare.paired_scores import compare_scores

NAME = ("task", "none", "exact_match")


def test_the_standard_error_is_that_of_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 37).astype(float)
    b = np.where(rng.random(37) < 0.2, 1 - a, a)
    found = compare_scores(NAME, a, b, same_answers=30)
    expected = stats.ttest_rel(b, a)
    assert found.z == pytest.approx(expected.statistic)
    assert found.stderr_a == pytest.approx(stats.sem(a))
    assert found.difference == pytest.approx(found.mean_b - found.mean_a)
    assert (found.higher_in_b, found.higher_in_a) == (int((b > a).sum()), int((a > b).sum()))


@pytest.mark.parametrize(
    ("b", "same", "finding", "words"),
    [
        ([1, 0, 1, 1, 0], 5, "identical", "identical: all 5 answers and scores are the same"),
        ([1, 0, 1, 1, 0], 3, "same scores", "no score changed (2 of 5 answers differ in wording)"),
        ([1, 1, 0, 1, 0], 3, "within chance", "no difference beyond chance (0.0 standard errors; 2 of 5 answers"),
        ([0, 0, 0, 0, 0], 2, "different", "DIFFERENT: B is lower by 0.6000, 2.4 standard errors (3 of 5"),
        ([2, 1, 2, 2, 1], 0, "different", "B is higher by 1.0000, the same for every document"),
    ],
)
def test_verdicts(b: list[float], same: int, finding: str, words: str) -> None:
    found = compare_scores(NAME, [1, 0, 1, 1, 0], b, same_answers=same)
    assert found.finding == finding
    assert words in found.verdict


def test_one_document_has_no_standard_error() -> None:
    found = compare_scores(NAME, [1.0], [0.0], same_answers=0)
    assert (found.stderr, found.stderr_a) == (0.0, 0.0)
    assert found.z == -math.inf and found.finding == "different"
