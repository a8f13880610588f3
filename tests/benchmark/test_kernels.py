"""Inputs of the kernel benchmark."""

from __future__ import annotations

import pytest

from specpipe.benchmark.kernels import KernelBench, disturbance, sweep


@pytest.mark.parametrize(
    "acceptance", [0.7, pytest.param(0.2, marks=pytest.mark.slow), pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_drafts_are_accepted_at_the_wanted_rate(acceptance: float) -> None:
    bench = KernelBench(
        batches=(300,), ks=(1,), vocabs=(2000,), dtypes=("float32",), acceptances=(acceptance,), replays=2, device="cpu"
    )
    (measured,) = sweep(bench)
    assert measured.acceptance_length - 1 == pytest.approx(acceptance, abs=0.07)
    assert disturbance(acceptance) > 0
