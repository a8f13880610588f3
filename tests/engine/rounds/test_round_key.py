"""Keys of rounds: one for all rounds that one graph can serve, valid for every row."""

from __future__ import annotations

from specpipe.core import SamplingParams
from specpipe.engine.rounds.round_key import RoundKey, expected_keys
from specpipe.engine.state.logprobs import NO_LOGPROBS


def test_a_key_is_valid_for_every_row() -> None:
    greedy, sampled = SamplingParams(logprobs=3), SamplingParams(temperature=0.5, top_p=0.9)
    key = RoundKey.of([greedy, sampled], "draft", 2, width=4)
    assert (key.all_greedy, key.truncated, key.penalised, key.logprobs) == (False, True, False, 5)
    key = RoundKey.of([greedy, SamplingParams(presence_penalty=1.0)], "draft", 2, width=4)
    assert (key.all_greedy, key.truncated, key.penalised) == (True, False, True)
    assert RoundKey.of([sampled], "draft", 2, width=4).logprobs == NO_LOGPROBS


def test_rounds_without_drafts_share_one_key() -> None:
    plain = {RoundKey.of([SamplingParams()], *choice, width=4) for choice in (("draft", 0), ("ngram", 0), ("none", 3))}
    assert [(key.proposer, key.k) for key in plain] == [("none", 0)]


def test_expected_keys_are_distinct_and_in_order() -> None:
    choices = [("draft", 2), ("none", 0), ("draft", 0), ("ngram", 1)]
    keys = expected_keys(SamplingParams(), choices, width=4)
    assert [(key.proposer, key.k) for key in keys] == [("draft", 2), ("none", 0), ("ngram", 1)]
    held = expected_keys(SamplingParams(min_tokens=2), choices, width=4)
    assert [(key.k, key.below_min_tokens) for key in held] == [(k, h) for k in (2, 0, 1) for h in (False, True)]
