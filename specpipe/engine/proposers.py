"""Where draft tokens come from: a draft model, the row's own text, or nowhere.

Every proposer runs inside a round: device operations only, no host sync, shapes given by (B, K).
Shapes: B batch rows, K draft tokens a row, V vocabulary, C token capacity of a slot.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specpipe.core import EngineConfig, Method, ProposerName
from specpipe.engine.forward import RoundRows, forward_rows
from specpipe.engine.min_tokens import hold_open
from specpipe.engine.penalties import penalise
from specpipe.engine.runner import ModelRunner
from specpipe.engine.slots import NO_TOKEN, SlotState
from specpipe_kernels import Bounds, Purpose, Sampled, sample


class Proposal(NamedTuple):
    tokens: Tensor
    """[B, K] int64; what stands beyond a row's K_i means nothing."""
    num_tokens: Tensor
    """[B] int32: K_i."""
    logits: Tensor | None = None
    """[B, K, V] before temperature; None for one-hot proposals and where verification needs the tokens alone."""
    lse: Tensor | None = None
    """[B, K] fp32: log-sum-exps that drafting computed; None where logits is."""
    bounds: Bounds | None = None
    """[B, K] each: where drafting truncated; None where nothing is truncated."""
    by_draft_model: bool = False
    """Its keys and values then reach as far as the drafts are accepted."""


class Proposer(Protocol):
    """Proposes up to `rows.room` tokens a row; never looks at anything but the committed prefix."""

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal: ...


class DraftModelProposer:
    """K steps of a draft model. The first feeds the last two tokens, so that a round in which all drafts were
    accepted (whose last draft has no draft KV) needs no special case."""

    def __init__(self, runner: ModelRunner, *, vocab_size: int, method: Method) -> None:
        """vocab_size: the target's; a draft token beyond it could never be accepted."""
        self.runner = runner
        self._vocab_size = vocab_size
        self._purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        tokens = rows.slots.new_full((rows.slots.shape[0], k), NO_TOKEN)
        # Verified by tokens alone? Then nobody reads a step's logits again.
        matched = rows.sampling.all_greedy or self._purpose == Purpose.INVARIANT
        logits = None if matched else self._room(rows.slots.shape[0], k)
        drawn: list[Sampled] = []
        for step in range(k):
            given = tokens[:, step - 1 : step] if step else None
            shift, width = (step - 1, 1) if step else (-2, 2)
            all_logits, at = forward_rows(
                self.runner, rows, given, shift=shift, width=width, last_only=True,
                out=None if logits is None else logits[step],
            )  # fmt: skip
            row_logits = all_logits[:, : self._vocab_size]
            if rows.held:
                hold_open(row_logits, state, rows.slots, at[:, None])
            penalise(row_logits, state, rows, tokens, first=step)
            drawn.append(sample(row_logits, rows.sampling, at, purpose=self._purpose, index=step, out=tokens[:, step]))
        if logits is None:
            return Proposal(tokens, rows.draft_room, by_draft_model=True)
        return Proposal(
            tokens,
            rows.draft_room,
            logits=logits[:, :, : self._vocab_size].transpose(0, 1),
            lse=torch.stack([x.lse for x in drawn], dim=1),
            bounds=_stacked([x.bounds for x in drawn if x.bounds is not None]),
            by_draft_model=True,
        )

    def _room(self, rows: int, k: int) -> Tensor:
        """[K, B, V]: a step's logits lie together, as its head writes them."""
        return torch.empty(k, rows, self.runner.num_logits, dtype=self.runner.dtype, device=self.runner.device)


def _stacked(bounds: list[Bounds]) -> Bounds | None:
    """Those of K steps as [B, K] each."""
    return Bounds(*(torch.stack(x, dim=1) for x in zip(*bounds, strict=True))) if bounds else None


class NGramProposer:
    """Prompt lookup: what followed the latest earlier occurrence of the row's last n tokens, longest n first.

    Saxena, "Prompt Lookup Decoding" (2023). Proposals are one-hot: q(x) = 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._sizes = range(config.ngram_max, config.ngram_min - 1, -1)
        self._page_size = config.page_size

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        width = rows.block_tables.shape[1] * self._page_size  # no more than the block table covers is in use
        tokens = state.tokens[rows.slots, :width]
        columns = torch.arange(width, device=tokens.device)
        follows = torch.zeros_like(rows.lengths)
        for n in self._sizes:
            found = self._latest(tokens, columns, rows.lengths, n)
            follows = torch.where(follows > 0, follows, found)
        taken = follows[:, None] + torch.arange(k, device=tokens.device)
        available = torch.where(follows > 0, rows.lengths - follows, 0)
        num_tokens = torch.minimum(rows.room, available.clamp(max=k).to(torch.int32))
        drawn = tokens.gather(1, taken.clamp(max=width - 1))
        within = torch.arange(k, device=tokens.device) < num_tokens[:, None]
        return Proposal(torch.where(within, drawn, NO_TOKEN), num_tokens)

    @staticmethod
    def _latest(tokens: Tensor, columns: Tensor, lengths: Tensor, n: int) -> Tensor:
        """→ [B]: where the text after the latest earlier match of the last n tokens starts; 0 without a match."""
        matches = columns < (lengths - n)[:, None]
        for i in range(n):
            wanted = tokens.gather(1, (lengths[:, None] - n + i).clamp(min=0))
            shifted = tokens.roll(-i, dims=1)
            matches &= shifted == wanted
        start = torch.where(matches, columns, -1).amax(dim=1)
        return torch.where((start >= 0) & (lengths > n), start + n, 0)


def make_proposers(
    config: EngineConfig, target: ModelRunner, draft: ModelRunner | None
) -> dict[ProposerName, Proposer]:
    """Those that a plan may name, a draft model first. "auto" has n-grams, and the draft model where there is one."""
    made = dict[ProposerName, Proposer]()
    assert config.proposer != "draft" or draft is not None, "proposer draft without a draft model"
    if draft is not None and config.proposer in ("draft", "auto"):
        made["draft"] = DraftModelProposer(draft, vocab_size=target.vocab_size, method=config.method)
    if config.proposer in ("ngram", "auto"):
        made["ngram"] = NGramProposer(config)
    return made
