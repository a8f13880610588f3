"""A proposer: the last token again and again. Silly, and lossless all the same, since the target verifies."""

import torch

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.proposer import Proposal
from specpipe.engine.state.slot_state import NO_TOKEN, SlotState


class Repeat:
    """One-hot proposals: q(x) = 1. It runs inside a round: tensors only, no .item(), no shape that depends on data."""

    def __init__(self, config: EngineConfig) -> None:
        """What a proposer needs to know is in the engine's configuration."""

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """rows: B of them. → tokens [B, K], of which each row has room for its own K_i."""
        last = state.tokens[rows.slots, (rows.lengths - 1).clamp(min=0)]
        within = torch.arange(k, device=state.device) < rows.room[:, None]
        tokens = torch.where(within, last[:, None], NO_TOKEN)
        return Proposal(tokens, rows.room)
