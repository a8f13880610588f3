"""Earlier answers as drafts: tokens are the target's own whatever the text; a good text is followed to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engines import completions_of, generate, make_engine, make_requests, plan, run, slow, steps_of

from specpipe.core import AcceptanceCounts, Completion, Request, StepReport
from specpipe.engine.engine import Engine

K = 7
NEW_TOKENS = 40
FOREIGN = (2**40, -5, 320, 2**31 - 1, 10**6)
"""Ids that the vocabulary of 320 tokens does not have."""


def texts_of(answers: Sequence[list[int]]) -> dict[str, list[tuple[int, ...]]]:
    """Returns references of every kind, one for each answer."""
    other = [tuple((token + 1) % 320 for token in answer) for answer in answers]
    return {
        "right": [tuple(answer) for answer in answers],
        "departs at the start": [(9, *answer[1:]) for answer in answers],
        "departs in the middle": [(*answer[:15], 9, 9, *answer[15:]) for answer in answers],
        "lacks tokens": [(*answer[:9], *answer[14:]) for answer in answers],
        "departs everywhere": other,
        "of other rows": [tuple(answers[i - 1]) for i in range(len(answers))],
        "empty": [()] * len(answers),
        "short": [tuple(answer[:3]) for answer in answers],
        "longer than the limit": [tuple(answer) * 30 for answer in answers],
        "foreign ids": [FOREIGN] * len(answers),
        "foreign ids in between": [(*answer[:9], *FOREIGN, *answer[9:]) for answer in answers],
    }


def follow(engine: Engine, requests: Sequence[Request], k: int = K) -> tuple[list[Completion], list[StepReport]]:
    engine.submit(requests, plan(k, proposer="replay"))
    steps = steps_of(engine)
    return completions_of(steps), steps


KINDS = ["right", "departs in the middle", "departs everywhere", "longer than the limit", "foreign ids in between"]
ALL_KINDS = list(texts_of([[1] * 20]))


@pytest.mark.parametrize("kind", [*KINDS, *(slow(kind) for kind in ALL_KINDS if kind not in KINDS)])
def test_greedy_tokens_equal_generate(small_pair, kind: str) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=NEW_TOKENS)
    answers = generate(pair.reference, requests)
    texts = texts_of(answers)[kind]
    engine = make_engine(pair.target, proposer="replay", max_k=0, replay_k=K)

    completions, steps = follow(engine, [replace(r, reference=t) for r, t in zip(requests, texts, strict=True)])

    assert [list(c.token_ids) for c in completions] == answers
    verified = sum((part.verified for step in steps for part in step.shards.values()), AcceptanceCounts())
    by_source = [part.by_source.get("reference") for step in steps for part in step.shards.values()]
    reference = sum(filter(None, by_source), AcceptanceCounts())
    followed = sum(c.followed_tokens for c in completions)
    assert followed <= reference.accepted_tokens <= verified.accepted_tokens
    if kind in ("right", "longer than the limit"):
        assert reference.accepted_tokens == reference.draft_tokens and followed > 0.8 * len(answers) * NEW_TOKENS
    elif kind in ("departs in the middle", "lacks tokens", "foreign ids in between"):
        assert followed > 0.5 * len(answers) * NEW_TOKENS, "a text is followed again after a departure"


def test_acceptance_length_of_an_unchanged_model(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(4, vocab_size=pair.vocab_size, max_new_tokens=64)
    texts = [tuple(answer) for answer in generate(pair.reference, requests)]
    engine = make_engine(pair.target, proposer="replay", max_k=0, replay_k=15, max_model_len=128)

    completions, steps = follow(engine, [replace(r, reference=t) for r, t in zip(requests, texts, strict=True)], 15)

    assert [c.token_ids for c in completions] == texts
    verified = sum((part.verified for step in steps for part in step.shards.values()), AcceptanceCounts())
    assert verified.acceptance_length == 16, "64 tokens in 4 rounds"


@pytest.mark.parametrize(("method", "rounds_behind"), [("invariant", 1), slow("invariant", 0)])
def test_sampled_rows_of_equal_seeds_follow_their_own_answers(small_pair, method: str, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(5, vocab_size=pair.vocab_size, max_new_tokens=NEW_TOKENS, temperature=0.9, top_p=0.95)
    plain = run(make_engine(pair.target, proposer="none", max_k=0, method=method), requests, 0)
    engine = make_engine(
        pair.target, proposer="replay", max_k=0, replay_k=K, method=method, rounds_behind=rounds_behind
    )

    completions, _ = follow(engine, [replace(c.request, reference=c.token_ids) for c in plain])

    assert [c.token_ids for c in completions] == [c.token_ids for c in plain]
    assert all(c.followed_tokens == c.accepted_tokens == NEW_TOKENS * K // (K + 1) for c in completions)


def test_preempted_rows_find_their_place_again(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=NEW_TOKENS)
    answers = generate(pair.reference, requests)
    tight = {"slots": 6, "pages": 22, "page_size": 4, "max_model_len": 96}
    engine = make_engine(pair.target, proposer="replay", max_k=0, replay_k=3, rounds_behind=1, **tight)

    rows = [replace(r, reference=tuple(a)) for r, a in zip(requests, answers, strict=True)]
    completions, steps = follow(engine, rows, 3)

    assert sum(part.preemptions for step in steps for part in step.shards.values()) > 1
    assert [list(c.token_ids) for c in completions] == answers
    assert all(c.accepted_tokens == c.draft_tokens for c in completions)
