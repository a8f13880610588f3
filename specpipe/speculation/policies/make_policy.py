"""Policies by name."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.core import AppliesTo, ProposerName
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.policies.queue_threshold import QueueThreshold


def make_policy(
    name: str,
    *,
    k: int,
    max_running: int,
    proposers: Sequence[ProposerName],
    applies_to: AppliesTo = "batch",
    replay_k: int = 0,
) -> Policy:
    """Returns the policy of this name; K = 0 if there is no proposer. Raises ValueError for an unknown name.

    k: draft tokens of a round, for goodput at most; max_running: threshold of queue_threshold; proposers: those that
    the workers have. Goodput chooses among them, the other policies use the first. applies_to: of queue_threshold.
    replay_k: the same as k for the proposers "replay" and "joined".
    """
    if name == "off" or not proposers:
        return Fixed()
    first_k = replay_k if proposers[0] == "replay" else k
    if name == "fixed":
        return Fixed(k=first_k, proposer=proposers[0])
    if name == "queue_threshold":
        return QueueThreshold(k=first_k, threshold=max_running, proposer=proposers[0], applies_to=applies_to)
    if name == "goodput":
        return Goodput(k=k, proposers=tuple(proposers), replay_k=replay_k)
    raise ValueError(f"policy {name!r}: expected off, fixed, queue_threshold or goodput")
