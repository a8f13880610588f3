"""Rows that begin with the same tokens share KV pages: each page is prefilled once, and no token changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engines import completions_of, drain, generate, make_engine, plan, requests_of, run, slow, steps_of

from specpipe.core import Completion, Request, StepReport
from specpipe.engine.engine import Engine

PAGE = 4


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


def distinct_tokens(prompts: Sequence[Sequence[int]], page_size: int = PAGE) -> int:
    """Returns the tokens that one submission prefills: each page once, and each rest of a prompt once.

    Pages end two tokens before the end of a prompt, the rest one token before.
    """
    pages, rests = set(), {}
    for prompt in map(tuple, prompts):
        ends = range(page_size, len(prompt) - 1, page_size)
        pages |= {prompt[:end] for end in ends}
        rests[prompt[:-1]] = len(prompt) - 1 - page_size * len(ends)
    return page_size * len(pages) + sum(rests.values())


def prefill_tokens(steps: Sequence[StepReport]) -> int:
    return sum(part.prefill_tokens for step in steps for part in step.shards.values())


def drain_reports(engine: Engine) -> tuple[list[Completion], list[StepReport]]:
    steps = steps_of(engine)
    return completions_of(steps), steps


@pytest.mark.parametrize(
    ("k", "proposer", "slots", "rounds_behind", "budget"),
    [
        (3, "draft", 2, 1, 7),
        (0, "none", 5, 1, 32),
        slow(0, "none", 1, 0, 7),
        slow(1, "draft", 5, 0, 32),
        slow(3, "ngram", 5, 1, 7),
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
    distinct, all_tokens = distinct_tokens(PROMPTS), sum(len(prompt) - 1 for prompt in PROMPTS)
    assert all_tokens > 2 * distinct
    assert prefill_tokens(steps) == distinct
    assert sum(c.cached_tokens for c in completions) == all_tokens - distinct
    if k and proposer == "draft":
        tokens = sum(step.draft_prefill_tokens for step in steps)  # a row's last prompt token but one may need none
        assert prefill_tokens(steps) - len(requests) <= tokens <= prefill_tokens(steps)
    assert engine.kv_pages_used == 0


def test_warm_up_rows_leave_no_pages_to_later_rows(small_pair) -> None:
    pair = small_pair("llama")
    requests = requests_of(PROMPTS)
    engine = make_engine(pair.target, pair.draft, max_k=1, page_size=PAGE, pages=200)

    warm_up = run(engine, [replace(request, warm_up=True) for request in requests], 1)
    measured = run(engine, requests, 1)

    assert sum(row.cached_tokens for row in warm_up) == 0
    alone = run(make_engine(pair.target, pair.draft, max_k=1, page_size=PAGE, pages=200), requests, 1)
    assert [(row.token_ids, row.cached_tokens) for row in measured] == [
        (row.token_ids, row.cached_tokens) for row in alone
    ]


def samples_of(prompts: Sequence[Sequence[int]], n: int, **sampling: object) -> list[Request]:
    return requests_of([prompt for prompt in prompts for _ in range(n)], temperature=0.9, **sampling)


@pytest.mark.parametrize(
    ("k", "proposer", "slots", "rounds_behind"),
    [(3, "draft", 5, 1), slow(0, "none", 1, 0), slow(1, "draft", 2, 0), slow(3, "ngram", 5, 1), slow(3, "draft", 3, 2)],
)
def test_samples_share_their_whole_prompt(small_pair, k: int, proposer: str, slots: int, rounds_behind: int) -> None:
    pair = small_pair("llama")
    prompts = [PROMPTS[3], PROMPTS[3][:2], PROMPTS[11], PROMPTS[12], PROMPTS[13]]
    requests = samples_of(prompts, 4)
    common = {
        "slots": slots, "max_k": k, "proposer": proposer, "rounds_behind": rounds_behind, "page_size": PAGE,
        "prefill_budget": 11, "pages": 200,
    }  # fmt: skip
    alone = run(make_engine(pair.target, pair.draft, **common, prefix_sharing=False), requests, k)
    engine = make_engine(pair.target, pair.draft, **common)
    engine.submit(requests, plan(k, proposer=proposer))

    completions, steps = drain_reports(engine)

    assert [(c.token_ids, c.draft_tokens) for c in completions] == [(c.token_ids, c.draft_tokens) for c in alone]
    assert prefill_tokens(steps) == distinct_tokens(prompts)
    if proposer == "draft":
        assert sum(step.draft_prefill_tokens for step in steps) <= distinct_tokens(prompts)


def tight_engine(pair, **options: object) -> Engine:
    """Returns an engine with pages for two of the longest rows."""
    return make_engine(pair.target, pair.draft, slots=6, page_size=PAGE, max_model_len=60, **options)


@pytest.mark.parametrize(
    ("k", "proposer", "rounds_behind"), [(3, "draft", 1), slow(0, "none", 0), slow(3, "ngram", 2), slow(1, "draft", 0)]
)
@pytest.mark.parametrize("sharing", [True, slow(False)])
def test_tokens_survive_preemption_beside_shared_pages(
    small_pair, k: int, proposer: str, rounds_behind: int, sharing: bool
) -> None:
    pair = small_pair("llama")
    requests = requests_of([*PROMPTS, PROMPTS[0], PROMPTS[3]], max_new_tokens=24)
    engine = tight_engine(
        pair, pages=22, max_k=k, proposer=proposer, rounds_behind=rounds_behind, prefix_sharing=sharing
    )
    engine.submit(requests, plan(k, proposer=proposer))

    completions, steps = drain_reports(engine)

    assert sum(part.preemptions for step in steps for part in step.shards.values()) > 2
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("rounds_behind", [1, slow(0)])
@pytest.mark.slow
def test_an_equal_draft_is_never_rejected_over_shared_pages_while_k_changes(small_pair, rounds_behind: int) -> None:
    """KV of the draft model that was not computed, or of other tokens, would cause a rejection."""
    pair = small_pair("llama")
    engine = make_engine(
        pair.target, pair.reference_draft, slots=5, max_k=3, page_size=PAGE, rounds_behind=rounds_behind,
        prefill_budget=9, pages=60,
    )  # fmt: skip
    requests = requests_of([*PROMPTS, *PROMPTS], max_new_tokens=15)
    engine.submit(requests, plan(0))
    rejected = drafted = 0
    tokens = {}
    for step in range(2000):
        if step % 5 == 0:
            engine.submit([], plan((0, 3, 0, 1, 3, 0, 0)[step // 5 % 7]))
        report = engine.step()
        if report is None:
            break
        engine.check_integrity()
        tokens |= {c.request.row: list(c.token_ids) for c in report.completions}
        rejected += sum(part.verified.recovered_tokens for part in report.shards.values())
        drafted += sum(part.verified.draft_tokens for part in report.shards.values())
    assert drafted > 100
    assert rejected == 0
    assert [tokens[row] for row in range(len(requests))] == generate(pair.reference, requests)


@pytest.mark.parametrize("proposer", ["draft", slow("ngram")])
def test_sharing_changes_no_result_of_penalties_logprobs_and_stop_strings(small_pair, proposer: str) -> None:
    pair = small_pair("llama")
    requests = requests_of(PROMPTS, max_new_tokens=9, repetition_penalty=1.3, frequency_penalty=0.4, logprobs=2)
    common = {"page_size": PAGE, "slots": 5, "proposer": proposer, "prefill_budget": 9}
    free = run(make_engine(pair.target, pair.draft, **common, prefix_sharing=False), requests, 3)
    requests = [
        replace(request, sampling=replace(request.sampling, stop=(f"{completion.token_ids[5]} ",)))
        for request, completion in zip(requests, free, strict=True)
    ]
    alone = run(make_engine(pair.target, pair.draft, **common, prefix_sharing=False), requests, 3)

    shared = run(make_engine(pair.target, pair.draft, **common), requests, 3)

    assert sum(c.cached_tokens for c in shared) > 100 and not any(c.cached_tokens for c in alone)
    for completion, expected in zip(shared, alone, strict=True):
        assert (completion.token_ids, completion.text) == (expected.token_ids, expected.text)
        assert completion.logprobs.own.tolist() == pytest.approx(expected.logprobs.own.tolist(), abs=1e-4)


def test_later_submissions_find_cached_pages_in_any_order(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, max_k=0, proposer="none", page_size=PAGE, slots=2, pages=200)
    first = run(engine, requests_of(PROMPTS), 0)
    for seed in range(2):
        order = random.Random(seed).sample(range(len(PROMPTS)), len(PROMPTS))
        again = run(engine, [replace(requests_of(PROMPTS)[row], row=i) for i, row in enumerate(order)], 0)
        assert [c.token_ids for c in again] == [first[row].token_ids for row in order]
        assert all(
            c.cached_tokens >= PAGE * ((len(c.request.prompt_token_ids) - 2) // PAGE)
            for c in again
            if len(c.request.prompt_token_ids) > 1
        )


def test_prompts_over_the_limit_leave_nothing_behind(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, max_k=0, proposer="none", page_size=PAGE, slots=2, max_model_len=40)
    long = requests_of([[1] * 60, [1] * 41, [1] * 30, [1] * 34])
    completions = run(engine, long, 0)
    assert [c.finish_reason for c in completions] == ["error", "error", "length", "length"]
    assert completions[3].cached_tokens == 28 or completions[2].cached_tokens == 28


def check_random_tree(small_pair, seed: int) -> None:
    """Runs random prompts that continue one another, with random settings, and compares with unshared rows."""
    pair, draws = small_pair("llama"), random.Random(seed)
    prompts: list[list[int]] = [[]]
    for _ in range(14):
        parent = draws.choice(prompts)
        prompts.append(
            parent[: draws.randint(0, len(parent))] + [draws.randrange(9) for _ in range(draws.randint(1, 9))]
        )
    requests = requests_of([prompt[:40] for prompt in prompts[1:]], max_new_tokens=12, temperature=0.8)
    common = {"method": "invariant", "page_size": PAGE, "max_model_len": 56}
    alone = run(make_engine(pair.target, pair.draft, **common, prefix_sharing=False), requests, 3)
    engine = make_engine(
        pair.target, pair.draft, **common, slots=draws.randint(1, 6), prefill_budget=draws.randint(1, 40),
        pages=draws.choice([16, 20, 200]), rounds_behind=draws.randint(0, 2),
    )  # fmt: skip
    cut = draws.randint(0, len(requests))
    engine.submit(requests[:cut], plan(draws.choice([0, 1, 3])))
    completions = [c for _ in range(9) if (report := engine.step()) for c in report.completions]
    engine.submit(requests[cut:], plan(draws.choice([0, 1, 3])))
    completions += drain(engine)
    completions.sort(key=lambda completion: completion.request.row)
    assert [c.token_ids for c in completions] == [c.token_ids for c in alone]


@pytest.mark.parametrize("seed", [0, *(slow(seed) for seed in range(1, 150))])
def test_random_trees_of_prompts_change_no_token(small_pair, seed: int) -> None:
    check_random_tree(small_pair, seed)
