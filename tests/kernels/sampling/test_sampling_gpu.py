"""Sampling on a GPU: rows beyond 2**31 elements, graph capture and replay, real vocabularies."""

from __future__ import annotations

import pytest
import torch
from support.sampling_cases import Backend, random_round, same_rows, to
from torch import Tensor

from specpipe_kernels import METHODS, Purpose, RejectionOutput, rejection_sample, sample

pytestmark = pytest.mark.gpu
VOCAB = 151936


def agree(a: RejectionOutput, b: RejectionOutput, *, least: float) -> None:
    """Draws may differ where two scores tie up to rounding."""
    same = (a.tokens.cpu() == b.tokens.cpu()).all(-1)
    assert float(same.float().mean()) >= least
    assert torch.equal(a.status.cpu(), b.status.cpu())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("vocab", [100, 8193, 10000, 128256, VOCAB])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_the_reference(method: str, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, k = 64, 4
    g = torch.Generator("cuda").manual_seed(vocab)
    p = torch.randn(rows * (k + 1), vocab, generator=g, device="cuda").mul_(3)
    q = (p.view(rows, k + 1, vocab)[:, :k] + torch.randn(rows, k, vocab, generator=g, device="cuda")).to(dtype)
    p = p.to(dtype)
    s = same_rows(rows)
    mixed = torch.arange(rows)
    s = s._replace(
        temperature=torch.where(mixed % 5 == 0, 0.0, 0.8),
        top_k=torch.where(mixed % 3 == 0, 50, 0).int(),
        top_p=torch.where(mixed % 4 == 0, 0.9, 1.0),
        min_p=torch.where(mixed % 7 == 0, 0.02, 0.0),
        truncated=True,
    )
    s, at = to(s, "cuda"), mixed.cuda()
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT
    drafts = torch.stack([sample(q[:, i], s, at + i, purpose=purpose, index=i).tokens for i in range(k)], dim=1)
    rates = torch.linspace(0.9, 0.4, k, device="cuda") if method == "synthetic" else None
    outputs = []
    for backend in ("triton", "reference"):
        monkeypatch.setenv("SPECPIPE_KERNELS", backend)
        outputs.append(
            rejection_sample(
                p, drafts, (mixed % (k + 1)).cuda(), at, s, draft_logits=q, method=method, synthetic_rates=rates
            )
        )
    agree(*outputs, least=0.95)
    assert int((outputs[0].num_accepted > 0).sum()) > rows // 4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [0, 3])
def test_a_captured_graph_replays_with_new_seeds(method: str, k: int) -> None:
    rows, vocab = 8, 32000
    p = torch.randn(rows * (k + 1), vocab, device="cuda")
    q = torch.randn(rows, k, vocab, device="cuda") if k else None
    drafts = torch.randint(0, vocab, (rows, k), device="cuda")
    counts, at = torch.full((rows,), k, device="cuda"), torch.arange(rows, device="cuda")
    s = to(same_rows(rows, top_k=1000), "cuda")
    rates = torch.linspace(0.9, 0.4, k, device="cuda") if method == "synthetic" else None

    def call() -> RejectionOutput:
        sample(p[:rows], s, at, purpose=Purpose.DRAFT)
        return rejection_sample(p, drafts, counts, at, s, draft_logits=q, method=method, synthetic_rates=rates)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    seen: set[tuple[int, ...]] = set()
    for step in range(3):
        s.seed.copy_(torch.arange(rows, device="cuda") + 1000 * step)
        at.add_(step)
        p.copy_(torch.randn(p.shape, device="cuda"))
        graph.replay()
        replayed = RejectionOutput(*(x.clone() for x in captured[:4]))
        eager = call()
        for a, b in zip(replayed[:4], eager[:4], strict=True):
            assert torch.equal(a, b)
        seen.add(tuple(replayed.tokens.flatten().tolist()))
    assert len(seen) == 3


@pytest.mark.parametrize("method", ["standard", "block"])
def test_rows_beyond_two_to_the_31_elements(method: str) -> None:
    rows, k = 7200, 1
    p = torch.empty(rows * (k + 1), VOCAB, dtype=torch.bfloat16, device="cuda")
    assert p.numel() > 2**31
    p.normal_()
    slots = 14400
    q = torch.empty(slots, k, VOCAB, dtype=torch.bfloat16, device="cuda").normal_()
    last = torch.arange(rows - 8, rows, device="cuda")
    draft_rows = slots - 1 - torch.arange(rows, device="cuda")
    s = to(same_rows(rows, top_p=0.95), "cuda")
    at = torch.arange(rows, device="cuda")
    drafts = sample(q[draft_rows[last], 0], _rows(s, last), at[last], purpose=Purpose.DRAFT).tokens
    all_drafts = torch.zeros(rows, k, dtype=torch.int64, device="cuda")
    all_drafts[last, 0] = drafts
    counts = torch.ones(rows, dtype=torch.int32, device="cuda")
    whole = rejection_sample(p, all_drafts, counts, at, s, draft_logits=q, draft_rows=draft_rows, method=method)
    part = rejection_sample(
        p[-8 * (k + 1) :].clone(), all_drafts[last], counts[last], at[last], _rows(s, last),
        draft_logits=q[draft_rows[last]].clone(), method=method,
    )  # fmt: skip
    for a, b in zip(whole[:4], part[:4], strict=True):
        assert torch.equal(a[last], b)
    assert whole.bounds is not None and part.bounds is not None
    # Rows are cut into other spans, so that a sum may end at the neighbour of a cut-off.
    torch.testing.assert_close(whole.bounds.logit[last], part.bounds.logit, rtol=0.01, atol=0)


def _rows(s, rows: Tensor):
    return s._replace(**{name: getattr(s, name)[rows] for name in ("temperature", "top_k", "top_p", "min_p", "seed")})


def test_sample_beyond_two_to_the_31_elements() -> None:
    rows = 14200
    logits = torch.empty(rows, VOCAB, dtype=torch.bfloat16, device="cuda").normal_()
    s, at = to(same_rows(rows), "cuda"), torch.arange(rows, device="cuda")
    whole = sample(logits, s, at, purpose=Purpose.DRAFT)
    last = torch.arange(rows - 4, rows, device="cuda")
    part = sample(logits[last].clone(), _rows(s, last), at[last], purpose=Purpose.DRAFT)
    assert torch.equal(whole.tokens[last], part.tokens)
    torch.testing.assert_close(whole.lse[last], part.lse)  # its rows are cut into other spans


@pytest.mark.parametrize("method", METHODS)
def test_ragged_rounds_equal_the_oracle(method: str) -> None:
    backend = Backend("triton", "cuda")
    for seed in range(10):
        case = random_round(vocab=100, draft_vocab=107, k=4, rows=8, method=method, ragged=True, seed=seed)
        out = case.verify(backend)
        expected = case.expected()
        assert [t[t != -1].tolist() for t in out.tokens] == [e[0] for e in expected]


def test_interpreter_is_off_on_a_gpu() -> None:
    """With the interpreter, the tests above would compile nothing."""
    import triton

    assert not triton.knobs.runtime.interpret
