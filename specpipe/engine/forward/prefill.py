"""Prefill: prompt tokens into KV memory, in packed ragged chunks bounded by a token budget.

A prompt of P tokens is prefilled below P - 1: its last token is fed by the row's first round, which needs its logits
anyway. The draft model is prefilled only while speculation is on; a row that it is behind with (because K was 0) is
caught up here, out of the same budget. Score rows are computed by prefills alone, which then also return logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.prefix_groups import PrefixGroups
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import PrefixArgs, score_tokens

MIN_QUERIES = 256
"""Tokens. A GPU's attention kernel runs every prefill with the tiling of chunks at least this long."""


def prefill(
    runner: ModelRunner,
    state: SlotState,
    chunks: list[Chunk],
    *,
    page_size: int,
    groups: PrefixGroups | None = None,
    scored: Sequence[int] = (),
) -> Tensor:
    """Feeds the chunks to the model in one packed forward; its KV is valid below each chunk's stop afterwards.

    groups: chunks that read the same pages before their start together; on a CPU alone.
    scored: for each chunk the number of its last tokens whose next tokens are scored; empty where none are. Returns
    [n, 2] fp32, one row for each of them in order: log-probability of the next token, and 1 if it is greedy, else 0.
    """
    sizes = np.array([c.stop - c.start for c in chunks])
    starts = np.array([c.start for c in chunks])
    ends = np.cumsum(sizes)
    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes)
    token_slots = state.upload(np.repeat([c.slot for c in chunks], sizes))
    device_positions = state.upload(positions)
    width = max(c.stop for c in chunks) // page_size + 1
    longest = int(sizes.max())
    if state.device.type != "cpu":  # chunks of catching up have any length: one tiling, or rows wait for a compiler
        longest = max(longest, MIN_QUERIES)
    prefix = None
    if groups is not None:
        prefix = PrefixArgs(*map(state.upload, (groups.prefix_pages, groups.members, [0, *groups.ends])))
    keep = state.upload(_last_tokens(ends, np.array(scored))) if any(scored) else None
    with torch.inference_mode():
        logits = runner.forward(
            state.tokens[token_slots, device_positions],
            device_positions,
            block_tables=state.block_table[:, :width].index_select(0, state.upload([c.slot for c in chunks])),
            cu_queries=state.upload([0, *ends], torch.int32),
            starts=state.upload(starts),
            max_queries=longest,
            keep=keep,
            prefix=prefix,
        )
        if keep is None:
            return logits.new_empty(0, 2, dtype=torch.float32)
        scores = score_tokens(
            logits[:, : runner.vocab_size], state.tokens[token_slots[keep], device_positions[keep] + 1]
        )
        return torch.stack([scores.logprobs, scores.is_greedy.float()], dim=1)


def _last_tokens(ends: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices of the last counts[i] entries before each ends[i], in order."""
    return np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
