"""Requests with one-hot proposals beside requests with draft logits, which may have fewer positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.sampling_cases import Backend, emitted, on_backends, random_round, run, sampling

from specpipe_kernels import Bounds, Purpose, rejection_sample, sample

ROWS, K, DRAFT_K = 12, 4, 2


@on_backends(1, method=["standard", "block", "synthetic", "invariant"], given=[False, True], truncated=[False, True])
def test_every_request_equals_the_oracle(backend: Backend, method: str, given: bool, truncated: bool) -> None:
    r = random_round(vocab=40, draft_vocab=36, k=K, rows=ROWS, method=method, truncated=truncated, seed=3)
    assert r.draft_logits is not None and r.draft_rows is not None
    one_hot = torch.arange(ROWS) % 2 == 0
    counts = torch.where(one_hot, K, DRAFT_K).int()
    drafts = r.draft_tokens.clone()
    drafts[0, 1], drafts[2, 0] = 39, 99  # beyond the draft's vocabulary, beyond both
    r = r.with_(
        draft_tokens=drafts,
        num_draft_tokens=counts,
        draft_rows=torch.where(one_hot, -1, r.draft_rows),
        draft_logits=r.draft_logits[:, :DRAFT_K].contiguous(),
    )
    options: dict[str, Any] = {"truncated": truncated}
    more = _given(backend, r, options) if given else {}
    out = run(
        backend, rejection_sample, r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions,
        sampling(r.rows, **options), draft_logits=r.draft_logits, draft_rows=r.draft_rows, method=method,
        synthetic_rates=r.synthetic_rates, **more,
    )  # fmt: skip
    assert emitted(out) == r.expected()
    for kind in (one_hot, ~one_hot):
        assert out.num_accepted[kind].sum() > 0
    assert out.num_accepted.sum() < counts.sum()


def _given(backend: Backend, r: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns log-sum-exps and bounds of drafting by row of draft_logits; NaN and 0 in rows that no request has."""
    lse = torch.full(r.draft_logits.shape[:2], torch.nan, dtype=torch.float64)
    bounds = Bounds(torch.zeros(lse.shape), torch.zeros(lse.shape, dtype=torch.int32))
    requests = (r.draft_rows >= 0).nonzero()[:, 0]
    slots, rows = r.draft_rows[requests], [r.rows[i] for i in requests.tolist()]
    for i in range(lse.shape[1]):
        drawn = run(
            backend, sample, r.draft_logits[slots, i], sampling(rows, **options), r.positions[requests] + i,
            purpose=Purpose.DRAFT, index=i,
        )  # fmt: skip
        lse[slots, i] = drawn.lse
        for kept, found in zip(bounds, drawn.bounds or (), strict=bool(drawn.bounds)):
            kept[slots, i] = found
    return {"draft_lse": lse, "draft_bounds": bounds if options["truncated"] else None}


def test_fewer_positions_need_draft_rows() -> None:
    r = random_round(vocab=9, draft_vocab=9, k=3, rows=2)
    logits = torch.zeros(2, 2, 9)
    with pytest.raises(ValueError, match=r"draft_logits \[2, 2, 9\]; expected \[D, K=3, Vd\]"):
        rejection_sample(
            r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions, sampling(r.rows), draft_logits=logits
        )
