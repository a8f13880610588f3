import numpy as np
import pytest

from specpipe.core import ProposerName
from specpipe.speculation.estimates.round_model import TERMS, RoundWork, work_by_term


def terms(proposer: ProposerName, k: int, expert_share: float = 0.0) -> dict[str, float]:
    work = RoundWork(proposer, k, 3, 500, expert_share)
    found = dict(zip(TERMS, work_by_term(work).tolist(), strict=True))
    return {name: amount for name, amount in found.items() if amount}


def test_terms_hold_the_work_of_each_proposer() -> None:
    plain = {"weights": 1, "tokens": 3, "few": pytest.approx(3**0.5), "kv": 500}
    assert terms("none", 0) == terms("draft", 0) == plain
    assert terms("draft", 2) == plain | {"tokens": 9, "few": 3, "draft": 2, "draft_tokens": 6}
    assert terms("none", 0, 0.25) == plain | {"experts": pytest.approx(1 - 0.75**3)}
    wide = dict(zip(TERMS, work_by_term(RoundWork("none", 1, 100, 0)).tolist(), strict=True))
    assert wide["wide"] == 8
    assert terms("ngram", 4) == plain | {"tokens": 15, "few": pytest.approx(15**0.5), "ngram": 1, "ngram_rows": 3}


def test_arrays_of_rounds_equal_single_rounds() -> None:
    k, rows = np.meshgrid(np.arange(4.0), np.arange(1.0, 6.0), indexing="ij")
    together = work_by_term(RoundWork("draft", k, rows, 100 * rows))
    for i in range(4):
        for n in range(1, 6):
            assert together[:, i, n - 1] == pytest.approx(work_by_term(RoundWork("draft", i, n, 100 * n)))
