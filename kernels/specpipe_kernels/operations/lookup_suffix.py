"""Drafts from a pool of texts: what follows where the last tokens of a row occur."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import MAX_DRAFTS, SUFFIX_TOKENS, Followed, SlotTensors, SuffixIndex


def lookup_suffix(
    state: SlotTensors,
    index: SuffixIndex,
    slots: Tensor,
    lengths: Tensor,
    max_drafts: Tensor,
    *,
    k: int,
    min_match: int = 1,
) -> Followed:
    """Returns for each row what most texts go on with behind the longest match of the row's last tokens.

    Of each segment the 2 * NEIGHBOURS entries are compared that stand next to the row's suffix in the order; a match
    counts up to SUFFIX_TOKENS. Those with the longest match, at most OCCURRENCES of them and newer segments first, vote
    on the drafts: a draft is a token on which, with all drafts before it, more than half of them agree. So drafts end
    where the texts part. Oliaro et al., "SuffixDecoding" (arXiv 2411.04975), votes over a tree of continuations
    instead.

    Args:
        state: of all slots; their tokens are read.
        index: texts and their order.
        slots: [B] int64.
        lengths: [B] int64, tokens of each row.
        max_drafts: [B] int32. Rows with 0 are not looked up.
        k: drafts of a row, 1 to MAX_DRAFTS.
        min_match: shortest match, 1 to SUFFIX_TOKENS, behind which drafts are proposed.

    Raises ValueError for k or min_match out of range, and for an index whose tensors differ in shape or are not
    contiguous.
    """
    if not 1 <= k <= MAX_DRAFTS:
        raise ValueError(f"k = {k}; expected 1 to {MAX_DRAFTS}")
    if not 1 <= min_match <= SUFFIX_TOKENS:
        raise ValueError(f"min_match = {min_match}; expected 1 to {SUFFIX_TOKENS}")
    if index.tokens.shape != index.places.shape or index.num_sorted.shape != index.tokens.shape[:1]:
        shapes = [list(t.shape) for t in (index.tokens, index.places, index.num_sorted)]
        raise ValueError(f"tokens, places and num_sorted of the index are {shapes}; expected [G, M], [G, M] and [G]")
    if not (index.tokens.is_contiguous() and index.places.is_contiguous()):
        raise ValueError("tokens or places of the index are not contiguous")
    function = implementation("rounds.lookup_suffix", slots)
    result: Followed = function(state, index, slots, lengths, max_drafts, k=k, min_match=min_match)
    return result
