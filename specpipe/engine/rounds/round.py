"""One round: K drafts, one verifying forward, rejection, commit. All of it on the device.

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
from specpipe.engine.forward.round_rows import RoundRows, RowLayouts, forward_rows
from specpipe.engine.proposers.proposer import Proposal, Proposer
from specpipe.engine.rounds.round_inputs import RoundInputs
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.logprobs import NO_LOGPROBS, pack_logprobs
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

    def __call__(self, inputs: RoundInputs, key: RoundKey, layouts: RowLayouts) -> Tensor:
        """Runs one round of the rows in the slots of `inputs` and commits what is accepted.

        Returns [B, K + 7] int64, which the host reads one round later, in one copy: K + 1 tokens, -1 beyond a row's
        emission; the number of committed tokens, after end-of-sequence and limit; draft tokens accepted (verified,
        before end-of-sequence); K_i; 0 or the status why the target's logits could not be sampled; the source of the
        drafts; and the length below which the draft model's KV is valid. If the key requests log-probabilities, the
        columns of `pack_logprobs` follow.

        layouts: read by captured graphs, so a caller that captures the round keeps it as long as the graph.
        """
        with torch.inference_mode():
            self._clock.mark(Mark.ROUND_BEGIN)
            if not key.k:  # nothing is drafted: the time from here belongs to the target's forward
                self._clock.mark(Mark.DRAFTED)
            rows = self._open_rows(inputs, key, layouts)
            proposal = self._propose(rows, key)
            if key.k:
                self._clock.mark(Mark.DRAFTED)
            logits = self._target_logits(rows, proposal, key)
            self._clock.mark(Mark.VERIFIED)
            verdict = self._verify(rows, proposal, logits, key.k)
            packed = commit_rows(
                rows.state,
                rows.slots,
                rows.lengths,
                verdict,
                proposal.num_tokens,
                sources=proposal.sources,
                draft_steps=proposal.draft_steps,
            )
            count_committed(self.state, rows, packed[:, : key.k + 1])
            if key.logprobs != NO_LOGPROBS:
                packed = torch.cat([packed, _packed_logprobs(logits, verdict, rows, key.logprobs)], dim=1)
            self._clock.mark(Mark.SAMPLED)
        return packed

    def _open_rows(self, inputs: RoundInputs, key: RoundKey, layouts: RowLayouts) -> RoundRows:
        """Reads the state of the batch rows."""
        state, slots = self.state.on_device, inputs.slots
        opened = open_rows(state, slots, k=key.k, width=key.width)
        return RoundRows(
            state=state,
            slots=slots,
            lengths=opened.lengths,
            max_drafts=opened.max_drafts,
            max_model_drafts=opened.max_model_drafts,
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
            below_min_tokens=key.below_min_tokens,
            penalties=self.state.penalties(slots) if key.penalised else None,
            prefix=inputs.prefix,
            layouts=layouts,
        )

    def _propose(self, rows: RoundRows, key: RoundKey) -> Proposal:
        """Returns the drafts of the key's proposer, [B, 0] where K is 0."""
        if key.k:
            return self._proposers[key.proposer].propose(self.state, rows, key.k)
        return Proposal(rows.slots.new_empty(rows.slots.shape[0], 0), rows.max_drafts)

    def _target_logits(self, rows: RoundRows, proposal: Proposal, key: RoundKey) -> Tensor:
        """Returns the target's logits [B * (K + 1), V], masked and penalised.

        Logits i of a row follow its last committed token and i drafts.
        """
        drafts = proposal.tokens if key.k else None
        logits = forward_rows(self.target, rows, drafts, shift=-1, width=key.k + 1, last_only=False).logits
        logits = logits[:, : self.target.vocab_size]
        if key.below_min_tokens:
            columns = torch.arange(key.k + 1, device=rows.slots.device)
            mask_eos(logits, self.state, rows.slots, rows.lengths[:, None] + columns)
        penalise(logits, self.state, rows, proposal.tokens)
        return logits

    def _verify(self, rows: RoundRows, proposal: Proposal, logits: Tensor, k: int) -> RejectionOutput:
        """Accepts or rejects the drafts and draws each row's next token. logits [B * (K + 1), V]."""
        return rejection_sample(
            logits,
            proposal.tokens,
            proposal.num_tokens,
            rows.lengths,
            rows.sampling,
            draft_logits=proposal.logits,
            draft_rows=proposal.draft_rows,
            draft_lse=proposal.lse,
            draft_bounds=proposal.bounds,
            method=self._method,
            synthetic_rates=None if self._rates is None else self._rates[:k],
        )


def _packed_logprobs(logits: Tensor, verdict: RejectionOutput, rows: RoundRows, alternatives: int) -> Tensor:
    """Returns the packed log-probabilities of the emitted tokens; see `pack_logprobs`. logits [B * (K + 1), V]."""
    return pack_logprobs(
        token_logprobs(
            logits,
            verdict.tokens,
            verdict.num_emitted,
            rows.sampling,
            top_n=min(alternatives, logits.shape[1]),
            bounds=verdict.bounds,
        )
    )
