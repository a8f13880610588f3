"""Rounds of any shape, stride and mix of features, found by hypothesis, each step against fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.feature_rounds import FEATURES, FeatureRound, possible
from support.pairwise import Case
from support.sampling_cases import BACKENDS, INTERPRETED, INTERPRETER, Backend

SHAPES = {"k": st.integers(1, 32), "stride": st.integers(0, 9)}
CASES = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in FEATURES.items()} | SHAPES)
any_round = given(
    case=CASES.filter(possible),
    vocab=st.integers(10, 130),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)


def examples(count: int) -> Callable[[Any], Any]:
    """Returns settings with the same examples in every run, because draws that tie up to rounding may differ."""
    known = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=known)


@examples(12)
@any_round
def test_random_rounds_of_the_reference(case: Case, vocab: int, count: int, seed: int) -> None:
    FeatureRound(case, Backend("reference", "cpu"), seed=seed, vocab=vocab, count=count).check()


@pytest.mark.slow
@examples(300)
@any_round
def test_many_rounds_of_the_reference(case: Case, vocab: int, count: int, seed: int) -> None:
    FeatureRound(case, Backend("reference", "cpu"), seed=seed, vocab=vocab, count=count).check()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [BACKENDS[2]])
@examples(50)
@any_round
def test_many_rounds(backend: Backend, case: Case, vocab: int, count: int, seed: int) -> None:
    """Each example compiles several kernels in a second or more, so they are fewer than those of the reference."""
    FeatureRound(case, backend, seed=seed, vocab=vocab, count=count).check()


@pytest.mark.slow
@INTERPRETED
@examples(15)
@any_round
def test_interpreted_rounds(case: Case, vocab: int, count: int, seed: int) -> None:
    FeatureRound(case, INTERPRETER, seed=seed, vocab=vocab, count=count).check()
