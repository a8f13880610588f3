"""Penalties and log-probabilities on a GPU: real vocabularies, graphs, 2**31 elements."""

from __future__ import annotations

import pytest
import torch
from support.sampling_cases import same_rows, to
from torch import Tensor

from specpipe_kernels import (
    Penalties,
    SamplingTensors,
    TokenLogprobs,
    apply_penalties,
    count_tokens,
    rejection_sample,
    token_logprobs,
)

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
VOCAB, LENGTH = 151936, 3000


class Slots:
    """R requests of LENGTH tokens at most, in a buffer of their own."""

    def __init__(self, rows: int, k: int, *, vocab: int = VOCAB, seed: int = 0) -> None:
        g = torch.Generator(DEVICE).manual_seed(seed)
        self.tokens = torch.randint(0, vocab, (rows, LENGTH + k + 1), generator=g, device=DEVICE)
        self.seen = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.slots = torch.randperm(rows, generator=g, device=DEVICE)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        ones = torch.ones(rows, device=DEVICE)
        self.penalties = Penalties(ones * 1.3, ones * 0.4, ones * 0.2)
        self.penalties.repetition[::3], self.penalties.presence[::3], self.penalties.frequency[::3] = 1, 0, 0
        for start in range(0, LENGTH, 30):  # all of it as output
            self.count(self.tokens[self.slots, start : start + 30].contiguous())
            self.lengths += 30

    def count(self, new: Tensor) -> None:
        count_tokens(self.tokens, self.seen, self.slots, self.lengths, self.penalties, new)

    def penalise(self, logits: Tensor, drafts: Tensor, first: int = 0) -> Tensor:
        edited = logits.clone()
        apply_penalties(edited, self.tokens, self.seen, self.slots, self.lengths, self.penalties, drafts, first=first)
        return edited


def mixed(rows: int) -> SamplingTensors:
    s = same_rows(rows, top_k=50, top_p=0.95)
    return to(s._replace(temperature=torch.where(torch.arange(rows) % 5 == 0, 0.0, 0.8)), DEVICE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [100, 8193, VOCAB])
def test_equals_the_reference(dtype: torch.dtype, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, k = 16, 3
    logits = torch.randn(rows * (k + 1), vocab, device=DEVICE).mul_(3).to(dtype)
    drafts = torch.randint(0, vocab, (rows, k), device=DEVICE)
    out = rejection_sample(
        logits, drafts, torch.full((rows,), k, device=DEVICE), torch.arange(rows, device=DEVICE), mixed(rows)
    )
    edited: list[Tensor] = []
    logprobs: list[TokenLogprobs] = []
    seen: list[Tensor] = []
    for backend in ("triton", "reference"):
        monkeypatch.setenv("SPECPIPE_KERNELS", backend)
        slots = Slots(rows, k, vocab=vocab)
        seen.append(slots.seen)
        edited.append(slots.penalise(logits, drafts))
        logprobs.append(token_logprobs(logits, out.tokens, out.num_emitted, mixed(rows), top_n=min(20, vocab)))
    assert torch.equal(*seen)
    torch.testing.assert_close(*edited, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-5)
    torch.testing.assert_close(logprobs[0].logprobs, logprobs[1].logprobs, rtol=0, atol=1e-4, equal_nan=True)
    assert float((logprobs[0].top_tokens == logprobs[1].top_tokens).float().mean()) > 0.999  # equal up to rounding


def test_a_captured_graph_reads_its_inputs_at_every_replay() -> None:
    rows, k, vocab = 8, 3, 32000
    slots, s = Slots(rows, k, vocab=vocab), mixed(rows)
    base = torch.randn(rows * (k + 1), vocab, device=DEVICE)
    drafts = torch.randint(0, vocab, (rows, k), device=DEVICE)
    amounts, at = torch.full((rows,), k, device=DEVICE), torch.arange(rows, device=DEVICE)

    def call() -> tuple[Tensor, ...]:
        p = slots.penalise(base, drafts)
        out = rejection_sample(p, drafts, amounts, at, s)
        return (p, *out[:4], *token_logprobs(p, out.tokens, out.num_emitted, s, top_n=5))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for step in range(3):
        base.copy_(torch.randn(base.shape, device=DEVICE))
        slots.lengths.fill_(LENGTH - 700 * step)
        slots.penalties.presence.fill_(0.3 * step)
        drafts.copy_(torch.randint(0, vocab, drafts.shape, device=DEVICE))
        graph.replay()
        replayed = [x.clone() for x in captured]
        for a, b in zip(replayed, call(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_rows_beyond_two_to_the_31_elements() -> None:
    rows, k = 7200, 1
    logits = torch.empty(rows * (k + 1), VOCAB, dtype=torch.bfloat16, device=DEVICE).normal_()
    assert logits.numel() > 2**31
    ones = torch.ones(rows, device=DEVICE)
    penalties = Penalties(ones * 2, ones, ones * 0)
    tokens = torch.randint(0, VOCAB, (rows, 9), device=DEVICE)
    seen = torch.full((rows, 9), 2, dtype=torch.int32, device=DEVICE)
    tokens[:, :] = torch.arange(9, device=DEVICE) * 16000 + torch.arange(rows, device=DEVICE)[:, None]
    slots, lengths = torch.arange(rows, device=DEVICE), torch.full((rows,), 9, device=DEVICE)
    drafts = torch.full((rows, k), VOCAB - 1, device=DEVICE)
    last = slice(rows - 4, rows)
    before = logits[-4 * (k + 1) :].clone()
    apply_penalties(logits, tokens, seen, slots, lengths, penalties, drafts)
    part = Penalties(*(p[last] for p in penalties))
    apply_penalties(before, tokens[last], seen[last], slots[:4], lengths[last], part, drafts[last])
    assert torch.equal(logits[-4 * (k + 1) :], before)

    emitted = torch.stack([tokens[:, 3], tokens[:, 8]], dim=1)
    counts, s = torch.full((rows,), 2, dtype=torch.int32, device=DEVICE), to(same_rows(rows), DEVICE)
    whole = token_logprobs(logits, emitted, counts, s, top_n=1)
    some = SamplingTensors(*(x[last] for x in s[:5]), truncated=False)
    tail = token_logprobs(before, emitted[last], counts[last], some, top_n=1)
    for a, b in zip(whole, tail, strict=True):
        torch.testing.assert_close(a[last], b, rtol=0, atol=1e-4)
