"""Pairwise combinations of a round's features: each possible pair of values occurs in at least one case."""

from __future__ import annotations

import pytest
from support.feature_rounds import FEATURES, FeatureRound, possible
from support.pairwise import Case, all_pairs, pairs_of, pairwise
from support.sampling_cases import BACKENDS, INTERPRETED, INTERPRETER, Backend

from specpipe_kernels.sampling.device import logit_rows as triton_rows

CASES, IMPOSSIBLE = pairwise(FEATURES, possible)
SAMPLE = CASES[:: len(CASES) // 2][:2]


def named(case: Case) -> str:
    return "-".join(str(value).removeprefix("torch.") for value in case.values())


def test_cases_cover_every_possible_pair_of_features() -> None:
    assert {
        (("proposals", "one-hot"), ("lse", "given")),
        (("proposals", "one-hot"), ("bounds", "given")),
        (("proposals", "one-hot"), ("invalid", "draft")),
    } == IMPOSSIBLE
    covered = set().union(*map(pairs_of, CASES))
    assert covered == all_pairs(FEATURES) - IMPOSSIBLE
    assert len(CASES) < 40


@pytest.mark.parametrize("case", SAMPLE, ids=named)
@pytest.mark.parametrize("backend", BACKENDS)
def test_representative_rounds_on_every_backend(case: Case, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    FeatureRound(case, backend, seed=7, vocab=40, count=2).check()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize(
    ("backend", "seeds"),
    [
        pytest.param(BACKENDS[0].values[0], 10, id="reference"),
        pytest.param(INTERPRETER, 1, id="interpreted", marks=INTERPRETED),
        pytest.param(BACKENDS[2].values[0], 10, id="cuda", marks=pytest.mark.gpu),
    ],
)
def test_every_pair_of_features(case: Case, backend: Backend, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    for seed in range(seeds):
        FeatureRound(case, backend, seed=seed).check()
