"""Rounds whose rows read shared pages in groups: the same tokens as when each row reads its own block table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engines import make_engine, make_requests, plan, slow
from torch import Tensor

from specpipe.core import Request
from specpipe.engine.engine import Engine
from specpipe.engine.rounds.round_inputs import dummy_inputs, pack_inputs, split_inputs
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.prefix_groups import PrefixGroups

PAGE = 16
GROUPS = PrefixGroups(prefix_pages=[2, 3, 0, 2, 3, 2], members=[0, 3, 5, 4, 1], ends=[3, 5])
"""Rows 0, 3 and 5 share two pages, rows 1 and 4 three; row 2 is in no group."""


def requests_with_shared_prompts(vocab_size: int, **sampling: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(5)
    shared = [torch.randint(0, vocab_size, (pages * PAGE,), generator=generator).tolist() for pages in (2, 3, 0)]
    which = [0, 1, 2, 0, 1, 0]
    tails = [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in (3, 17, 5, 2, 20, 9)]
    requests = make_requests(6, vocab_size=vocab_size, **sampling)
    return [
        Request(
            request_id=request.request_id,
            shard=0,
            row=request.row,
            prompt="",
            prompt_token_ids=tuple(shared[which[row]] + tails[row]),
            sampling=request.sampling,
            seed=request.seed,
        )
        for row, request in enumerate(requests)
    ]


def memory(engine: Engine) -> list[Tensor]:
    """Returns everything that a round reads and writes."""
    runners = [runner for runner in (engine.target, engine.draft) if runner is not None]
    return [*engine._state.on_device, *(pages for runner in runners for pages in runner._pages)]


def started(pair: Any, proposer: str, k: int, **sampling: Any) -> Engine:
    """Returns an engine whose six rows are prefilled, with block tables that share pages as in `GROUPS`."""
    engine = make_engine(
        pair.target, pair.draft, slots=6, max_k=max(1, k), proposer=proposer, max_model_len=128, prefill_budget=512
    )
    engine.submit(requests_with_shared_prompts(pair.vocab_size, **sampling), plan(k, proposer=proposer))
    engine.step()
    tables, slots = engine._state.block_table, slots_of(engine)
    assert engine._state.active[slots].all()
    for row, pages in enumerate(GROUPS.prefix_pages):
        first = GROUPS.prefix_pages.index(pages)
        tables[slots[row], :pages] = tables[slots[first], :pages]
    return engine


def slots_of(engine: Engine) -> list[int]:
    """Returns the slots of all rows in the order of the requests."""
    return sorted(engine._scheduler.rows, key=lambda slot: engine._scheduler.rows[slot].request.row)


def tokens_of_rounds(engine: Engine, key: RoundKey, groups: PrefixGroups | None, rounds: int = 5) -> Tensor:
    slots = slots_of(engine)
    run = engine._launcher.rounds.run
    return torch.stack([run(slots, key._replace(shared=groups is not None), groups).clone() for _ in range(rounds)])


CASES = [
    ("llama", "draft", 3, 0.0),
    ("gemma2", "draft", 1, 0.8),
    ("gpt_oss", "ngram", 3, 0.0),
    ("llama", "none", 0, 0.8),
]
SLOW_CASES = [
    (kind, proposer, k, temperature)
    for kind in ("llama", "gemma2", "gpt_oss", "mistral", "qwen3", "gpt2")
    for proposer, k in (("draft", 1), ("draft", 3), ("ngram", 3), ("none", 0))
    for temperature in (0.0, 0.8)
]


@pytest.mark.parametrize(
    ("kind", "proposer", "k", "temperature"), [*CASES, *(slow(*case) for case in SLOW_CASES if case not in CASES)]
)
def test_groups_change_no_token(small_pair, kind: str, proposer: str, k: int, temperature: float) -> None:
    pair = small_pair(kind)
    engine = started(pair, proposer, k, temperature=temperature, max_new_tokens=40)
    before = [x.clone() for x in memory(engine)]
    sampling = [row.request.sampling for row in engine._scheduler.rows.values()]
    key = RoundKey.of(sampling, proposer, k, width=engine.config.pages_per_row)
    expected = tokens_of_rounds(engine, key, None)
    for now, saved in zip(memory(engine), before, strict=True):
        now.copy_(saved)
    assert torch.equal(tokens_of_rounds(engine, key, GROUPS), expected)
    assert (expected[..., : k + 1] >= 0).any(-1).all()


def test_inputs_are_padded_by_rows_in_no_group() -> None:
    inputs = split_inputs(torch.tensor(pack_inputs([4, 2, 0, 1, 3, 5], GROUPS, 9, dummy=6)), 9, shared=True)
    assert inputs.slots.tolist() == [4, 2, 0, 1, 3, 5, 6, 6, 6]
    assert inputs.prefix is not None
    assert inputs.prefix.prefix_pages.tolist() == [*GROUPS.prefix_pages, 0, 0, 0]
    assert inputs.prefix.members[:5].tolist() == GROUPS.members
    assert inputs.prefix.cu_members.tolist() == [0, 3, 5, 5, 5]
    assert all(x.storage_offset() % 2 == 0 for x in inputs.prefix)  # 16 bytes
    nobody = split_inputs(torch.tensor(dummy_inputs(3, shared=True, dummy=6)), 3, shared=True)
    assert nobody.slots.tolist() == [6, 6, 6] and nobody.prefix is not None and not nobody.prefix.cu_members.any()
    assert split_inputs(torch.tensor(pack_inputs([1], None, 2, dummy=6)), 2, shared=False).prefix is None


def test_pages_are_copied_in_all_layers_of_both_models(small_pair) -> None:
    pair = small_pair("gemma2")
    engine = started(pair, "draft", 3)
    pages = [pages for runner in (engine.target, engine.draft) for pages in runner._pages]
    assert sum(len(layers) for layers in pages) == 2 * (len(engine.target._attention) + len(engine.draft._attention))
    before = [x.clone() for x in pages]
    for runner in (engine.target, engine.draft):
        runner.copy_pages(torch.tensor([1, 3]), torch.tensor([9, 2]))
    for old, new in zip(before, pages, strict=True):
        assert torch.equal(new[:, [9, 2]], old[:, [1, 3]]) and old[:, [1, 3]].any()
        old[:, [9, 2]] = new[:, [9, 2]]
        assert torch.equal(new, old)
