import pytest

from specpipe.core import AcceptanceCounts
from specpipe.speculation.estimates.acceptance_estimate import PRIOR, AcceptanceEstimate


def counts(reached: tuple[int, ...], accepted: tuple[int, ...]) -> AcceptanceCounts:
    return AcceptanceCounts(drafts=reached[0], reached_per_position=reached, accepted_per_position=accepted)


def seen(reached: tuple[int, ...], accepted: tuple[int, ...]) -> AcceptanceEstimate:
    return AcceptanceEstimate().with_counts(counts(reached, accepted), row_rounds=reached[0], keep=1.0)


def test_estimate_without_counts_equals_the_prior() -> None:
    assert AcceptanceEstimate().conditional(3) == pytest.approx([PRIOR] * 3)
    assert AcceptanceEstimate().coverage == 1.0


def test_position_counts_only_where_it_was_reached() -> None:
    known = seen((10_000, 1_000), (9_000, 200))  # most rounds had K = 1
    assert known.conditional(2) == pytest.approx([0.9, 0.2], abs=0.01)


def test_position_never_reached_follows_the_one_before() -> None:
    assert seen((1000,), (30,)).conditional(4)[3] == pytest.approx(0.035, abs=0.01)
    assert seen((1000,), (950,)).conditional(4)[3] == pytest.approx(0.95, abs=0.01)


def test_old_counts_decay() -> None:
    old = seen((1000,), (900,))
    new = old.with_counts(counts((1000,), (100,)), row_rounds=1000, keep=0.01)
    assert new.conditional(1)[0] == pytest.approx(0.1, abs=0.02)
    assert new.drafts == pytest.approx(1010)


def test_rows_without_a_draft_lower_coverage() -> None:
    known = AcceptanceEstimate().with_counts(counts((300,), (200,)), row_rounds=1000, keep=1.0)
    assert known.coverage == pytest.approx(0.3, abs=0.01)


def test_counts_of_other_workers_become_the_prior() -> None:
    prior = seen((1000, 900), (900, 90)).as_prior()
    assert prior.conditional(2) == pytest.approx([0.9, 0.1], abs=0.02)
    own = prior.with_counts(counts((100, 50), (50, 40)), row_rounds=100, keep=1.0)
    assert own.conditional(2) == pytest.approx([0.53, 0.7], abs=0.02)
