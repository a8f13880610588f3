import pytest

from specpipe.core import AcceptanceCounts
from specpipe.speculation.estimates.acceptance import MIN_WEIGHT, PRIOR, Acceptance


def counts(reached: tuple[int, ...], accepted: tuple[int, ...]) -> AcceptanceCounts:
    return AcceptanceCounts(drafts=reached[0], reached_per_position=reached, accepted_per_position=accepted)


def seen(reached: tuple[int, ...], accepted: tuple[int, ...]) -> Acceptance:
    return Acceptance().with_counts(counts(reached, accepted), keep=1.0)


def test_estimate_without_counts_equals_the_prior() -> None:
    assert Acceptance().conditional(3) == (PRIOR,) * 3


def test_position_counts_only_where_it_was_reached() -> None:
    known = seen((10_000, 1_000), (9_000, 200))  # most rounds had K = 1
    assert known.conditional(2) == pytest.approx([0.9, 0.2], abs=0.01)


def test_position_never_reached_equals_the_one_before() -> None:
    assert seen((1000,), (30,)).conditional(4)[3] == pytest.approx(0.035, abs=0.01)
    assert seen((1000,), (950,)).conditional(4)[3] == pytest.approx(0.95, abs=0.01)


def test_old_counts_decay() -> None:
    old = seen((1000,), (900,))
    new = old.with_counts(counts((1000,), (800,)), keep=0.01)
    assert new.conditional(1)[0] == pytest.approx(0.8, abs=0.02)
    assert new.weights[0] == pytest.approx(1010, abs=1)


def test_counts_that_contradict_a_mean_cut_its_weight() -> None:
    useless = seen((1000,), (10,))
    assert useless.with_counts(counts((2,), (2,)), keep=1.0).conditional(1)[0] > 0.05
    assert useless.with_counts(counts((20,), (0,)), keep=1.0).weights[0] > 1000


def test_fading_keeps_means_and_a_smallest_weight() -> None:
    known = seen((1000, 900), (900, 90))
    faded = known.faded(1e-6)
    assert faded.conditional(2) == known.conditional(2)
    assert faded.weights == (MIN_WEIGHT, MIN_WEIGHT)


def test_expected_tokens_sum_the_accepted_prefixes() -> None:
    known = Acceptance(rates=(0.9, 0.5))
    assert known.tokens(3) == pytest.approx([1.0, 1.9, 2.35, 2.575])


def test_hope_raises_means_of_few_observations() -> None:
    few, many = Acceptance(rates=(0.2,)), Acceptance(rates=(0.2,), weights=(10_000.0,))
    assert few.tokens(1, hope=0.85)[1] == pytest.approx(1.85)
    assert many.tokens(1, hope=0.85)[1] == pytest.approx(1.2, abs=0.01)
    assert Acceptance(rates=(0.95,)).tokens(1, hope=0.85)[1] == pytest.approx(1.95)
