"""Example of a proposer: repeats the last token. Outputs stay exact, because the target verifies every token."""

import torch

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.proposer import Proposal
from specpipe.engine.state.slot_state import NO_TOKEN, SlotState


class Repeat:
    """Proposes the last token K times, one-hot (q(x) = 1).

    Runs inside a captured round: tensors only, no .item(), no shape that depends on data.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Takes the engine's configuration; this proposer has no state."""

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns tokens [B, K] (int) for B rows, NO_TOKEN beyond each row's K_i = rows.max_drafts [B]."""
        last = state.tokens[rows.slots, (rows.lengths - 1).clamp(min=0)]
        within = torch.arange(k, device=state.device) < rows.max_drafts[:, None]
        tokens = torch.where(within, last[:, None], NO_TOKEN)
        return Proposal(tokens, rows.max_drafts)
