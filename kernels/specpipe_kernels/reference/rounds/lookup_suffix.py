"""Finds the texts that hold the last tokens of rows and what most of them continue with, in plain torch.

Shapes: B batch rows, G segments, N = SUFFIX_TOKENS, E = 2 * NEIGHBOURS entries, C = OCCURRENCES, K drafts a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import NEIGHBOURS, OCCURRENCES, SUFFIX_TOKENS, Followed, SlotTensors, SuffixIndex

_PROBES = 32
"""Entries of a segment that one step of the search compares: more of them make fewer steps."""


def lookup_suffix(
    state: SlotTensors,
    index: SuffixIndex,
    slots: Tensor,
    lengths: Tensor,
    max_drafts: Tensor,
    *,
    k: int,
    min_match: int,
) -> Followed:
    """See `specpipe_kernels.lookup_suffix`."""
    columns = lengths[:, None] - 1 - torch.arange(SUFFIX_TOKENS, device=slots.device)
    suffix = torch.where(columns < 0, -2, state.tokens[slots[:, None], columns.clamp(min=0)])  # [B, N], last one first
    groups, width = index.places.shape
    segments = (index.newest - torch.arange(groups, device=slots.device)) % groups  # the newest one first
    num_sorted = torch.where(max_drafts[:, None] > 0, index.num_sorted[segments], 0)  # [B, G]
    nearest = torch.arange(NEIGHBOURS - 1, -NEIGHBOURS - 1, -1, device=slots.device)
    entries = _insertion(index, suffix, segments, num_sorted)[..., None] + nearest
    inside = (entries >= 0) & (entries < num_sorted[..., None])
    at = _addresses(index, entries.clamp(0, width - 1), segments)
    equal = _contexts(index, at) == suffix[:, None, None]
    matched = torch.where(inside, equal.to(torch.int32).cumprod(dim=-1).sum(dim=-1), 0).flatten(1)
    longest = matched.amax(dim=1)
    found = (matched == longest[:, None]) & (longest >= min_match)[:, None]
    drafts, num_tokens = _majority(index, at.flatten(1), found, k)
    num_tokens = torch.minimum(num_tokens, max_drafts)
    drafted = torch.arange(k, device=slots.device) < num_tokens[:, None]
    return Followed(torch.where(drafted, drafts, -1), num_tokens, longest.to(torch.int32))


def _addresses(index: SuffixIndex, entries: Tensor, segments: Tensor) -> Tensor:
    """Returns the places of `entries` [B, G, E] of `segments` [G] as indices of all tokens, int64."""
    begin = segments[:, None] * index.places.shape[1]
    return index.places.view(-1)[begin + entries] + begin


def _contexts(index: SuffixIndex, at: Tensor) -> Tensor:
    """Returns [..., N] int32: the tokens before `at` [...], the nearest one first."""
    return index.tokens.view(-1)[at[..., None] - 1 - torch.arange(SUFFIX_TOKENS, device=at.device)]


def _insertion(index: SuffixIndex, suffix: Tensor, segments: Tensor, num_sorted: Tensor) -> Tensor:
    """Returns [B, G] int64: sorted entries of each segment that are not behind the suffix [B, N] in the order."""
    begin, end = torch.zeros_like(num_sorted, dtype=torch.int64), num_sorted.long()
    parts = torch.arange(1, _PROBES + 1, device=suffix.device)
    remaining, query = index.places.shape[1], suffix[:, None, None]
    while remaining:
        remaining //= _PROBES + 1
        size = end - begin
        probes = begin[..., None] + parts * size[..., None] // (_PROBES + 1)
        context = _contexts(index, _addresses(index, probes.clamp(max=index.places.shape[1] - 1), segments))
        departs = (context != query).to(torch.uint8).argmax(dim=-1, keepdim=True)  # 0 where all are equal
        passed = ((context <= query).gather(-1, departs)[..., 0] & (size > 0)[..., None]).sum(dim=-1)
        end = begin + (passed + 1) * size // (_PROBES + 1)
        begin = torch.where(passed > 0, begin + passed * size // (_PROBES + 1) + 1, begin)
    return begin


def _majority(index: SuffixIndex, at: Tensor, found: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the tokens [B, K] int64 with which most of the first C found addresses go on, and their number [B] int32.

    at, found: [B, G * E]. Tokens beyond the number are undefined.
    """
    rank = torch.where(found, found.cumsum(dim=1) - 1, OCCURRENCES).clamp(max=OCCURRENCES)
    chosen = torch.zeros(len(at), OCCURRENCES + 1, dtype=torch.int64, device=at.device).scatter_(1, rank, at)
    count = found.sum(dim=1).clamp(max=OCCURRENCES)
    used = torch.arange(OCCURRENCES, device=at.device) < count[:, None]
    columns = chosen[:, :OCCURRENCES, None] + torch.arange(k, device=at.device)
    tokens = torch.where(used[..., None], index.tokens.view(-1)[columns], torch.iinfo(torch.int32).max)  # [B, C, K]
    # A token that more than half of them have is the median.
    middle = (count // 2).clamp(max=OCCURRENCES - 1)[:, None, None].expand(-1, 1, k)
    drafts = tokens.sort(dim=1).values.gather(1, middle)  # [B, 1, K]
    same = (tokens == drafts) & used[..., None]
    votes = same.cummin(dim=2).values.sum(dim=1)  # [B, K]: occurrences that agree up to each token
    agreed = (2 * votes > count[:, None]) & (drafts[:, 0] >= 0)
    return drafts[:, 0].long(), agreed.cummin(dim=1).values.sum(dim=1, dtype=torch.int32)
