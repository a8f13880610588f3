"""One round: K drafts, one verify forward, rejection, commit. All of it on the device.

A round is a function of (B, K) and of device memory: no host sync, no value that Python branches on, so that it can be
captured once as a CUDA graph and replayed. tests/engine/test_round_never_syncs.py proves it.
Shapes: B batch rows, K draft tokens a row, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import Method
from specpipe.engine.logprobs import NO_LOGPROBS, pack
from specpipe.engine.min_tokens import hold_open
from specpipe.engine.proposers import Proposal, Proposer, RoundRows
from specpipe.engine.runner import ModelRunner
from specpipe.engine.slots import NO_TOKEN, SlotState
from specpipe.engine.timing import DeviceClock, Mark
from specpipe_kernels import RejectionOutput, TokenLogprobs, count_tokens, rejection_sample, token_logprobs


class RoundKey(NamedTuple):
    """What the host decides about a round; everything else is device data."""

    k: int
    all_greedy: bool
    truncated: bool
    width: int
    """Block-table columns that any row of the round can reach."""
    held: bool = False
    """False is a promise that every row has its min_tokens."""
    penalised: bool = False
    """False is a promise that no row has penalties."""
    logprobs: int = NO_LOGPROBS
    """How many of the most likely tokens to tell beside each emitted token's log-probability; or NO_LOGPROBS."""


class RoundResult(NamedTuple):
    """What a round did, as the host reads it one round later."""

    tokens: Tensor
    """[B, K + 1] int64, -1 beyond a row's emission."""
    emitted: Tensor
    """[B]: tokens committed, after end-of-sequence and limit."""
    accepted: Tensor
    """[B]: draft tokens that the target accepted (verified, before end-of-sequence)."""
    proposed: Tensor
    """[B]: K_i."""
    status: Tensor
    """[B]: 0, or why the target's logits could not be sampled."""
    logprobs: TokenLogprobs | None = None

    def pack(self) -> Tensor:
        """→ [B, K + 5] int64, and behind it what logprobs.pack gives: one copy to the host instead of many."""
        columns = (self.emitted, self.accepted, self.proposed, self.status)
        told = [] if self.logprobs is None else [pack(self.logprobs)]
        return torch.cat([self.tokens, *(c[:, None].to(torch.int64) for c in columns), *told], dim=1)


class Round:
    """Runs rounds over a slot state with one target and one proposer."""

    def __init__(
        self,
        state: SlotState,
        target: ModelRunner,
        proposer: Proposer | None,
        *,
        method: Method,
        synthetic_rates: Tensor | None,
        clock: DeviceClock,
    ) -> None:
        """synthetic_rates: [max K] fp32 unconditional acceptance rates on the device, for method "synthetic"."""
        self.state, self.target, self.proposer = state, target, proposer
        self._method, self._rates, self._clock = method, synthetic_rates, clock

    def __call__(self, slots: Tensor, key: RoundKey) -> RoundResult:
        """slots [B] int64: the slot of each batch row. Commits what is accepted and says what happened."""
        with torch.inference_mode():
            self._clock.mark(Mark.ROUND_BEGIN)
            if not key.k:  # nothing is drafted: what follows belongs to the target's forward
                self._clock.mark(Mark.DRAFTED)
            rows = self._rows(slots, key)
            proposal = self._propose(rows, key.k)
            if key.k:
                self._clock.mark(Mark.DRAFTED)
            logits = self._verify(rows, proposal, key.k)
            if key.held:
                columns = torch.arange(key.k + 1, device=slots.device)
                hold_open(logits, self.state, slots, rows.lengths[:, None] + columns)
            rows.penalise(logits, self.state, proposal.tokens)
            self._clock.mark(Mark.VERIFIED)
            verdict = rejection_sample(
                logits,
                proposal.tokens,
                proposal.num_tokens,
                rows.lengths,
                rows.sampling,
                draft_logits=proposal.logits,
                method=self._method,
                synthetic_rates=None if self._rates is None else self._rates[: key.k],
            )
            told = self._tell(logits, verdict, rows, key.logprobs)
            result = self._commit(rows, proposal, verdict, key.k)._replace(logprobs=told)
            self._clock.mark(Mark.SAMPLED)
        return result

    def _rows(self, slots: Tensor, key: RoundKey) -> RoundRows:
        state = self.state
        lengths = state.length[slots]
        # Speculation never changes which rows fit: the round's own token is always kept room for.
        room = (state.limit[slots] - lengths - 1).clamp(0, key.k)
        return RoundRows(
            slots=slots,
            lengths=lengths,
            room=torch.where(state.active[slots], room, 0).to(torch.int32),
            block_tables=state.block_table[:, : key.width].index_select(0, slots),
            sampling=state.sampling(slots, all_greedy=key.all_greedy, truncated=key.truncated),
            held=key.held,
            penalties=state.penalties(slots) if key.penalised else None,
        )

    def _propose(self, rows: RoundRows, k: int) -> Proposal:
        if k and self.proposer:
            return self.proposer.propose(self.state, rows, k)
        return Proposal(rows.slots.new_empty(rows.slots.shape[0], 0), torch.zeros_like(rows.room), None)

    def _verify(self, rows: RoundRows, proposal: Proposal, k: int) -> Tensor:
        """→ [B * (K + 1), V]: row i of a request follows its last committed token and i drafts."""
        count, device = rows.slots.shape[0], rows.slots.device
        last = self.state.tokens[rows.slots, rows.lengths - 1][:, None]
        # A placeholder is fed as the row's own last token: a harmless one, whatever the vocabulary holds elsewhere.
        fed = torch.cat([last, torch.where(proposal.tokens < 0, last, proposal.tokens)], dim=1)
        starts = rows.lengths - 1
        logits = self.target.forward(
            fed.flatten(),
            (starts[:, None] + torch.arange(k + 1, device=device)).flatten(),
            block_tables=rows.block_tables,
            cu_queries=torch.arange(0, count * (k + 1) + 1, k + 1, dtype=torch.int32, device=device),
            starts=starts,
            max_queries=k + 1,
            keep=0,
        )
        return logits[:, : self.target.vocab_size]

    def _tell(self, logits: Tensor, verdict: RejectionOutput, rows: RoundRows, n: int) -> TokenLogprobs | None:
        if n == NO_LOGPROBS:
            return None
        n = min(n, logits.shape[1])
        return token_logprobs(logits, verdict.tokens, verdict.num_emitted, rows.sampling, top_n=n)

    def _commit(self, rows: RoundRows, proposal: Proposal, verdict: RejectionOutput, k: int) -> RoundResult:
        state, slots = self.state, rows.slots
        active = state.active[slots]
        columns = torch.arange(k + 1, device=slots.device)
        emitted = torch.where(active, verdict.num_emitted, 0)
        is_stop = (verdict.tokens[:, :, None] == state.stop_ids[slots][:, None, :]).any(dim=2)
        is_stop &= columns < emitted[:, None]
        first_stop = torch.where(is_stop, columns, k + 1).amin(dim=1)
        emitted = torch.minimum(emitted, first_stop + 1)
        tokens = torch.where(columns < emitted[:, None], verdict.tokens, NO_TOKEN)

        # Columns past the emission land beyond the new length, where no one reads.
        state.tokens[slots[:, None], rows.lengths[:, None] + columns] = tokens.clamp(min=0)
        if rows.penalties is not None:
            count_tokens(state.tokens, state.seen, slots, rows.lengths, rows.penalties, tokens)
        lengths = rows.lengths + emitted
        state.length[slots] = lengths
        ended = (first_stop <= k) | (lengths >= state.limit[slots]) | (verdict.status > 0)
        state.active[slots] = active & ~ended
        if k and self.proposer:
            self.proposer.commit(state, rows, k, verdict.num_accepted)
        return RoundResult(tokens, emitted, verdict.num_accepted, proposal.num_tokens, verdict.status)
