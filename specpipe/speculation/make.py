"""From a policy's name to the policy."""

from __future__ import annotations

from specpipe.core import ProposerName
from specpipe.speculation.fixed import Fixed
from specpipe.speculation.off import Off
from specpipe.speculation.policy import Policy
from specpipe.speculation.queue_threshold import QueueThreshold


def make_policy(name: str, *, k: int, max_running: int, proposer: ProposerName) -> Policy:
    """`k`: tokens drafted in a round; `max_running`: queue_threshold's limit. With proposer "none" nothing is drafted.

    Raises ValueError for a name that no policy has.
    """
    if name == "off" or proposer == "none":
        return Off()
    if name == "fixed":
        return Fixed(k=k, proposer=proposer)
    if name == "queue_threshold":
        return QueueThreshold(k=k, threshold=max_running, proposer=proposer)
    raise ValueError(f"policy {name!r}: expected off, fixed or queue_threshold")
