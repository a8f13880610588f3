"""Earlier answers and a draft model in one round: exact for every row, and the draft model keeps up with departures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.chi_squared import p_value
from support.engines import completions_of, generate, make_engine, make_requests, plan, run, slow, steps_of
from support.pairs_of_tokens import joint

from specpipe.core import AcceptanceCounts, Completion, Request, StepReport
from specpipe.engine.engine import Engine

DRAFT_K, REPLAY_K = 2, 7


def joined(engine: Engine, requests: Sequence[Request], k: int = REPLAY_K) -> tuple[list[Completion], list[StepReport]]:
    engine.submit(requests, plan(k, proposer="joined"))
    steps = steps_of(engine)
    return completions_of(steps), steps


def counts(steps: Sequence[StepReport], source: str) -> AcceptanceCounts:
    parts = (part.by_source.get(source) for step in steps for part in step.shards.values())
    return sum(filter(None, parts), AcceptanceCounts())


@pytest.mark.parametrize(("kind", "rounds_behind"), [("llama", 1), slow("llama", 0), slow("gemma2", 1)])
def test_greedy_tokens_equal_generate(small_pair, kind: str, rounds_behind: int) -> None:
    """Right texts, texts that depart, and rows without a text share every round."""
    pair = small_pair(kind)
    requests = make_requests(8, vocab_size=pair.vocab_size, max_new_tokens=40)
    answers = generate(pair.reference, requests)
    texts = [(), *(tuple(answer) for answer in answers[1:])]
    texts[2] = (*texts[2][:11], 9, 9, *texts[2][11:])
    texts[3] = tuple((token + 1) % 320 for token in texts[3])
    texts[4] = texts[4][:13]
    engine = make_engine(
        pair.target, pair.draft, proposer="auto", slots=4, max_k=DRAFT_K, replay_k=REPLAY_K, rounds_behind=rounds_behind
    )

    completions, steps = joined(engine, [replace(r, reference=t) for r, t in zip(requests, texts, strict=True)])

    assert [list(c.token_ids) for c in completions] == answers
    for row in (0, 3):
        assert completions[row].accepted_tokens > completions[row].followed_tokens, "drafted by the model"
    assert all(completions[row].followed_tokens >= 35 - 40 // REPLAY_K for row in (1, 5, 6, 7))
    assert counts(steps, "draft").proposed_per_position[1:] and len(counts(steps, "draft").proposed_per_position) == 2
    assert len(counts(steps, "reference").proposed_per_position) == REPLAY_K


def test_an_equal_draft_is_never_rejected_behind_a_departure(small_pair) -> None:
    """Missing or stale KV of the draft model would cause a rejection."""
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=50)
    answers = generate(pair.reference, requests)
    texts = [(*answer[: 5 * row], *[(t + 1) % 320 for t in answer[5 * row :]]) for row, answer in enumerate(answers)]
    engine = make_engine(
        pair.target, pair.reference_draft, proposer="auto", max_k=3, replay_k=REPLAY_K, prefill_budget=16
    )

    completions, steps = joined(engine, [replace(r, reference=t) for r, t in zip(requests, texts, strict=True)])

    assert [list(c.token_ids) for c in completions] == answers
    by_model = counts(steps, "draft")
    assert by_model.draft_tokens == by_model.accepted_tokens > 100
    assert sum(step.draft_prefill_tokens for step in steps) > sum(len(r.prompt_token_ids) for r in requests)


@pytest.mark.parametrize("method", ["standard", slow("block"), slow("invariant")])
def test_two_tokens_follow_the_targets_distribution(small_pair, method: str) -> None:
    """Half of the rows follow a text, the other half have drafts of the model."""
    pair, prompt = small_pair("llama", vocab_size=16), (3, 1, 4)
    sampling = {"temperature": 0.7, "top_k": 11}
    engine = make_engine(
        pair.target, pair.draft, slots=500, proposer="auto", max_k=2, replay_k=3, method=method, max_model_len=16,
        prefill_budget=4096,
    )  # fmt: skip
    made = make_requests(4000, vocab_size=16, max_new_tokens=4, **sampling)
    nothing = (-1,)  # not the answer of another row with this prompt either
    requests = [replace(r, prompt_token_ids=prompt, reference=(5, 2, 7, 1) if r.row % 2 else nothing) for r in made]

    completions, steps = joined(engine, requests, 3)

    expected = joint(pair.reference, prompt, **sampling)
    tokens = torch.tensor([c.token_ids[:2] for c in completions])
    for half in (tokens[::2], tokens[1::2]):
        assert p_value(half[:, 0] * 16 + half[:, 1], expected) > 1e-4
    for source in ("draft", "reference"):
        assert 0 < counts(steps, source).accepted_tokens < counts(steps, source).draft_tokens


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "block"])
def test_any_text_leaves_the_targets_distribution(small_pair, method: str) -> None:
    """Every row follows a text: right, empty, longer than the row, or of foreign tokens."""
    pair, prompt = small_pair("llama", vocab_size=16), (3, 1, 4)
    texts = [(5, 2, 7, 1), (-1,), (8,) * 40, (99, -3, 2**40), (2, 99, 5)]
    engine = make_engine(
        pair.target, slots=500, proposer="replay", max_k=0, replay_k=3, method=method, max_model_len=16,
        prefill_budget=4096,
    )  # fmt: skip
    made = make_requests(5000, vocab_size=16, max_new_tokens=4, temperature=0.7)
    requests = [replace(r, prompt_token_ids=prompt, reference=texts[r.row % 5]) for r in made]

    completions = run(engine, requests, 3)

    expected = joint(pair.reference, prompt, temperature=0.7, top_k=16)
    tokens = torch.tensor([c.token_ids[:2] for c in completions])
    for kind in range(5):
        assert p_value(tokens[kind::5, 0] * 16 + tokens[kind::5, 1], expected) > 1e-4, texts[kind]
    assert sum(c.followed_tokens for c in completions) > 0


def test_samples_of_a_prompt_follow_those_that_have_ended(small_pair) -> None:
    pair = small_pair("llama")
    base = make_requests(2, vocab_size=pair.vocab_size, max_new_tokens=40, seed=3)
    requests = [replace(base[row % 2], request_id=str(row), row=row, sample=row // 2) for row in range(8)]
    engine = make_engine(pair.target, proposer="replay", slots=2, max_k=0, replay_k=REPLAY_K)

    engine.submit(requests, plan(REPLAY_K, proposer="replay"))
    steps = steps_of(engine)

    completions = completions_of(steps)
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert [c.followed_tokens for c in completions[:2]] == [0, 0]
    assert all(c.followed_tokens == 35 for c in completions[2:]), "7 of every 8 tokens"
    assert not engine._scheduler._siblings._answers, "no row waits any more"
