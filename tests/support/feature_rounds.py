"""A round of mixed rows (penalise, draft, penalise, verify, log-probabilities, count), each step against fp64.

Shapes: R requests, K drafts at most, V target and Vd draft vocabulary, D rows of draft logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.pairwise import Case
from support.penalty_cases import History, counted, penalised, random_history
from support.sampling_cases import Backend, Round, random_rows, run, sampling, to
from torch import Tensor

from specpipe_kernels import (
    METHODS,
    Bounds,
    Penalties,
    Purpose,
    RejectionOutput,
    rejection_sample,
    sample,
    token_logprobs,
)

FEATURES: dict[str, tuple[Any, ...]] = {
    "method": METHODS,
    "rows": ("greedy", "greedy, promised", "random", "mixed"),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
    "k": (1, 3, 5),
    "drafts": ("all", "ragged", "none"),
    "layout": ("static", "cu_rows"),
    "proposals": ("one-hot", "draft", "draft by slot, narrower", "draft by slot, wider", "some one-hot"),
    "lse": ("computed", "given"),
    "bounds": ("computed", "given"),
    "bonus": ("drawn", "given"),
    "truncation": ("off, promised", "off", "on"),
    "penalties": ("off", "on"),
    "logprobs": (None, 0, 3),
    "counts": (False, True),
    "invalid": ("none", "target", "draft"),
    "stride": (0, 5),
}
ROWS, VOCAB = 4, 61
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def possible(case: Case) -> bool:
    """Returns true unless one-hot proposals are combined with log-sum-exps, bounds or invalid draft logits."""
    given = "given" in (case["lse"], case["bounds"]) or case["invalid"] == "draft"
    return case["proposals"] != "one-hot" or not given


@dataclass
class FeatureRound:
    """Builds and checks one round. Invalid logits are those of the first row of request 0."""

    case: Case
    backend: Backend
    seed: int
    vocab: int = VOCAB
    count: int = ROWS
    rows: list[oracle.Row] = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.g = torch.Generator().manual_seed(self.seed)
        case, k = self.case, self.case["k"]
        rows = random_rows(self.count, self.g, truncated=case["truncation"] == "on")
        warm = [row.temperature or 0.9 for row in rows]
        if case["rows"].startswith("greedy"):
            rows = [replace(row, temperature=0.0) for row in rows]
        elif case["rows"] == "random":
            rows = [replace(row, temperature=t) for row, t in zip(rows, warm, strict=True)]
        else:
            rows = [replace(row, temperature=t * (i % 2)) for i, (row, t) in enumerate(zip(rows, warm, strict=True))]
        self.rows = rows
        self.history = random_history(self.count, vocab=self.vocab, longest=40, seed=self.seed, room=k + 1)
        neutral = Penalties(torch.ones(self.count), torch.zeros(self.count), torch.zeros(self.count))
        order = torch.arange(self.count - 1, -1, -1)  # the strongest penalties for row 0
        shown = Penalties(*(p[order] for p in self.history.penalties)) if case["penalties"] == "on" else neutral
        self.history = replace(self.history, penalties=shown)
        amounts = {"all": torch.full((self.count,), k), "none": torch.zeros(self.count, dtype=torch.int64)}
        ragged = torch.randint(0, k + 1, (self.count,), generator=self.g)
        self.amounts = amounts.get(case["drafts"], ragged)
        self.positions = torch.tensor([row.position for row in rows])

    @property
    def hints(self) -> dict[str, bool]:
        promised = self.case["truncation"] == "off, promised"
        return {"all_greedy": self.case["rows"] == "greedy, promised", "truncated": not promised}

    def check(self) -> None:
        self._draft()
        target = self._target()
        out = self._verify(target)
        self._count(out)
        if self.case["logprobs"] is not None:
            self._tell(target, out)

    def _draft(self) -> None:
        k, kind = self.case["k"], self.case["proposals"]
        self.base = torch.randn(self.count, k + 1, self.vocab, generator=self.g) * 2
        self.draft_logits = self.draft_rows = self.lse = self.bounds = None
        self.bonus = torch.randint(0, self.vocab, (self.count,), generator=self.g)
        best = self.base[:, :k].argmax(-1)
        if kind == "one-hot":
            agree = torch.rand(self.count, k, generator=self.g) < 0.7
            self.drafts = self._cut(torch.where(agree, best, (best + 1) % self.vocab))
            return
        width = self.vocab + {"draft by slot, narrower": -6, "draft by slot, wider": 7}.get(kind, 0)
        logits = torch.randn(self.count + 2, k, width, generator=self.g)
        where = torch.randperm(self.count + 2, generator=self.g)[: self.count]
        if kind == "draft":
            where = torch.arange(self.count)
        else:
            self.draft_rows = where
        shared = min(width, self.vocab)
        logits[where, :, :shared] = self.base[:, :k, :shared] + 0.5 * logits[where, :, :shared]
        logits = logits.to(self.case["dtype"])
        if self.case["invalid"] == "draft":
            logits[where[0], 0, 3] = torch.nan
        self.lse = torch.zeros(self.count + 2, k, dtype=torch.float64)
        if self.case["truncation"] != "off, promised" and self.case["rows"] != "greedy, promised":
            self.bounds = Bounds(torch.zeros(self.count + 2, k), torch.zeros(self.count + 2, k, dtype=torch.int32))
        self.drafts = torch.full((self.count, k), -1)
        for i in range(k):
            self._draft_one(i, logits, where)
        self.draft_logits = logits
        if kind == "some one-hot":
            assert self.draft_rows is not None
            self.draft_rows[1::2] = -1

    def _draft_one(self, i: int, logits: Tensor, where: Tensor) -> None:
        row = penalised(self.backend, logits[where, i], self.history, self.drafts, first=i)
        self._check_penalties(row, logits[where, i], i)
        logits[where, i] = row
        purpose = Purpose.INVARIANT if self.case["method"] == "invariant" else Purpose.DRAFT
        s = sampling(self.rows, **self.hints)
        drawn = run(self.backend, sample, row, s, self.positions + i, purpose=purpose, index=i)
        at = [replace(r, position=r.position + i) for r in self.rows]
        expected = [oracle.sample(x.double().numpy(), r, purpose, i) for x, r in zip(row, at, strict=True)]
        assert drawn.tokens.tolist() == [token for token, _, _ in expected]
        assert drawn.status.tolist() == [status for _, _, status in expected]
        self.lse[where, i] = drawn.lse
        assert (drawn.bounds is None) == (self.bounds is None)
        for kept, found in zip(self.bounds or (), drawn.bounds or (), strict=True):
            kept[where, i] = found
        self.drafts[:, i] = self._cut(drawn.tokens[:, None], i)[:, 0]

    def _cut(self, tokens: Tensor, first: int = 0) -> Tensor:
        return torch.where(first + torch.arange(tokens.shape[1]) < self.amounts[:, None], tokens, -1)

    def _check_penalties(self, got: Tensor, given: Tensor, i: int, rows: Tensor | None = None) -> None:
        """got, given [R, V]: rows that follow i drafts."""
        tolerance = TOLERANCE[self.case["dtype"]]
        for r in range(self.count) if rows is None else rows.tolist():
            own = self.drafts[r, :i].tolist()
            if -1 not in own:
                expected = self.history.expected(r, given[r], own)
                torch.testing.assert_close(got[r].double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)

    def _target(self) -> Round:
        k, vocab = self.case["k"], self.vocab
        base = self.base.to(self.case["dtype"])
        if self.case["invalid"] == "target":
            base[0, 0, 5] = torch.nan
        used = torch.ones(self.count, k + 1, dtype=torch.bool)
        cu_rows = None
        if self.case["layout"] == "cu_rows":
            used = torch.arange(k + 1) <= self.amounts[:, None]
            cu_rows = torch.nn.functional.pad((self.amounts + 1).cumsum(0), (1, 0)).int()
        flat = torch.empty(int(used.sum()), vocab + self.case["stride"], dtype=base.dtype)[:, :vocab]
        flat.copy_(base[used])
        edited = penalised(self.backend, flat, self.history, self.drafts, cu_rows=cu_rows)
        whole = base.clone()
        whole[used] = edited
        for i in range(k + 1):
            self._check_penalties(whole[:, i], base[:, i], i, used[:, i].nonzero()[:, 0])
        flat.copy_(edited)
        return Round(
            target_logits=flat, draft_tokens=self.drafts, num_draft_tokens=self.amounts.int(),
            positions=self.positions, rows=self.rows, draft_logits=self.draft_logits, draft_rows=self.draft_rows,
            cu_rows=cu_rows, method=self.case["method"],
            synthetic_rates=torch.linspace(0.9, 0.3, k) if self.case["method"] == "synthetic" else None,
        )  # fmt: skip

    def _sound(self, r: int) -> bool:
        """The bonus row is not read where the bonus token is given."""
        read = self.case["bonus"] == "drawn" or int(self.amounts[r]) > 0
        return r > 0 or self.case["invalid"] != "target" or not read

    def _verify(self, target: Round) -> RejectionOutput:
        k = self.case["k"]
        counts = torch.zeros(4, k + 1, dtype=torch.int64)
        counts = to(counts, self.backend.device) if self.case["counts"] else None
        out: RejectionOutput = run(
            self.backend, rejection_sample, target.target_logits, target.draft_tokens, target.num_draft_tokens,
            target.positions, sampling(self.rows, **self.hints), draft_logits=target.draft_logits,
            draft_rows=target.draft_rows, draft_lse=self.lse if self.case["lse"] == "given" else None,
            draft_bounds=self.bounds if self.case["bounds"] == "given" else None,
            bonus_tokens=self.bonus if self.case["bonus"] == "given" else None,
            cu_rows=target.cu_rows, method=target.method, synthetic_rates=target.synthetic_rates, counts=counts,
        )  # fmt: skip
        clean = target.with_(target_logits=target.target_logits.nan_to_num(0.0))
        summed = torch.zeros(4, k + 1, dtype=torch.int64)
        for r, (tokens, accepted) in enumerate(clean.expected()):
            if not self._sound(r):
                tokens, accepted = [], 0
            emitted, given = int(out.num_emitted[r]), len(target.drafts_of(r))
            if tokens and accepted == given and self.case["bonus"] == "given":
                tokens[-1] = int(self.bonus[r])
            assert out.tokens[r].tolist() == tokens + [-1] * (k + 1 - len(tokens)), f"row {r}"
            assert (emitted, int(out.num_accepted[r])) == (len(tokens), accepted)
            assert bool(out.status[r]) != self._sound(r)
            if self._sound(r):
                summed[0, : min(accepted + 1, given)] += 1
                summed[1, :accepted] += 1
                summed[2 if accepted < given else 3, accepted] += 1
        if counts is not None:
            assert torch.equal(counts.cpu(), summed)
        return out

    def _count(self, out: RejectionOutput) -> None:
        """Checks the token counts for the next round, where the row has penalties."""
        history = self.history
        for r, slot in enumerate(history.slots.tolist()):
            at = int(history.lengths[r])
            new = out.tokens[r, : int(out.num_emitted[r])]
            history.tokens[slot, at : at + len(new)] = new
        seen = counted(self.backend, history, out.tokens)
        for r, slot in enumerate(history.slots.tolist()):
            new = out.tokens[r, : int(out.num_emitted[r])].tolist()
            row, output = history.prompts[r] + history.outputs[r] + new, history.outputs[r] + new
            expected = [0 if t in row[:i] else 1 + output.count(t) for i, t in enumerate(row)]
            if [float(p[r]) for p in history.penalties] != [1, 0, 0]:
                assert seen[slot, : len(row)].tolist() == expected

    def _tell(self, target: Round, out: RejectionOutput) -> None:
        n = self.case["logprobs"]
        told = run(
            self.backend, token_logprobs, target.target_logits, out.tokens, out.num_emitted,
            sampling(self.rows, **self.hints), top_n=n, cu_rows=target.cu_rows,
            bounds=out.bounds if self.case["bounds"] == "given" else None,
        )  # fmt: skip
        k = self.case["k"]
        for r, emitted in enumerate(out.num_emitted.tolist()):
            start = r * (k + 1) if target.cu_rows is None else int(target.cu_rows[r])
            assert told.logprobs[r, emitted:].isnan().all()
            for i in range(emitted):
                logits = target.target_logits[start + i].double()
                if logits.isnan().any():  # behind a given bonus token
                    assert told.logprobs[r, i].isnan()
                    continue
                log_p = logits.log_softmax(-1).numpy()
                if self.rows[r].temperature:
                    with np.errstate(divide="ignore"):
                        log_p = np.log(oracle.distribution(logits.numpy(), self.rows[r]))
                token = int(out.tokens[r, i])
                expected = log_p[token] if token < self.vocab else -math.inf
                assert float(told.logprobs[r, i]) == pytest.approx(expected, abs=3e-5)
                ranking = sorted(range(len(log_p)), key=lambda x: (-log_p[x], x))[:n]
                assert told.top_tokens[r, i].tolist() == [x if math.isfinite(log_p[x]) else -1 for x in ranking]
