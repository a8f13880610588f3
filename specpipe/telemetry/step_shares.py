"""Whose seconds were these? A step's time, split over the shards that shared it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specpipe.core import StepReport


class StepShare(NamedTuple):
    """A shard's part of one step, from 0 to 1; the shares of all shards sum to 1 in each field."""

    round: float
    """By rows that took part in the round."""
    prefill: float
    """By prompt tokens of the prefill chunk."""


def _normalised(weights: Mapping[int, int]) -> dict[int, float]:
    total = sum(weights.values())
    return {shard: weight / total for shard, weight in weights.items()} if total else {}


def step_shares(step: StepReport) -> dict[int, StepShare]:
    """Shard number -> share. Work that nobody did is charged like the work that was done; empty if nothing was."""
    rows = _normalised({shard: part.rows for shard, part in step.shards.items()})
    prefill = _normalised({shard: part.prefill_tokens for shard, part in step.shards.items()})
    if not rows and not prefill:
        owners: dict[int, int] = {}
        for completion in step.completions:
            owners[completion.request.shard] = owners.get(completion.request.shard, 0) + 1
        rows = _normalised(owners)
    rows, prefill = rows or prefill, prefill or rows
    return {shard: StepShare(rows.get(shard, 0.0), prefill.get(shard, 0.0)) for shard in rows.keys() | prefill.keys()}
