"""Rows that begin with the same tokens share KV pages: each page is prefilled once, and no token changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.engines import drain, generate, make_engine, plan, slow

from specpipe.core import Completion, Request, SamplingParams, StepReport
from specpipe.engine.engine import Engine

PAGE = 4


def requests_of(prompts: Sequence[Sequence[int]], *, max_new_tokens: int = 6, **sampling: object) -> list[Request]:
    """Returns a request for each prompt, in two shards."""
    return [
        Request(
            request_id=str(row),
            shard=row % 2,
            row=row,
            prompt="",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=max_new_tokens, **sampling),
            seed=1000 + row,
        )
        for row, prompt in enumerate(prompts)
    ]


def few_shot_prompts() -> list[list[int]]:
    """Returns prompts over two prefixes that have their first page in common, with ends of every kind."""
    tokens = random.Random(3)

    def random_tokens(n: int) -> list[int]:
        return [tokens.randrange(320) for _ in range(n)]

    first = random_tokens(PAGE)
    long, short = first + random_tokens(17), first + random_tokens(3)
    ends = [[], random_tokens(1), random_tokens(2), random_tokens(3), random_tokens(5), random_tokens(9)]
    prompts = [prefix + end for end in ends for prefix in (long, short)]
    exact = first + random_tokens(2 * PAGE)
    return [*prompts, exact, exact[:-1], [*exact, 7], exact[:1], long, exact, random_tokens(11)]


PROMPTS = few_shot_prompts()


def shared_tokens(prompts: Sequence[Sequence[int]], page_size: int = PAGE) -> int:
    """Returns the tokens that need no prefill: full pages, two tokens before the prompt's end, that came before."""
    seen: set[tuple[int, ...]] = set()
    shared = 0
    for prompt in prompts:
        for end in range(page_size, len(prompt) - 1, page_size):
            shared += page_size * (tuple(prompt[:end]) in seen)
            seen.add(tuple(prompt[:end]))
    return shared


def prefill_tokens(steps: Sequence[StepReport]) -> int:
    return sum(part.prefill_tokens for step in steps for part in step.shards.values())


def drain_reports(engine: Engine) -> tuple[list[Completion], list[StepReport]]:
    steps: list[StepReport] = []
    step = engine.step
    engine.step = lambda: steps.append(step()) or steps[-1]  # type: ignore[method-assign]
    completions = drain(engine)
    return completions, [report for report in steps if report is not None]


@pytest.mark.parametrize(
    ("k", "proposer", "slots", "rounds_behind", "budget"),
    [
        (0, "none", 1, 0, 7),
        (0, "none", 5, 1, 32),
        (3, "draft", 2, 1, 7),
        (1, "draft", 5, 0, 32),
        (3, "ngram", 5, 1, 7),
        slow(0, "none", 2, 1, 5),
        slow(3, "draft", 1, 0, 32),
        slow(3, "draft", 5, 2, 3),
        slow(1, "draft", 5, 1, 1),
        slow(1, "ngram", 1, 0, 32),
        slow(3, "ngram", 2, 1, 1),
    ],
)
def test_each_page_is_prefilled_once(
    small_pair, k: int, proposer: str, slots: int, rounds_behind: int, budget: int
) -> None:
    pair = small_pair("llama")
    requests = requests_of(PROMPTS)
    engine = make_engine(
        pair.target, pair.draft, slots=slots, max_k=k, proposer=proposer, rounds_behind=rounds_behind,
        prefill_budget=budget, page_size=PAGE, pages=200,
    )  # fmt: skip
    engine.submit(requests, plan(k, proposer=proposer))

    completions, steps = drain_reports(engine)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    shared = shared_tokens(PROMPTS)
    assert shared > 150
    assert prefill_tokens(steps) == sum(len(prompt) - 1 for prompt in PROMPTS) - shared
    assert sum(c.cached_tokens for c in completions) == shared
    if k and proposer == "draft":
        tokens = sum(step.draft_prefill_tokens for step in steps)  # a row's last prompt token but one may need none
        assert prefill_tokens(steps) - len(requests) <= tokens <= prefill_tokens(steps)
    assert engine.kv_pages_used == 0
