"""Attribution of a step's seconds to the shards that took part in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specpipe.core import StepReport


class StepShare(NamedTuple):
    """Share of one shard in one step, 0 to 1. The shares of all shards sum to 1 in each field."""

    round: float
    """Share of the rows of the round."""
    prefill: float
    """Share of the prompt tokens of the prefill chunk."""


def _normalised(weights: Mapping[int, int]) -> dict[int, float]:
    """Returns the weights divided by their sum; empty where the sum is 0."""
    total = sum(weights.values())
    return {shard: weight / total for shard, weight in weights.items()} if total else {}


def step_shares(step: StepReport) -> dict[int, StepShare]:
    """Returns the share of each shard, by shard index; empty for a step without work.

    A step without a round charges round seconds like prefill seconds, and the reverse. A step with neither charges the
    shards of its completions.
    """
    rows = _normalised({shard: part.rows for shard, part in step.shards.items()})
    prefill = _normalised({shard: part.prefill_tokens for shard, part in step.shards.items()})
    if not rows and not prefill:
        owners: dict[int, int] = {}
        for completion in step.completions:
            owners[completion.request.shard] = owners.get(completion.request.shard, 0) + 1
        rows = _normalised(owners)
    rows, prefill = rows or prefill, prefill or rows
    return {shard: StepShare(rows.get(shard, 0.0), prefill.get(shard, 0.0)) for shard in rows.keys() | prefill.keys()}
