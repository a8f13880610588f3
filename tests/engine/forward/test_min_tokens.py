"""min_tokens: the target's own output with end-of-sequence and stop ids masked, for every proposer and method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from support.engines import generate, make_engine, make_requests, run, slow

from specpipe.core import Request, SamplingParams
from specpipe.engine.forward.logits_processors import mask_eos
from specpipe.engine.state.slot_state import SlotState

CASES = [(3, "draft", 1), (0, "none", 0)]
ALL_CASES = [
    (k, proposer, behind)
    for k, proposer in ((0, "none"), (1, "draft"), (3, "draft"), (3, "ngram"))
    for behind in (0, 1)
]


@pytest.mark.parametrize(
    ("k", "proposer", "rounds_behind"), [*CASES, *(slow(*case) for case in ALL_CASES if case not in CASES)]
)
def test_greedy_rows_equal_generate(small_pair, k: int, proposer: str, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size, max_new_tokens=30)
    free = generate(pair.reference, requests)
    eos_ids = sorted({tokens[2] for tokens in free} | {tokens[7] for tokens in free})
    requests = [replace(r, sampling=replace(r.sampling, min_tokens=(0, 5, 12, 30)[r.row % 4])) for r in requests]
    engine = make_engine(
        pair.target, pair.draft, eos_ids=eos_ids, max_k=k, proposer=proposer, rounds_behind=rounds_behind
    )

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests, eos_ids)
    unheld = run(make_engine(pair.target, pair.draft, eos_ids=eos_ids), make_requests(7, vocab_size=320), 3)
    assert any(len(c.token_ids) < c.request.sampling.min_tokens for c in map(_with_floor, unheld, requests))


def _with_floor(completion, request):
    return replace(completion, request=request)


def test_a_row_that_ignores_eos_may_draw_it_early(small_pair) -> None:
    pair = small_pair("llama")
    plain = make_requests(3, vocab_size=pair.vocab_size)
    free = run(make_engine(pair.target, pair.draft), plain, 3)
    requests = [replace(r, sampling=replace(r.sampling, min_tokens=9, ignore_eos=True)) for r in plain]

    completions = run(make_engine(pair.target, pair.draft, eos_ids=[free[0].token_ids[2]]), requests, 3)

    assert [c.token_ids for c in completions] == [c.token_ids for c in free]


@pytest.mark.parametrize("k", [slow(0), 3])
def test_stop_strings_count_from_min_tokens_on(small_pair, k: int) -> None:
    """One completed early stands in the text; the next one ends the row."""
    pair = small_pair("llama")
    request = make_requests(1, vocab_size=pair.vocab_size, temperature=2.0)[0]
    tokens = run(make_engine(pair.target, pair.draft, method="invariant"), [request], 3)[0].token_ids
    early, late = f"{tokens[3]} ", f"{tokens[9]} "
    assert tokens[3] not in tokens[6:10] and tokens[9] not in tokens[6:9]
    held = replace(request.sampling, stop=(early, late), min_tokens=7)
    engine = make_engine(pair.target, pair.draft, method="invariant")

    completion = run(engine, [replace(request, sampling=held)], k)[0]

    assert completion.token_ids == tokens[:10] and completion.finish_reason == "stop"
    assert completion.text == "".join(f"{token} " for token in tokens[:9])


@pytest.mark.slow
def test_invariant_tokens_depend_on_neither_k_nor_draft(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size, temperature=1.5, min_tokens=8)
    eos_ids = list(range(0, 320, 4))
    outputs = []
    for proposer, k, slots in (("none", 0, 3), ("draft", 7, 2), ("ngram", 3, 5)):
        engine = make_engine(
            pair.target, pair.draft, eos_ids=eos_ids, method="invariant", proposer=proposer, max_k=k, slots=slots
        )
        outputs.append([c.token_ids for c in run(engine, requests, k)])

    assert all(output == outputs[0] for output in outputs)
    ends = [next((i for i, token in enumerate(row) if token in eos_ids), len(row)) for row in outputs[0]]
    assert min(ends) >= 8 and min(ends) < 19, "no row ends early, and one does end"


@pytest.mark.parametrize("method", ["standard", slow("block")])
def test_the_second_token_follows_the_masked_target(small_pair, method: str) -> None:
    pair = small_pair("llama", vocab_size=16)
    eos, rows, prompt = [2, 5, 11], 3000, (3, 1, 4)
    sampling = SamplingParams(temperature=0.9, max_new_tokens=4, min_tokens=2)
    requests = [
        Request(request_id=str(i), shard=0, row=i, prompt="", prompt_token_ids=prompt, sampling=sampling, seed=i)
        for i in range(rows)
    ]
    engine = make_engine(
        pair.target, pair.draft, slots=500, method=method, max_model_len=16, prefill_budget=4096, eos_ids=eos
    )

    pairs = torch.tensor([c.token_ids[:2] for c in run(engine, requests, 3)])

    def distribution(prefixes: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits = pair.reference(prefixes).logits[:, -1].double() / 0.9
        banned = torch.isin(torch.arange(16), torch.tensor(eos))
        return logits.masked_fill(banned, -torch.inf).softmax(-1)

    first = distribution(torch.tensor([prompt]))[0]
    prefixes = torch.cat([torch.tensor([prompt]).expand(16, -1), torch.arange(16)[:, None]], dim=1)
    expected = (first @ distribution(prefixes)) * rows
    counts = torch.bincount(pairs[:, 1], minlength=16)
    assert counts[eos].sum() == 0
    kept = expected > 0
    assert chisquare(counts[kept].numpy(), expected[kept].numpy()).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_mask_eos_masks_stop_ids_below_min_tokens(small_pair, device: str, dtype: torch.dtype) -> None:
    """Ids beyond a draft's smaller vocabulary and unused entries of the table mask nothing."""
    pair = small_pair("llama")
    config = make_engine(pair.target, None, proposer="none").config
    state = SlotState(config, eos_ids=[3, 0, 99], device=torch.device(device))
    state.stop_ids[:2, :3] = torch.tensor([[3, 0, 99], [4, -1, -1]], device=device)
    state.min_length[:2] = torch.tensor([6, 0], device=device)
    logits = torch.zeros(4, 50, dtype=dtype, device=device)[:, :10]  # a view, as a padded vocabulary makes it

    mask_eos(logits, state, torch.tensor([0, 1], device=device), torch.tensor([[5, 6], [5, 6]], device=device))

    banned = torch.isneginf(logits).nonzero().tolist()
    assert banned == [[0, 0], [0, 3]]
    assert logits.isfinite().sum() == 38
