"""Drafts from a draft model: K steps, each one forward and one draw.

Shapes: B batch rows, K draft tokens a row, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe.core import Method
from specpipe.engine.forward.logits_processors import mask_eos, penalise
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.round_rows import RoundRows, forward_rows
from specpipe.engine.proposers.proposer import Proposal, source_code
from specpipe.engine.state.slot_state import NO_TOKEN, SlotState
from specpipe_kernels import Bounds, Followed, Purpose, Sampled, sample

DRAFT = source_code("draft")


class DraftModelProposer:
    """K steps of a draft model.

    The first step feeds the last two tokens: after a round in which all drafts were accepted, the last draft has no
    KV of the draft model yet, and the two-token step covers that case without a branch.
    """

    def __init__(self, runner: ModelRunner, *, vocab_size: int, method: Method) -> None:
        """vocab_size: the target's; a draft token beyond it could never be accepted."""
        self.runner = runner
        self._vocab_size = vocab_size
        self._purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT

    def propose(self, state: SlotState, rows: RoundRows, k: int, given: Followed | None = None) -> Proposal:
        """Returns k draft tokens a row, with logits where verification reads them. k >= 1.

        given: drafts that rows have already. They are fed and returned in place of the model's own, so that its KV
        is valid behind them too.
        """
        tokens = rows.slots.new_full((rows.slots.shape[0], k), NO_TOKEN)
        # Greedy and invariant verification compare tokens alone: the logits of a step may be overwritten by the next.
        by_tokens = rows.sampling.all_greedy or self._purpose == Purpose.INVARIANT
        logits = None if by_tokens else self._empty_logits(rows.slots.shape[0], k)
        drawn: list[Sampled] = []
        for step in range(k):
            previous = tokens[:, step - 1 : step] if step else None
            shift, width = (step - 1, 1) if step else (-2, 2)
            all_logits, positions = forward_rows(
                self.runner,
                rows,
                previous,
                shift=shift,
                width=width,
                last_only=True,
                out=None if logits is None else logits[step],
            )
            row_logits = all_logits[:, : self._vocab_size]
            if rows.below_min_tokens:
                mask_eos(row_logits, state, rows.slots, positions[:, None])
            penalise(row_logits, state, rows, tokens, first=step)
            drawn.append(
                sample(row_logits, rows.sampling, positions, purpose=self._purpose, index=step, out=tokens[:, step])
            )
            if given is not None:
                own = given.num_tokens <= step
                tokens[:, step] = torch.where(own, tokens[:, step], given.tokens[:, step])
        if logits is None:
            return Proposal(tokens, rows.max_model_drafts, sources=DRAFT, draft_steps=k)
        return Proposal(
            tokens,
            rows.max_model_drafts,
            logits=logits[:, :, : self._vocab_size].transpose(0, 1),
            lse=torch.stack([step_drawn.lse for step_drawn in drawn], dim=1),
            bounds=_stack_bounds([step_drawn.bounds for step_drawn in drawn if step_drawn.bounds is not None]),
            sources=DRAFT,
            draft_steps=k,
        )

    def _empty_logits(self, rows: int, k: int) -> Tensor:
        """Returns [K, B, V] uninitialised: the logits of one step are contiguous, as the head writes them."""
        return torch.empty(k, rows, self.runner.num_logits, dtype=self.runner.dtype, device=self.runner.device)


def _stack_bounds(bounds: list[Bounds]) -> Bounds | None:
    """Stacks the bounds of K steps, [B] each, to [B, K] each; None where nothing was truncated."""
    return Bounds(*(torch.stack(x, dim=1) for x in zip(*bounds, strict=True))) if bounds else None
