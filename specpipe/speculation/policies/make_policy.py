"""Policies by name."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.core import AppliesTo, ProposerName
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.off import Off
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.policies.queue_threshold import QueueThreshold


def make_policy(
    name: str, *, k: int, max_running: int, proposers: Sequence[ProposerName], applies_to: AppliesTo = "batch"
) -> Policy:
    """Returns the policy of this name; `Off` if there is no proposer. Raises ValueError for an unknown name.

    k: draft tokens of a round, for goodput at most; max_running: threshold of queue_threshold; proposers: those that
    the workers have. Goodput chooses among them, the other policies use the first. applies_to: of queue_threshold.
    """
    if name == "off" or not proposers:
        return Off()
    if name == "fixed":
        return Fixed(k=k, proposer=proposers[0])
    if name == "queue_threshold":
        return QueueThreshold(k=k, threshold=max_running, proposer=proposers[0], applies_to=applies_to)
    if name == "goodput":
        return Goodput(k=k, proposers=tuple(proposers))
    raise ValueError(f"policy {name!r}: expected off, fixed, queue_threshold or goodput")
