"""One round: K drafts, one verify forward, rejection, commit. All of it on the device.

A round is a function of (B, K) and of device memory: no host sync, no value that Python branches on, so that it can be
captured once as a CUDA graph and replayed. tests/engine/rounds/test_round_never_syncs.py proves it.
Shapes: B batch rows, K draft tokens a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specpipe.core import Method, ProposerName
from specpipe.engine.device.device_clock import DeviceClock, Mark
from specpipe.engine.forward.logits_processors import count_committed, mask_eos, penalise
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.round_rows import RoundRows, forward_rows
from specpipe.engine.proposers.proposer import Proposal, Proposer
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.logprobs import NO_LOGPROBS, pack
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import RejectionOutput, SamplingTensors, commit_rows, open_rows, rejection_sample, token_logprobs


class Round:
    """Runs rounds over a slot state with one target and any of several proposers."""

    def __init__(
        self,
        state: SlotState,
        target: ModelRunner,
        proposers: Mapping[ProposerName, Proposer],
        *,
        method: Method,
        synthetic_rates: Tensor | None,
        clock: DeviceClock,
    ) -> None:
        """synthetic_rates: [max K] fp32 unconditional acceptance rates on the device, for method "synthetic"."""
        self.state, self.target, self._proposers = state, target, proposers
        self._method, self._rates, self._clock = method, synthetic_rates, clock

    def __call__(self, slots: Tensor, key: RoundKey) -> Tensor:
        """slots [B] int64: the slot of each batch row. Commits what is accepted and says what happened.

        Returns [B, K + 5] int64, which the host reads one round later, in one copy: K + 1 tokens, -1 beyond a row's
        emission; how many were committed, after end-of-sequence and limit; draft tokens accepted (verified, before
        end-of-sequence); K_i; and 0 or why the target's logits could not be sampled. Behind them what `logprobs.pack`
        gives, if the key asks for it.
        """
        with torch.inference_mode():
            self._clock.mark(Mark.ROUND_BEGIN)
            if not key.k:  # nothing is drafted: what follows belongs to the target's forward
                self._clock.mark(Mark.DRAFTED)
            rows = self._rows(slots, key)
            proposal = self._propose(rows, key)
            if key.k:
                self._clock.mark(Mark.DRAFTED)
            logits = self._verify(rows, proposal, key.k)
            if key.held:
                columns = torch.arange(key.k + 1, device=slots.device)
                mask_eos(logits, self.state, slots, rows.lengths[:, None] + columns)
            penalise(logits, self.state, rows, proposal.tokens)
            self._clock.mark(Mark.VERIFIED)
            verdict = rejection_sample(
                logits,
                proposal.tokens,
                proposal.num_tokens,
                rows.lengths,
                rows.sampling,
                draft_logits=proposal.logits,
                draft_lse=proposal.lse,
                draft_bounds=proposal.bounds,
                method=self._method,
                synthetic_rates=None if self._rates is None else self._rates[: key.k],
            )
            packed = commit_rows(
                rows.state,
                slots,
                rows.lengths,
                verdict,
                proposal.num_tokens,
                drafted=key.k > 0 and proposal.by_draft_model,
            )
            count_committed(self.state, rows, packed[:, : key.k + 1])
            if key.logprobs != NO_LOGPROBS:
                packed = torch.cat([packed, self._tell(logits, verdict, rows, key.logprobs)], dim=1)
            self._clock.mark(Mark.SAMPLED)
        return packed

    @staticmethod
    def _tell(logits: Tensor, verdict: RejectionOutput, rows: RoundRows, n: int) -> Tensor:
        top_n = min(n, logits.shape[1])
        told = token_logprobs(
            logits, verdict.tokens, verdict.num_emitted, rows.sampling, top_n=top_n, bounds=verdict.bounds
        )
        return pack(told)

    def _rows(self, slots: Tensor, key: RoundKey) -> RoundRows:
        state = self.state.on_device
        opened = open_rows(state, slots, k=key.k, width=key.width)
        return RoundRows(
            state=state,
            slots=slots,
            lengths=opened.lengths,
            room=opened.room,
            draft_room=opened.draft_room,
            block_tables=opened.block_tables,
            sampling=SamplingTensors(
                temperature=opened.temperature,
                top_k=opened.top_k,
                top_p=opened.top_p,
                min_p=opened.min_p,
                seed=opened.seed,
                all_greedy=key.all_greedy,
                truncated=key.truncated,
            ),
            held=key.held,
            penalties=self.state.penalties(slots) if key.penalised else None,
        )

    def _propose(self, rows: RoundRows, key: RoundKey) -> Proposal:
        if key.k:
            return self._proposers[key.proposer].propose(self.state, rows, key.k)
        return Proposal(rows.slots.new_empty(rows.slots.shape[0], 0), rows.room)

    def _verify(self, rows: RoundRows, proposal: Proposal, k: int) -> Tensor:
        """→ [B * (K + 1), V]: row i of a request follows its last committed token and i drafts."""
        logits, _ = forward_rows(
            self.target, rows, proposal.tokens if k else None, shift=-1, width=k + 1, last_only=False
        )
        return logits[:, : self.target.vocab_size]
